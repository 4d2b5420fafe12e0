"""The dense variants and the mean, against softmax attention as a plain loop in float64.

Precisions, other inputs and phases are asked by the gate, in test_gate_cells.
"""

from functools import cache

import numpy as np
import pytest
import torch

import impls
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import cost, differentiated, inputs, made, problem

TABLE = impls.table()
ROWS = [row for row in TABLE.rows.values() if row.family == "dense" or row.name == "mean_v"]
NAMES = [row.name for row in ROWS if "cpu" in row.devices and row.name != "compiled"]
NAMES += ["chunked?block=5", "online?q_block=4&k_block=3"]  # blocks that cut the problems below
EXACT = [name for name in NAMES if TABLE.find(name).exact]
FEW = ["matmul", "sdpa.flash", "chunked?block=5", "online?q_block=4&k_block=3", "mean_v"]


def table(*extent, of=(-np.inf, 0.5, -1.25, 2.0), blind=None):
    made = np.random.default_rng(1).choice(of, extent)
    if blind is not None:
        made[..., blind, :] = min(of)
    return made


CAUSAL, ALIBI, WINDOW = ("causal", ()), ("alibi", ()), ("window", (5, 2))
BLIND, BIAS = ("padding", (0, 11)), ("bias", table(2, 4, 17, 17, blind=3))
DENSE = ("dense", table(2, 1, 17, 17, of=(False, True), blind=5))
GROUPED, SHORT, LONG = {"kv_heads": 2}, {"q_len": 5, "kv_len": 13}, {"q_len": 13, "kv_len": 5}
MASKS = {  # asked of every row: conditions, and what is changed of the ordinary problem
    "none": ((), {}),
    "causal": ((CAUSAL,), GROUPED),
    "window": ((WINDOW,), {}),
    "prefix": ((("prefix", (9,)),), {}),
    "document": ((("document", (5, 1, 11)),), {}),
    "padding": ((BLIND,), GROUPED),
    "causal+alibi": ((CAUSAL, ALIBI), {"kv_heads": 1}),
    "bias": ((BIAS,), GROUPED),
    "dense": ((DENSE,), {}),
}
SHAPES = {  # asked of a few
    "padding+window": ((BLIND, WINDOW), {}),
    "causal+bias+alibi": ((CAUSAL, ("bias", table(1, 4, 17, 17)), ALIBI), {}),
    "causal-short": ((CAUSAL,), SHORT),
    "causal-long": ((CAUSAL,), {**LONG, **GROUPED}),
    "causal-upper-left-short": ((CAUSAL, "upper-left"), SHORT),
    "window-upper-left-long": ((("window", (2, 1)), ALIBI, "upper-left"), LONG),
    "one-query": ((CAUSAL,), {"q_len": 1, "kv_len": 29, **GROUPED}),
    "six-heads": ((ALIBI,), {"heads": 6, "kv_heads": 3}),
    "odd": ((CAUSAL, ALIBI), {"q_len": 31, "kv_len": 31, "head_dim": 7, "v_head_dim": 7}),
    "wide-values": ((BLIND, ALIBI), {"v_head_dim": 11, **GROUPED}),
}
CASES = {**MASKS, **SHAPES}


def taken(name, case):
    """Whether the row takes the case: all, but for what its own limits exclude."""
    row, (conditions, changes) = TABLE.find(name), CASES[case]
    kinds = {kind for kind, *_ in conditions if kind != "u"}
    same_width = changes.get("head_dim", 8) == changes.get("v_head_dim", 8)
    return kinds <= set(row.on("cpu", "masks")) and (row.value_dim or same_width)


ASKED = [(n, c) for n in NAMES for c in MASKS if taken(n, c)]
ASKED += [(n, c) for n in FEW for c in SHAPES if taken(n, c)]


@cache
def world(brute, case):
    """The problem, its tensors, what is visible, what is added, and the output by the loop."""
    conditions, changes = CASES[case]
    corner, conditions = "upper-left" in conditions, [c for c in conditions if c != "upper-left"]
    extent = {"kv_heads": 4, "head_dim": 8, "v_head_dim": 8, **changes}
    given = problem(brute.text(conditions, corner), 17, **extent)
    shape = (given.batch, given.heads, given.q_len, given.kv_len)
    seen, bias = (f(conditions, shape, corner) for f in (brute.visible, brute.bias))
    tensors = inputs(given, seed=sum(map(ord, case)))
    arrays = [x.numpy() for x in tensors]
    want = brute.attention(*arrays, seen, bias, given.scale), brute.mean(arrays[2], seen)
    return given, tensors, torch.from_numpy(seen), bias, [torch.from_numpy(x) for x in want]


