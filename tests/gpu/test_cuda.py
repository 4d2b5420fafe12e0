"""What can be told on a GPU alone: its clocks, its driver, its energy, what a cell needs of it."""

import time
from contextlib import nullcontext
from statistics import median

import pytest
import torch
import torch.nn.functional as F

import impls
from attnbench.core import gpu as nvml
from attnbench.core.device import device_for
from attnbench.core.record import Energy
from attnbench.core.wire import Job
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import check_nothing_goes_on
from attnbench.gate.inputs import make
from attnbench.gate.plants import PLANTS
from attnbench.meter.clocks import EndToEndClock, clock_for
from attnbench.meter.energy import counter_for, measure_energy
from attnbench.meter.probe import probe
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]
CUDA = "cuda"


def nothing():
    pass


def middle(clock, call, count, warm=0):
    """The median of so many samples, after others that are not looked at."""
    if warm:
        clock.samples(nothing, call, warm)
    return median(clock.samples(nothing, call, count))


@pytest.fixture(scope="module")
def gpu():
    return device_for(CUDA)


@pytest.fixture(scope="module")
def board(gpu):
    found = gpu.board()
    assert isinstance(found, nvml.Board), found.reason
    return found


def events():
    return clock_for(CUDA, "forward")


def end_to_end():
    return EndToEndClock(device_for(CUDA))


