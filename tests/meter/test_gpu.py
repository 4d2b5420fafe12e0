"""The seam to torch.cuda, with recorders in the place of torch's functions."""

import gc
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from attnbench.meter import clocks
from attnbench.meter.clocks import CudaGpu


class Recorder:
    """Notes in which order torch would have been called, and what was the current stream."""

    def __init__(self, monkeypatch):
        self.log, self.stream, self.fails = [], "default", None
        self.number = 0
        for name, value in {
            "_synchronize": lambda device: self.log.append(f"synchronize {device}"),
            "_Event": lambda enable_timing: SimpleNamespace(
                record=lambda stream: self.log.append(f"record on {stream.name}"),
                elapsed_time=lambda other: 2.5,
            ),
            "_sleep": lambda cycles: self.log.append(f"sleep {cycles}"),
            "_current_stream": lambda device=None: self._of(self.stream),
            "_set_stream": self._set,
            "_Stream": lambda device: self._of("side"),
            "_on": self._block,
            "_Graph": self._new,
            "_graph": self._capturing,
            "_new_pool": lambda: (0, 7),
            "_end_pool": lambda index, pool: self.log.append(f"end pool {pool}"),
        }.items():
            monkeypatch.setattr(clocks, name, value)
        self.gpu = object.__new__(CudaGpu)
        self.gpu.device = torch.device("cuda", 1)
        self.gpu._flushed = torch.ones(4, dtype=torch.int8)

    def _of(self, name):
        waits = lambda other: self.log.append(f"{name} waits for {other.name}")  # noqa: E731
        return SimpleNamespace(name=name, wait_stream=waits)

    def _set(self, stream):
        self.stream = stream.name

    def _new(self):
        self.number += 1
        replay = f"replay {self.number}"
        return SimpleNamespace(number=self.number, replay=lambda: self.log.append(replay))

    @contextmanager
    def _block(self, device):
        yield

    @contextmanager
    def _capturing(self, graph, pool=None, stream=None):
        """As torch's: it sets the stream, and forgets to put it back where the end fails."""
        before, self.stream = self.stream, stream.name
        self.log.append(f"begin {graph.number}")
        try:
            yield
        finally:
            self.log.append(f"end {graph.number}")
            if self.fails and graph.number == 1:
                self.stream = "lost"
                raise RuntimeError(self.fails)
        self.stream = before

    def call(self):
        self.log.append(f"call on {self.stream}, collector {'on' if gc.isenabled() else 'off'}")


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


def test_a_call_is_warmed_up_and_captured_on_a_stream_of_its_own_with_the_collector_off(recorder):
    replay = recorder.gpu.capture(recorder.call)
    warm = ["call on side, collector off"] * 3
    assert recorder.log == [
        "side waits for default",
        *warm,
        "begin 1",
        warm[0],
        "end 1",
        "default waits for side",
    ]
    assert recorder.stream == "default"
    assert gc.isenabled()
    replay()
    assert recorder.log[-1] == "replay 1"


def test_after_a_capture_that_failed_torch_is_as_it_was(recorder):
    recorder.fails = "operation not permitted when stream is capturing"
    with pytest.raises(RuntimeError, match="not permitted"):
        recorder.gpu.capture(recorder.call)
    after = recorder.log[recorder.log.index("end 1") :]
    assert after == [
        "end 1",
        "synchronize cuda:1",
        "end pool (0, 7)",
        "begin 2",
        "end 2",
        "default waits for side",
    ]
    assert recorder.stream == "default"
    assert gc.isenabled()


def test_a_call_that_raises_is_as_one_that_can_not_be_captured(recorder):
    def call():
        raise KeyError("x")

    with pytest.raises(KeyError):
        recorder.gpu.capture(call)
    assert recorder.stream == "default"
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(recorder):
    gc.disable()
    try:
        recorder.gpu.capture(recorder.call)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_events_are_recorded_where_the_call_queues_and_read_in_seconds(recorder):
    gpu = recorder.gpu
    recorder.stream = "another"
    event = gpu.event()
    gpu.record(event)
    assert recorder.log == ["record on another"]
    assert gpu.elapsed(event, gpu.event()) == pytest.approx(0.0025)


def test_the_rest_is_passed_on(recorder):
    gpu = recorder.gpu
    gpu.sleep(123)
    gpu.synchronize()
    gpu.flush()
    assert recorder.log == ["sleep 123", "synchronize cuda:1"]
    assert gpu._flushed.tolist() == [0, 0, 0, 0]
    assert 0 <= gpu.now() <= gpu.now()


def test_a_torch_that_has_no_sleeping_kernel_does_without(recorder, monkeypatch):
    monkeypatch.setattr(clocks, "_sleep", None)
    recorder.gpu.sleep(123)
    assert recorder.log == []


def test_the_torch_that_is_installed_has_all_of_them():
    assert clocks._sleep is not None
    assert clocks._end_pool is not None
    assert {"uuid", "L2_cache_size"} <= set(_annotations("_CudaDeviceProperties"))


def _annotations(name):
    """The attributes that torch's own stub gives a class of its C++ side."""
    text = (torch.__path__[0] + "/_C/__init__.pyi",)
    with open(text[0]) as stub:  # noqa: PTH123
        body = stub.read().partition(f"class {name}")[2].partition("\nclass ")[0]
    return [line.split(":")[0].strip() for line in body.splitlines() if ":" in line]


@pytest.mark.parametrize(
    ("device", "there", "done"),
    [
        ("cpu", True, []),
        ("cuda", False, []),
        ("cuda", True, ["set 0", "wait"]),
        ("cuda:1", True, ["set 1", "wait"]),
        ("cuda:7", True, []),
    ],
)
def test_a_cells_gpu_is_the_current_one_and_has_its_context(monkeypatch, device, there, done):
    log = []

    def set_device(index):
        if index == 7:
            raise RuntimeError("CUDA error: invalid device ordinal")
        log.append(f"set {index}")

    monkeypatch.setattr(clocks, "_available", lambda: there)
    monkeypatch.setattr(clocks, "_set_device", set_device)
    monkeypatch.setattr(clocks, "_synchronize", lambda: log.append("wait"))
    clocks.begin(device)
    assert log == done
