"""Memory as observed, against the size of the matrices that each form must hold."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from attnbench.measure import memory
from attnbench.measure.events import OPERATORS, named
from attnbench.measure.settings import environment

CODE = """
import json, torch, impls
from attnbench.measure.memory import observe, warm_profiler
from attnbench.truth.inputs import make
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
        [sys.executable, "-c", CODE], text=True, capture_output=True, check=True, timeout=120,
        env={**os.environ, **environment(1), "PYTHONPATH": path},
    )  # fmt: skip
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
    ours = memory._operators(named(seen.profiler.kineto_results.events()))
    assert ours[0] == by_time[0]
    assert set(ours[:6]) <= set(by_time[:8])
    assert set(ours) <= set(table)
