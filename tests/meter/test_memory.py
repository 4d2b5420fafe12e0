"""Memory as observed, against the matrices that each form must hold, and what is said of it."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd.profiler import profile

import impls
from attnbench.core.device import Device
from attnbench.gate.inputs import make
from attnbench.meter import memory
from attnbench.meter.memory import observe, warm_profiler
from impls.dense.matmul import build
from impls.loading import load_function
from impls.problem import Problem

N = 512
SCORES, OUTPUT = 4 * N * N * 4, 4 * N * 32 * 4
MIB, GIB = 1 << 20, 1 << 30
SMALL = Problem(heads=1, kv_heads=1, q_len=8, kv_len=8, head_dim=4, v_head_dim=4)


def test_the_peak_is_what_the_variants_own_formula_says_and_the_matrices_that_must_be_there():
    observed = {}
    names = ("einsum", "matmul", "inplace", "sdpa.flash", "numpy")
    for name, phase in [*((name, "forward") for name in names), ("matmul", "train")]:
        row = impls.table().find(name)
        sizes = {"heads": 4, "kv_heads": 4, "q_len": N, "kv_len": N}
        p = Problem(**sizes, head_dim=32, v_head_dim=32, phase=phase)
        given = p, load_function(row.build)(p), make(p, 0)
        dout = torch.ones(1, 4, N, 32) if p.gradients else None
        for _ in range(2):
            seen = observe(*given, dout, load_function(row.cost)(p).peak_bytes)
        observed[f"{name} {phase}"] = found = seen.memory
        arrays = name == "numpy"
        near = pytest.approx(found.expected_bytes, rel=0.05 if arrays else 0.01)
        assert found.peak_bytes == near, name
        assert found.method == "allocation events" + " and traced arrays" * arrays
        assert (found.flags, len(seen.kernels)) == ([], len(set(seen.kernels)))
        assert (found.saved_bytes is None) == (phase == "forward")
    asked = ("matmul forward", "inplace forward", "sdpa.flash forward", "matmul train")
    two, one, none, train = (observed[name] for name in asked)
    assert two.peak_bytes == pytest.approx(2 * SCORES, rel=0.01)
    assert one.peak_bytes == pytest.approx(SCORES + OUTPUT, rel=0.01)
    assert OUTPUT < none.peak_bytes < SCORES / 2
    assert train.saved_bytes == pytest.approx(SCORES, rel=0.01)
    assert train.peak_bytes > 3 * SCORES


def test_no_kernel_is_traced_in_a_process_that_goes_on_to_take_times(gpu, monkeypatch):
    asked = []

    def noted(use_device=None, **more):
        asked.append(use_device)
        return profile(**more)

    monkeypatch.setattr(memory, "profile", noted)
    monkeypatch.setattr(gpu, "reset_peak", lambda: 1000)
    monkeypatch.setattr(gpu, "peak_bytes", lambda: 5000)
    monkeypatch.setattr(gpu, "live_bytes", lambda: 1000)
    p = Problem(q_len=16, kv_len=16, phase="train")
    warm_profiler()
    given = p.with_(device="cuda"), build(p), make(p, 0), torch.ones(p.output_shape)
    seen = observe(*given, None)
    assert asked and set(asked) == {None}
    assert seen.memory.peak_bytes == 4000
    assert "aten::bmm" in seen.ran & set(seen.kernels)


def event(at, name=memory.MEMORY, nbytes=0):
    return name, SimpleNamespace(start_ns=lambda: at, nbytes=lambda: nbytes)


STEPS = [event(5, nbytes=-120), event(1, nbytes=100), event(7, nbytes=10), event(3, nbytes=50)]


@pytest.mark.parametrize(("at", "between"), [(0, 0), (2, 100), (4, 150), (6, 30), (9, 40)])
def test_the_peak_is_the_highest_sum_and_saved_what_was_there_between_the_phases(at, between):
    assert memory._replay(STEPS) == (150, None)
    assert memory._replay([*STEPS, event(at, memory.BETWEEN)]) == (150, between)


@pytest.fixture
def seen(monkeypatch):
    """What is observed of a call whose readings are given."""

    def observed(peak=MIB, between=None, high=0, problem=SMALL):
        monkeypatch.setattr(memory, "_replay", lambda events: (peak, between))
        monkeypatch.setattr(Device, "reset_peak", lambda self: 1000)
        monkeypatch.setattr(Device, "peak_bytes", lambda self: 1000 + high)
        dout = torch.ones(problem.output_shape) if problem.gradients else None
        return memory.observe(problem, build(problem), make(problem, 0), dout, None).memory

    return observed


def test_what_speaks_against_the_running_sum_is_said(seen):
    found = seen(high=33 * MIB)
    assert (found.peak_bytes, found.method, found.flags) == (MIB, "allocation events", [])
    found = seen(high=40 * MIB)
    assert (found.peak_bytes, found.method) == (40 * MIB, "high-water mark")
    said = "the process grew by 40 MiB: memory taken past torch's allocator"
    assert found.flags == [said]
    train = seen(between=1000, problem=SMALL.with_(phase="train"))
    assert train.saved_bytes == 1000 - 8 * 4 * 4


def test_what_allocated_less_than_its_output_is_flagged(seen):
    long = SMALL.with_(q_len=4096, v_head_dim=64)  # far more than Python's own objects take
    found = seen(peak=1000, problem=long)
    assert found.method == "allocation events and traced arrays"
    assert "it allocated less than its output" in found.flags[0]
    assert seen(peak=4096 * 64 * 4, problem=long).flags == []


def test_what_torch_keeps_is_given_back_and_what_does_not_fit_even_then_is_said():
    class Gpu(Device):
        """Of what torch keeps, 5 GiB are in use."""

        free, kept = 0, 0

        def driver_free_bytes(self):
            return self.free * GIB

        def free_bytes(self):
            return (self.free + self.kept - 5) * GIB

        def release(self):
            self.free, self.kept = self.free + self.kept - 5, 5

    for need, left in ((9, 10), (10, 40), (36, 40)):
        gpu = Gpu("cuda")
        gpu.free, gpu.kept = 10, 35
        memory.check_room(need * GIB, gpu, "it", "above")
        assert gpu.free == left
    says = r"^predicted, not run: it needs 37 GiB with its inputs and 40 GiB are free$"
    with pytest.raises(MemoryError, match=says):
        memory.check_room(37 * GIB, gpu, "it", "with")