def plain(given, seen, bias, exact):
    """The same for autograd, all matrices written out."""
    blind, bias = ~seen.any(-1, keepdim=True), torch.from_numpy(bias).masked_fill(~seen, 0.0)

    def attend(q, k, v):
        keys, values = (x.repeat_interleave(given.group, 1) for x in (k, v))
        scores = torch.einsum("bhnd,bhmd->bhnm", q, keys) * given.scale + bias
        weights = scores.masked_fill(~(seen | blind), -torch.inf).softmax(-1)
        if not exact:
            weights = seen.double() / seen.sum(-1, keepdim=True).clamp(min=1) + 0.0 * weights
        return torch.einsum("bhnm,bhme->bhne", weights.masked_fill(blind, 0.0), values)

    return attend


def near(got, want, most=1e-12):
    """By the relative error of the whole, what is truly zero by its size alone."""
    assert got.shape == want.shape
    assert float((got - want).norm()) <= most * max(float(want.norm()), 1.0)


@pytest.mark.parametrize(("name", "case"), ASKED)
def test_output_and_gradients_are_those_of_the_plain_loop(brute, name, case):
    given, tensors, seen, bias, wants = world(brute, case)
    row = TABLE.find(name)
    want = wants[0 if row.exact else 1]
    for phase in ("decode", "forward"):
        out = made(name, given.with_(phase=phase))[0](*tensors)
        near(out, want)
        assert not out[~seen.any(-1)].any(), "a row that sees nothing gives zeros"
    if "train" in row.on("cpu", "phases"):
        attend, _ = made(name, given.with_(phase="train"))
        trues = differentiated(plain(given, seen, bias, row.exact), tensors)
        for got, true in zip(differentiated(attend, tensors), trues, strict=True):
            near(got, true)


@pytest.mark.parametrize("name", [n for n in EXACT if n != "exp.naive"])
def test_logits_in_the_hundreds_are_exact_all_the_same(brute, name):
    given, (q, k, v), seen, bias, _ = world(brute, "causal")
    q, k = q * 12.0, k * 12.0
    assert (q @ k.repeat_interleave(2, 1).mT * given.scale).abs().max() > 300
    near(made(name, given)[0](q, k, v), plain(given, seen, bias, True)(q, k, v))


@pytest.mark.parametrize(
    ("dtype", "right", "over"), [("float32", 88, 89), ("bfloat16", 88, 89), ("float16", 11, 12)]
)
def test_naive_exponentials_overflow_just_where_they_say(dtype, right, over):
    given = Problem(heads=1, kv_heads=1, q_len=1, kv_len=1, head_dim=1, v_head_dim=1, dtype=dtype)
    attend, _ = made("exp.naive", given)
    one = torch.ones(1, 1, 1, 1, dtype=getattr(torch, dtype))
    assert attend(one * right, one, one).item() == 1.0
    assert not attend(one * over, one, one).isfinite().all()


@pytest.mark.parametrize("case", [c for c in CASES if taken("mean_v", c)])
def test_the_definition_of_mean_v_is_the_mean_of_the_visible_values(brute, case):
    given, tensors, _, _, (_, mean) = world(brute, case)
    rows = torch.arange(given.q_len).flip(0)[:3]
    near(made("mean_v", given)[1](*tensors, rows), mean[:, :, rows], 1e-13)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("mask", ["causal+alibi", "padding:0,11"])
def test_compiled_is_exact_forward_and_backward(verdict, mask):
    assert verdict("compiled", problem(mask, 17, dtype="float32", phase="train")).reason is None


# ---- what they cost ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_flops_are_four_d_for_each_pair_that_the_mask_lets_meet(brute, case):
    given, _, seen, *_ = world(brute, case)
    each_pair = 2 * (given.head_dim + given.v_head_dim)
    for phase, times in (("forward", 1), ("backward", 2), ("train", 3)):
        found = cost("matmul", given.with_(phase=phase)).flops
        assert found == times * each_pair * int(seen.sum())


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.exact])
def test_every_exact_row_is_charged_the_work_of_the_mathematics(monkeypatch, name):
    """However its threads are spelled: OpenMP takes a count for each level of nesting."""
    for phase, threads in (("forward", "4,2"), ("train", "")):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        given = Problem(q_len=33, mask=Mask.parse("causal"), phase=phase)
        assert cost(name, given)[:2] == impls.cost.softmax(given)[:2]