def product(n=4096):
    a, b = (torch.randn(n, n, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    return lambda: a @ b


def attention():
    shape = (1, 16, 4096, 128)
    q, k, v = (torch.randn(shape, device=CUDA, dtype=torch.bfloat16) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v)


def test_a_sleep_of_known_cycles_takes_them_at_the_clock_that_the_driver_says(gpu, board):
    cycles, seen = 40_000_000, []

    def call():
        torch.cuda._sleep(cycles)

    clock = events()
    clock.samples(nothing, call, 4)
    for _ in range(3):
        call()
        call()
        time.sleep(0.01)
        seen.append(board.sm_mhz())  # while it runs
        gpu.synchronize()
    taken = middle(clock, call, 16)
    assert taken == pytest.approx(cycles / (median(seen) * 1e6), rel=0.01)


@pytest.mark.parametrize("make", [product, attention])
def test_events_agree_with_tritons_do_bench_in_the_same_mode(make):
    testing = pytest.importorskip("triton.testing", reason="triton is not installed")
    call, clock = make(), events()
    clock.samples(nothing, call, 32)
    ours, theirs = [], []
    for _ in range(5):  # in turn, so that what drifts drifts for both
        ours.append(middle(clock, call, 48))
        theirs.append(testing.do_bench(call, warmup=10, rep=50, return_mode="median") * 1e-3)
    assert clock.flags == ()
    assert median(ours) == pytest.approx(median(theirs), rel=0.03), (ours, theirs)


def test_launching_stays_out_of_events_and_is_in_end_to_end():
    x = torch.ones(1024, device=CUDA)

    def call():
        y = x
        for _ in range(20):
            y = y + 1
        return y

    clock = events()
    inside, whole = middle(clock, call, 48, warm=32), middle(end_to_end(), call, 16)
    assert clock.flags == ()
    assert inside < 0.8 * whole


def test_work_on_a_side_stream_is_seen_from_end_to_end_alone():
    side = torch.cuda.Stream()

    def call():
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)

    assert middle(events(), call, 8) < 1e-3
    assert middle(end_to_end(), call, 8) > 5e-3


def test_a_call_finds_the_cache_cold(monkeypatch):
    x = torch.ones(4 << 20, device=CUDA)  # 16 MiB: it fits
    clock = events()
    cold = middle(clock, x.sum, 48, warm=16)
    monkeypatch.setattr(clock._gpu, "flush", nothing)
    hot = middle(clock, x.sum, 48)
    assert hot < 0.9 * cold


class Held:
    """A call whose result is put aside, as what is timed does."""

    def __init__(self, attend, values):
        self.attend, self.values, self.out, self.right = attend, values, None, 0

    def before(self):
        if self.out is not None:
            self.right += int(torch.allclose(self.out, self.attend(), atol=1e-2))
        self.out = None
        self.values.normal_()

    def run(self):
        self.out = self.attend()

    def hold(self):
        kept = self.out
        return lambda: setattr(self, "out", kept)


def decoding():
    q = torch.randn(8, 32, 1, 128, device=CUDA, dtype=torch.bfloat16)
    k, v = (torch.randn(8, 32, 4096, 128, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    return Held(lambda: F.scaled_dot_product_attention(q, k, v), q)


def graph_clock(held):
    clock = clock_for(CUDA, "decode")
    clock.prepare(held.before, held.run, held.hold)
    return clock


def test_a_decoders_step_is_replayed_on_fresh_values_and_its_results_are_there_to_be_held():
    held = decoding()
    clock = graph_clock(held)
    assert (clock.name, clock.flags) == ("graph", ())
    held.right = 0
    taken = clock.samples(held.before, held.run, 12)
    held.before()
    assert held.right >= 12
    assert median(taken) <= 1.1 * middle(events(), held.attend, 32, warm=16)
    assert median(taken) < middle(end_to_end(), held.attend, 16)


def test_a_call_that_can_not_be_captured_falls_back_and_leaves_torch_as_it_was():
    held = decoding()
    inner, stream = held.attend, torch.cuda.current_stream()
    held.attend = lambda: inner() * float(torch.rand(1, device=CUDA).item() >= 0)
    clock = graph_clock(held)
    assert clock.name == "e2e"
    assert clock.flags[0].startswith("timed without a CUDA graph: the call can't be captured")
    assert len(clock.samples(held.before, held.run, 4)) == 4
    assert torch.cuda.current_stream() == stream
    assert torch.rand(8, device=CUDA).isfinite().all()  # a failed capture leaves this broken
    assert graph_clock(decoding()).name == "graph"


def test_the_driver_and_torch_mean_the_same_board(gpu, board):
    found = nvml.uuid_of(CUDA)
    assert isinstance(found, nvml.Absent) or found == board.uuid
    assert board.name() == torch.cuda.get_device_name()
    for question in ("sm_mhz", "most_sm_mhz", "temperature_c", "power_limit_w"):
        assert getattr(board, question)() > 0
    assert isinstance(board.reasons(), frozenset)


def test_joules_of_a_product_lie_between_idle_and_the_power_limit(board):
    counter = counter_for(CUDA)
    if isinstance(counter, Energy):
        pytest.skip(counter.why)
    call = product(8192)
    got = measure_energy(1, call, nothing, counter)
    assert got.why == ""
    apart = middle(events(), call, 16, warm=8)
    watts = got.gross_joules / got.call_s
    assert got.idle_w < watts < 1.1 * board.power_limit_w(), (got, apart)
    assert apart < got.call_s < 2 * apart  # the card is slower when it is hot
    assert 0 < got.joules < got.gross_joules


def test_the_step_of_a_decoder_with_a_memory_of_its_own_is_replayed():
    shape = 4, 8, 8, 1, 4096, 64, 64
    problem = Problem(*shape, "bfloat16", Mask.parse("causal"), "decode", device=CUDA)
    found = probe(Job(impls.table().find("linear.elu"), problem), 1.0)
    assert (found.reason, found.clock) == ("", "graph")


@pytest.mark.parametrize("late", [True, False])
def test_an_output_is_there_for_what_is_queued_after_it(late):
    (plant,) = [plant for plant in PLANTS if plant.problem.device == CUDA]
    row = plant.row if late else impls.table().find("matmul")
    attend = load_function(row.build)(plant.problem, **row.chosen)
    inputs = make(plant.problem, 0)
    for _ in range(3):  # memory that torch keeps holds what the calls before have left
        with pytest.raises(Wrong, match="work was put off") if late else nullcontext():
            check_nothing_goes_on(plant.problem, attend, inputs)
