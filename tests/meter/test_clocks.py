"""The clocks: a host's, those of a GPU that isn't there; and the ceilings."""

import gc
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from attnbench.core.device import Cuda, Device, device_for
from attnbench.meter import clocks
from attnbench.meter.clocks import QUEUE, EndToEndClock, EventClock, GraphClock, HostClock
from attnbench.meter.timer import prepare
from tests.meter.fake_gpu import FakeGpu


def test_what_goes_before_and_the_freeing_of_what_came_are_not_timed():
    alive = []

    class Slow:
        def __init__(self):
            alive.append(self.__class__)

        def __del__(self):
            alive.pop()
            time.sleep(0.02)

    taken = HostClock().samples(lambda: time.sleep(0.02 + len(alive)), Slow, 3)
    assert min(taken) < 0.01 and not alive


def test_the_collector_waits_and_is_as_it_was_even_after_an_error():
    for restore in (gc.disable, gc.enable):
        restore()
        was, seen = gc.isenabled(), []
        HostClock().samples(int, lambda seen=seen: seen.append(gc.isenabled()), 2)
        with pytest.raises(ZeroDivisionError):
            HostClock().samples(int, lambda: 1 / 0, 2)
        assert (seen, gc.isenabled()) == ([False, False], was)


@pytest.mark.parametrize("phase", ["forward", "train", "backward", "decode"])
def test_a_gpu_is_timed_by_events_a_decoder_by_its_graph_and_a_processor_by_the_host(gpu, phase):
    kind = GraphClock if phase == "decode" else EventClock
    assert type(clocks.clock_for("cuda:1", phase)) is kind
    assert type(clocks.clock_for("cpu", phase)) is HostClock


def kernels(gpu, count, seconds):
    def call():
        for _ in range(count):
            gpu.kernel(seconds)

    return call


def test_events_read_what_the_kernels_took_though_launching_takes_longer():
    gpu = FakeGpu(launch_s=50e-6)
    call = kernels(gpu, 4, 10e-6)
    assert EventClock(gpu).samples(int, call, 40) == pytest.approx([40e-6] * 40)
    assert min(EndToEndClock(gpu).samples(int, call, 4)) >= 200e-6
    gpu.sleep = lambda cycles: None  # without it the gaps between launches are in the samples
    clock = EventClock(gpu)
    assert min(clock.samples(int, call, QUEUE)) > 100e-6
    assert clock.flags[0].startswith("launch-bound: ")


@pytest.mark.parametrize(("host_s", "least", "most"), [(500e-6, 8e-3, 1), (0, 0, 1e-3)])
def test_the_sleep_is_made_to_fit_what_the_host_needs(host_s, least, most):
    gpu = FakeGpu()

    def call():
        gpu.busy_host(host_s)
        gpu.kernel(20e-6)

    clock = EventClock(gpu)
    assert clock.samples(int, call, 32) == pytest.approx([20e-6] * 32)
    assert clock.flags == ()
    slept, gpu.sleep = [], lambda cycles: slept.append(cycles / gpu.hz)
    clock._take(int, call, QUEUE)
    assert least < slept[0] < most


def test_the_clock_under_load_is_that_of_a_sleep_right_after_the_calls():
    gpu = FakeGpu(hz=1.98e9)
    clock, seconds = EventClock(gpu), 0.01
    clock.samples(int, kernels(gpu, 1, seconds), 1)
    gpu.slow = [(gpu.host + 2e-4, gpu.host + 0.5, 1.98 / 1.545, "SwPowerCap")]  # under load alone
    clock.samples(int, kernels(gpu, 1, seconds), 16)
    assert clock.mhz[0] == pytest.approx(1980)
    assert clock.mhz[-1] == pytest.approx(1545)


def test_a_call_is_timed_back_to_back_where_its_clocks_have_fallen():
    gpu = FakeGpu(cold=1.0)
    gpu.slow = [(0.3, 9.0, 1.2, "SwPowerCap")]
    gpu.flush()
    seconds = clocks.back_to_back(gpu, kernels(gpu, 2, 1e-3), 2e-3, 1.0)
    assert seconds == pytest.approx(2.4e-3, rel=0.01)
    assert gpu.log.count("flush") == 1


