"""Memory as observed, against the size of the matrices that each form must hold."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from attnbench.core.settings import Settings, environment
from attnbench.gate.inputs import make
from attnbench.meter import memory
from attnbench.meter import profile as looks
from attnbench.meter.memory import OPERATORS, named, observe, own_of, warm_profiler
from attnbench.sweep import worker
from impls import table
from impls.loading import load_function
from impls.problem import Problem

CODE = """
import json, torch, impls
from attnbench.meter.memory import observe, warm_profiler
from attnbench.gate.inputs import make
from impls.loading import load_function
from impls.problem import Problem

torch.set_num_threads(1)
warm_profiler()
ASKED = [(name, n, "forward") for n in (512, 1024)
         for name in ("einsum", "matmul", "baddbmm", "inplace", "sdpa.flash", "numpy")]
ASKED += [("matmul", n, "train") for n in (512, 1024)] + [("matmul", 512, "backward")]
found = {}
for name, n, phase in ASKED:
    row = impls.table().find(name)
    p = Problem(heads=4, kv_heads=4, q_len=n, kv_len=n, head_dim=32, v_head_dim=32, phase=phase)
    inputs, attend = make(p, 0), load_function(row.build)(p)
    dout = torch.ones(1, 4, n, 32) if p.gradients else None
    expected = load_function(row.cost)(p).peak_bytes
    observe(p, attend, inputs, dout, expected)
    seen = observe(p, attend, inputs, dout, expected)
    found[f"{name} {n} {phase}"] = {**seen.memory.to_dict(), "kernels": seen.kernels}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def observed():
    """Everything observed in one process that was started as a worker is."""
    path = os.pathsep.join(filter(None, sys.path))
    said = subprocess.run(
        [sys.executable, "-c", CODE],
        text=True,
        capture_output=True,
        check=True,
        timeout=120,
        env={**os.environ, **environment(1), "PYTHONPATH": path},
    )
    return json.loads(said.stdout.splitlines()[-1])


def scores(n):
    return 4 * n * n * 4


def output(n):
    return 4 * n * 32 * 4


@pytest.mark.parametrize("n", [512, 1024])
@pytest.mark.parametrize("name", ["einsum", "matmul", "baddbmm", "inplace", "sdpa.flash"])
def test_the_peak_is_what_the_variants_own_formula_says(observed, name, n):
    seen = observed[f"{name} {n} forward"]
    assert seen["peak_bytes"] == pytest.approx(seen["expected_bytes"], rel=0.01)
    assert seen["method"] == "allocation events"
    assert seen["saved_bytes"] is None
    assert seen["flags"] == []


@pytest.mark.parametrize("n", [512, 1024])
def test_the_peak_is_the_matrices_that_must_be_there(observed, n):
    two = observed[f"matmul {n} forward"]["peak_bytes"]
    one = observed[f"inplace {n} forward"]["peak_bytes"]
    none = observed[f"sdpa.flash {n} forward"]["peak_bytes"]
    assert two == pytest.approx(2 * scores(n), rel=0.01)
    assert one == pytest.approx(scores(n) + output(n), rel=0.01)
    assert output(n) < none < scores(n) / 2


@pytest.mark.parametrize("n", [512, 1024])
def test_training_keeps_one_matrix_and_peaks_as_its_formula_says(observed, n):
    seen = observed[f"matmul {n} train"]
    assert seen["saved_bytes"] == pytest.approx(scores(n), rel=0.01)
    assert seen["peak_bytes"] == pytest.approx(seen["expected_bytes"], rel=0.01)
    assert seen["peak_bytes"] > 3 * scores(n)


def test_the_backward_phase_is_seen_with_its_forward(observed):
    assert observed["matmul 512 backward"]["peak_bytes"] == pytest.approx(
        observed["matmul 512 train"]["peak_bytes"], rel=0.01
    )


