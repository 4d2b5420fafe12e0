"""The dense variants and the mean, against softmax attention as a plain loop in float64.

Gradients, precisions, shapes and phases are asked by the gate, in test_gate_cells.
"""

from functools import cache

import numpy as np
import pytest
import torch

import impls
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import cost, inputs, made, problem

TABLE = impls.table()
ROWS = [row for row in TABLE.rows.values() if row.family == "dense" or row.name == "mean_v"]
NAMES = [row.name for row in ROWS if "cpu" in row.devices and row.name != "compiled"]
NAMES += ["chunked?block=5", "online?q_block=4&k_block=3", "online?q_block=1000&k_block=1"]


def table(*extent, of=(-np.inf, 0.5, -1.25, 2.0), blind=None):
    made = np.random.default_rng(1).choice(of, extent)
    if blind is not None:
        made[..., blind, :] = min(of)
    return made


CAUSAL, ALIBI, BLIND = ("causal", ()), ("alibi", ()), ("padding", (0, 11))
DENSE = ("dense", table(2, 1, 17, 17, of=(False, True), blind=5))
CASES = {  # conditions, and what is changed of the ordinary problem
    "none": ((), {}),
    "causal": ((CAUSAL,), {"kv_heads": 2}),
    "window": ((("window", (5, 2)),), {}),
    "prefix": ((("prefix", (9,)),), {}),
    "document": ((("document", (5, 1, 11)),), {}),
    "padding": ((BLIND,), {"kv_heads": 2}),
    "causal+alibi": ((CAUSAL, ALIBI), {"kv_heads": 1}),
    "bias": ((("bias", table(2, 4, 17, 17, blind=3)),), {"kv_heads": 2}),
    "dense": ((DENSE,), {}),
    "causal+bias+alibi": ((CAUSAL, ("bias", table(1, 4, 17, 17)), ALIBI), {}),
    "causal-long": ((CAUSAL,), {"q_len": 13, "kv_len": 5, "kv_heads": 2}),
    "causal-upper-left-short": ((CAUSAL, "upper-left"), {"q_len": 5, "kv_len": 13}),
    "six-heads": ((ALIBI,), {"heads": 6, "kv_heads": 3}),
}


def taken(name, case):
    kinds = {c[0] for c in CASES[case][0] if isinstance(c, tuple)}
    return kinds <= set(TABLE.find(name).on("cpu", "masks"))


@cache
def world(brute, case):
    """The problem, its tensors, what is visible, and the outputs by the loop: softmax, mean."""
    conditions, changes = CASES[case]
    corner, conditions = "upper-left" in conditions, [c for c in conditions if c != "upper-left"]
    extent = {"kv_heads": 4, "head_dim": 8, "v_head_dim": 8, **changes}
    given = problem(brute.text(conditions, corner), 17, **extent)
    seen, bias = (f(conditions, given.shape, corner) for f in (brute.visible, brute.bias))
    tensors = inputs(given, seed=sum(map(ord, case)))
    arrays = [x.numpy() for x in tensors]
    want = brute.attention(*arrays, seen, bias, given.scale), brute.mean(arrays[2], seen)
    return given, tensors, torch.from_numpy(seen), [torch.from_numpy(x) for x in want]


def near(got, want, most=1e-12):
    """By the relative error of the whole, what is truly zero by its size alone."""
    assert got.shape == want.shape
    assert float((got - want).norm()) <= most * max(float(want.norm()), 1.0)


@pytest.mark.parametrize(("name", "case"), [(n, c) for n in NAMES for c in CASES if taken(n, c)])
def test_the_output_is_that_of_the_plain_loop(brute, name, case):
    given, tensors, seen, wants = world(brute, case)
    for phase in ("decode", "forward"):
        attend, define = made(name, given.with_(phase=phase))
        out = attend(*tensors)
        near(out, wants[name == "mean_v"])
        assert not out[~seen.any(-1)].any(), "a row that sees nothing gives zeros"
    if define:
        rows = torch.arange(given.q_len).flip(0)[:3]
        near(define(*tensors, rows), wants[1][:, :, rows], 1e-13)


@pytest.mark.parametrize(
    ("dtype", "right", "over"), [("float32", 88, 89), ("bfloat16", 88, 89), ("float16", 11, 12)]
)
def test_naive_exponentials_overflow_just_where_they_say(dtype, right, over):
    given = Problem(heads=1, kv_heads=1, q_len=1, kv_len=1, head_dim=1, v_head_dim=1, dtype=dtype)
    attend, _ = made("exp.naive", given)
    one = torch.ones(1, 1, 1, 1, dtype=getattr(torch, dtype))
    assert attend(one * right, one, one).item() == 1.0
    assert not attend(one * over, one, one).isfinite().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("mask", ["causal+alibi", "padding:0,11"])
def test_compiled_is_exact_forward_and_backward(verdict, mask):
    assert verdict("compiled", problem(mask, 17, dtype="float32", phase="train")).reason is None


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.exact])
def test_every_exact_row_is_charged_the_work_of_the_mathematics(monkeypatch, name):
    """However its threads are spelled: OpenMP takes a count for each level of nesting."""
    for phase, threads in (("forward", "4,2"), ("train", "")):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        given = Problem(q_len=33, mask=Mask.parse("causal"), phase=phase)
        assert cost(name, given)[:2] == impls.cost.softmax(given)[:2]