@pytest.mark.parametrize("every", [10**6, 97])
def test_a_host_that_stumbles_costs_a_batch_and_no_more(every):
    gpu, numbers = FakeGpu(), iter(range(10**6))

    def call():
        gpu.busy_host(20e-3 if next(numbers) % every == 20 else 1e-6)
        gpu.kernel(20e-6)

    clock = EventClock(gpu)
    assert clock.samples(int, call, 640) == pytest.approx([20e-6] * 640)
    assert (clock.flags, clock._size) == ((), QUEUE)
    assert every == 97 or next(numbers) == 640 + 16


@pytest.mark.parametrize(("waits", "host_s"), [(True, 30e-6), (False, 0.3)])
def test_a_call_that_waits_or_outlasts_the_longest_sleep_is_kept_and_flagged(waits, host_s):
    gpu = FakeGpu()

    def call():
        gpu.kernel(20e-6)
        if waits:
            gpu.synchronize()
        gpu.busy_host(host_s)
        gpu.kernel(20e-6)

    clock = EventClock(gpu)
    taken = clock.samples(int, call, 8)
    assert len(taken) == 8 and min(taken) > 70e-6  # the gap is in it
    assert clock.flags[0].startswith("launch-bound: ")
    assert waits or "takes 300 ms to queue a call" in clock.flags[0]


def test_the_cache_is_emptied_after_fresh_values_came_and_outside_the_sample():
    gpu = FakeGpu(cold=1.0)

    def before():
        gpu.log.append("before")
        gpu.kernel(5e-3)

    def call():
        gpu.log.append("call")
        gpu.kernel(20e-6)

    for make, tail in ((EventClock, []), (EndToEndClock, ["synchronize"])):
        gpu.log.clear()
        taken = make(gpu).samples(before, call, 4)
        assert 39e-6 < min(taken) <= max(taken) < 1e-4
        steps = [x for x in gpu.log if x != "sleep"]
        assert steps[: 3 + len(tail)] == ["before", "flush", *tail, "call"]


class Decoder:
    """A call of many small kernels that puts its result aside, as what is timed does."""

    def __init__(self, gpu, waits=False):
        self.gpu, self.waits, self.out, self.seen = gpu, waits, None, []

    def before(self):
        self.seen.append(self.out)
        self.out = None

    def run(self):
        for _ in range(30):
            self.gpu.kernel(2e-6)
        if self.waits:
            self.gpu.synchronize()
        self.out = "result" if self.gpu.captured is None else "static result"
        return self.out

    def hold(self):
        kept = self.out
        return lambda: setattr(self, "out", kept)


def prepared(waits=False, moves=False):
    gpu = FakeGpu(launch_s=10e-6)
    one, clock = Decoder(gpu, waits), GraphClock(gpu)
    one.call = SimpleNamespace(moves=moves)
    prepare(clock, one)
    return gpu, one, clock


def test_a_graph_is_replayed_behind_the_sleep_and_leaves_its_result_where_it_is_looked_for():
    gpu, one, clock = prepared()
    one.seen.clear()
    taken = clock.samples(one.before, one.run, 40)
    assert (clock.name, clock.flags, clock.batch) == ("graph", (), QUEUE)
    assert taken == pytest.approx([60e-6] * 40)
    assert gpu.log.count("replay") == 41
    assert one.seen == ["static result"] * 40
    clock.step(one.run)()
    assert gpu.log.count("replay") == 42