@pytest.mark.parametrize("n", [512, 1024])
def test_arrays_of_numpy_are_counted(observed, n):
    seen = observed[f"numpy {n} forward"]
    assert seen["peak_bytes"] == pytest.approx(seen["expected_bytes"], rel=0.05)
    assert seen["method"] == "allocation events and traced arrays"


def test_the_operators_that_ran_are_named(observed):
    assert "aten::bmm" in observed["matmul 512 forward"]["kernels"]
    flash = observed["sdpa.flash 512 forward"]["kernels"]
    assert any("flash_attention" in name for name in flash)
    assert not any("bmm" in name for name in flash)
    for seen in observed.values():
        assert len(seen["kernels"]) == len(set(seen["kernels"])) <= 12


def test_operators_have_the_times_of_their_own_that_torch_finds():
    def work():
        x = torch.randn(64, 64, requires_grad=True)
        y = torch.nn.functional.layer_norm(x @ x.T, (64,)).softmax(-1)
        y.cumsum(0).square().sum().backward()

    work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    table = {
        event.key: event.self_cpu_time_total
        for event in seen.key_averages()
        if event.key.startswith(OPERATORS) and event.self_cpu_time_total > 0
    }
    by_time = sorted(table, key=lambda name: -table[name])
    ours = memory._operators(own_of(named(seen.profiler.kineto_results.events())))
    assert ours[0] == by_time[0]
    assert set(ours[:6]) <= set(by_time[:8])
    assert set(ours) <= set(table)


# ---- on a GPU that isn't there -------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """The activities that profiles are asked for, in order, on a machine that has a GPU."""
    found = []

    def noted(activities, **more):
        found.append(set(activities))
        return profile(activities=[ProfilerActivity.CPU], **more)

    stats = {"requested_bytes.all.current": 1000, "requested_bytes.all.peak": 5000}
    monkeypatch.setattr(memory, "profile", noted)
    monkeypatch.setattr(looks, "profile", noted)
    for name, value in (
        ("is_available", True),
        ("synchronize", None),
        ("memory_stats", stats),
        ("reset_peak_memory_stats", None),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    return found


def test_no_kernel_is_traced_in_a_process_that_goes_on_to_take_times(asked):
    p = Problem(q_len=16, kv_len=16, phase="train")
    inputs = make(p, 0)
    attend = load_function(table().find("matmul").build)(p)
    warm_profiler()
    seen = observe(p.with_(device="cuda"), attend, inputs, torch.ones(p.output_shape), None)
    assert asked == [{ProfilerActivity.CPU}] * 3
    assert seen.memory.peak_bytes == 4000
    assert "aten::bmm" in seen.ran & set(seen.kernels)
    assert 7 <= seen.launches <= 40  # two products forward, four backward, a softmax and its own


def test_a_gpus_kernels_are_traced_where_no_clock_runs_any_more(asked, monkeypatch):
    order, plain = [], {"forward_s": 1e-3, "backward_s": None, "total_s": 1e-3}
    monkeypatch.setattr(looks, "_plain", lambda *_: order.append("timed") or plain)
    monkeypatch.setattr(looks, "observe", lambda *_: order.append(list(asked)) or 1 / 0)
    row, p = table().find("matmul"), Problem(q_len=16, kv_len=16)
    ready = SimpleNamespace(
        job=SimpleNamespace(variant=row, problem=p.with_(device="cuda")),
        cost=None,
        attend=load_function(row.build)(p),
        values=(make(p, 0), None),
    )
    with pytest.raises(ZeroDivisionError):
        looks.profiled(ready, None)
    assert order == ["timed", [{ProfilerActivity.CPU, ProfilerActivity.CUDA}] * 2]


def test_a_worker_that_is_to_trace_a_gpu_has_made_no_profile_before(asked):
    for warm, profiles in ((False, 0), (True, 2)):
        told = asdict(Settings(warm_profiler=warm))
        assert "ready" in worker._answer(None, {"apply": told})
        assert len(asked) == profiles