def test_what_can_not_be_captured_is_timed_from_end_to_end_and_says_why():
    for waits, moves, why in (
        (True, False, "the call can't be captured (operation not permitted when stream is"),
        (False, True, "what it remembers of the tokens before lies elsewhere"),
    ):
        gpu, one, clock = prepared(waits, moves)
        assert min(clock.samples(one.before, one.run, 4)) >= 300e-6
        assert (one.out, clock.name, clock.batch) == ("result", "e2e", 1)
        assert clock.flags[0].startswith(f"timed without a CUDA graph: {why}")
        assert "replay" not in gpu.log and clock.step(one.run) == one.run


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_is_captured_with_the_collector_off_and_torch_is_left_as_it_was(monkeypatch, fails):
    log, graphs = [], iter([SimpleNamespace(replay="replay"), "empty"])

    @contextmanager
    def capturing(graph, **_):
        yield log.append("capture")
        if fails and graph != "empty":
            raise RuntimeError("not permitted")

    def stream(name):
        return SimpleNamespace(name=name, wait_stream=lambda one: log.append(f"{name} waits"))

    for name, value in {
        "current_stream": lambda device: stream("default"),
        "set_stream": lambda one: log.append(one.name),
        "Stream": lambda device: stream("side"),
        "device": nullcontext,
        "CUDAGraph": lambda: next(graphs),
        "graph": capturing,
        "graph_pool_handle": int,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    end_pool = lambda index, pool: log.append("end pool")  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end_pool, raising=False)
    monkeypatch.setattr(Cuda, "synchronize", lambda self: log.append("synchronize"))
    gpu = Cuda("cuda:1")
    gpu.device = SimpleNamespace(index=1)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: torch.ones(1))
    with pytest.raises(RuntimeError, match="not permitted") if fails else nullcontext():
        assert gpu.capture(lambda: log.append(gc.isenabled())) == "replay"
    mended = ["side", "synchronize", "end pool", "capture"] if fails else []
    called = ["side waits", "side", *[False] * 3, "capture", False]
    assert log == [*called, *mended, "default", "default waits"] and gc.isenabled()


def test_a_cells_gpu_is_the_current_one_and_has_its_context(monkeypatch):
    log = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", log.append)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: log.append("wait"))
    for there, name in ((True, "cpu"), (False, "cuda:1"), (True, "cuda"), (True, "cuda:1")):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda there=there: there)
        device_for(name).begin()
    assert log == [0, "wait", 1, "wait"]


@pytest.fixture
def ceilings(monkeypatch):
    """What is measured by a clock that reads what it is told."""

    def measured(samples, dtypes=("float32",), sizes=(4,), of_others=False, **more):
        clock = SimpleNamespace(samples=lambda before, call, count: samples(call, count))
        monkeypatch.setattr(clocks, "clock_for", lambda device, phase: clock)
        for name, value in {"product_sizes": sizes, "copy_bytes": (64,), **more}.items():
            monkeypatch.setattr(Device, name, value)
        return clocks.measure_ceilings("cpu", dtypes, of_others=of_others)

    return measured


def test_the_best_of_the_sizes_and_tries_counts(ceilings):
    sizes = lambda call, n: [m * call().numel() for m in (2.0, 1.0, 3.0, 9.0, 9.0)[:n]]  # noqa: E731
    got = ceilings(sizes, sizes=(2, 4))
    assert got["flops"] == {"float32": 2 * 4**3 / 16}  # the larger does 8 FLOP/s, the other 4
    assert got["copy"] == {"64": 64 / 32}  # 32 bytes read and 32 written


@pytest.mark.parametrize(("asked", "rate"), [(False, 128.0), (True, 512.0)])
def test_onednns_product_counts_where_that_of_others_does(ceilings, asked, rate):
    samples = lambda call, n: [0.25 if call().is_mkldnn else 1.0] * n  # noqa: E731
    got = ceilings(samples, ("float32", "float64", "bfloat16"), of_others=asked)["flops"]
    assert got == pytest.approx({"float32": rate, "float64": 128.0, "bfloat16": rate})


@pytest.mark.parametrize(("where", "rate"), [(True, 256.0), (False, 128.0)])
def test_float32_may_be_made_of_three_products_of_tf32_on_a_gpu(ceilings, where, rate):
    precision = torch.get_float32_matmul_precision
    samples = lambda call, n: [1 / 6 if precision() == "high" else 1.0] * n  # noqa: E731
    before = precision()
    flops = ceilings(samples, ("float32", "float64"), three_of_tf32=where)["flops"]
    assert flops == pytest.approx({"float32": rate, "float64": 128.0})
    assert precision() == before
