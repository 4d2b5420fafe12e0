"""Inputs; the oracle and the yardsticks against dense NumPy; rows, and the measures of an error."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.gate import oracle, reference
from attnbench.gate.budget import EPSILON
from attnbench.gate.inputs import make
from attnbench.gate.oracle import compare, exact, recomputed, sample_rows, softmax_define
from attnbench.gate.reference import defined, judge
from impls.lowrank.mean_v import definition as mean_definition
from impls.masks import Mask
from impls.problem import INPUTS, Problem
from tests.brute import bias, saved, visible

MASKS = (
    "none", "causal", "window:3,2", "prefix:9", "document:5,12,7", "padding:0,11", "alibi",
    "leftpad:9,0", "causal+alibi", "causal+padding:20,3",
)  # fmt: skip
GROUPED = {"heads": 4, "kv_heads": 2}
WIDE = {"heads": 4, "kv_heads": 1, "v_head_dim": 5}
CASES = [
    *((mask, more) for mask in MASKS for more in ({}, GROUPED)),
    *((mask, WIDE) for mask in ("none", "causal+alibi")),
    *(
        (mask + corner, {"q_len": q_len, "kv_len": kv_len})
        for mask in ("causal", "window:3,2", "causal+alibi")
        for corner in ("", "@upper-left")
        for q_len, kv_len in ((7, 24), (24, 7))
    ),
    ("causal", {"q_len": 1}),
    ("causal", {"kv_len": 1}),
    ("causal", {"inputs": "peaky", "dtype": "bfloat16"}),
    ("causal", {"inputs": "outliers", "dtype": "float64"}),
    ("causal", {"inputs": "equal_keys"}),
    *((extent, {}) for extent in ((24, 24), (1, 2, 1, 24), (2, 2, 24, 24))),  # of a bias
]


def wanted(truth, problem, inputs, dout):
    """The dense form under what each pair of the mask allows and adds."""
    mask, shape = str(problem.mask), problem.shape
    return truth.dense(problem, inputs, dout, visible(mask, shape), bias(mask, shape))


def upstream(problem):
    return torch.randn(problem.output_shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("mask", "more"), CASES)
def test_output_gradients_and_entropy_are_those_of_dense_numpy(truth, mask, more):
    if isinstance(mask, tuple):  # a bias whose infinities hide, and a row that sees nothing
        drawn = np.random.default_rng(3).choice([-np.inf, 0.25, -1.5, 3.0], mask)
        drawn[..., 4:5, :] = -np.inf
        mask = saved("bias", drawn)
    problem = truth.problem(mask, **more)
    inputs, dout = make(problem, 0), upstream(problem)
    want = wanted(truth, problem, inputs, dout)
    got = exact(problem, *inputs.values(), torch.arange(problem.q_len), dout)
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, want, strict=False):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12, err_msg=name)
    assert got.entropy == pytest.approx(want[4], abs=1e-12)
    assert got.out.dtype == torch.float64


def near(got, want):
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("rows_a_block", "blocks", "with_numbers"), [(0, 24, 24), (7, 4, 12)])
@pytest.mark.parametrize("mask", ["window:3,2", "padding:0,11", "causal+alibi", "bias"])
def test_blocks_of_any_size_are_alike(truth, monkeypatch, mask, rows_a_block, blocks, with_numbers):
    """What is added is a table of each head, and counts for as much as the scores of one."""
    drawn = saved("bias", np.random.default_rng(3).standard_normal((24, 24)))
    problem = truth.problem(mask.replace("bias", drawn), **GROUPED)
    inputs, rows, dout = make(problem, 1), torch.arange(24), upstream(problem)
    whole = exact(problem, *inputs.values(), rows, dout)
    assert len(list(oracle._blocks(problem, rows, plain=False))) == 1
    monkeypatch.setattr(oracle, "BLOCK_BYTES", rows_a_block * 8 * problem.group * 24)
    cuts = len(list(oracle._blocks(problem, rows, plain=False)))
    assert cuts == (with_numbers if "alibi" in mask or "bias" in mask else blocks)
    cut = exact(problem, *inputs.values(), rows, dout)
    for a, b in zip(whole[:4], cut[:4], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    assert whole.entropy == pytest.approx(cut.entropy, rel=1e-12)


@pytest.mark.parametrize("mask", ["none", "window:3,2", "padding:0,11", "alibi"])
def test_sampled_rows_give_whole_gradients_where_the_others_have_none(truth, mask):
    problem = truth.problem(mask, **GROUPED)
    rows, inputs = torch.tensor([0, 3, 4, 17, 23]), make(problem, 2)
    dout = torch.zeros(2, 4, 24, 8)
    dout[:, :, rows] = upstream(problem)[:, :, rows]
    got = exact(problem, *inputs.values(), rows, dout[:, :, rows])
    out, dq, *rest = wanted(truth, problem, inputs, dout)
    for a, b in zip(got, (out[:, :, rows], dq[:, :, rows], *rest[:2]), strict=False):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12)
    assert exact(problem, *inputs.values(), rows)[1:4] == (None, None, None)


@settings(max_examples=40)
@given(st.integers(1, 5000), st.integers(8, 400), st.integers(0, 10))
def test_sampled_rows_are_sorted_unique_within_and_no_more_than_asked(q_len, count, seed):
    rows = sample_rows(q_len, count, seed).tolist()
    assert rows == sorted(set(rows)) == sample_rows(q_len, count, seed).tolist()
    assert rows[0] >= 0 and rows[-1] < q_len
    assert len(rows) <= max(count, 1)
    if q_len <= count:
        assert rows == list(range(q_len))
    else:
        assert len(rows) > count / 2
        assert {e for e in (0, 1, 127, 128, q_len - 2, q_len - 1) if e < q_len} <= set(rows)


ALL = ("forward", "dq", "dk", "dv")


@pytest.mark.parametrize("mask", ["none", "causal", "window:3,2", "padding:0,11", "causal+alibi"])
def test_both_plain_forms_and_what_is_wanted_are_the_dense_form(truth, mask):
    problem = truth.problem(mask, dtype="float64", phase="train", **GROUPED, v_head_dim=5)
    inputs, dout, rows = make(problem, 0), upstream(problem).double(), torch.arange(24)
    leaves = inputs.map(lambda x: x.clone().requires_grad_())
    out = softmax_define(problem)(*leaves.qkv, rows)
    kept = (out.detach(), *torch.autograd.grad(out, leaves.qkv, dout))
    again = recomputed(problem, *inputs.values(), rows, dout)
    for name, one, expected in zip(ALL, kept, wanted(truth, problem, inputs, dout), strict=False):
        near(one, expected)
        near(again[name], expected)
    problem = truth.problem(mask, phase="train", **GROUPED)
    inputs = make(problem, 0)
    softmax = judge(problem, inputs, 0).softmax  # under an upstream gradient of its own
    expected = wanted(truth, problem, inputs, softmax.dout)
    for name, one in zip(ALL, expected, strict=False):
        near(softmax.want[name], one)


@pytest.mark.parametrize("mask", ["causal", "padding:0,11"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [8, 24])
def test_plain_errors_are_about_the_dtypes_spacing(truth, monkeypatch, dtype, mask, rows):
    monkeypatch.setattr(reference, "PLAIN_SCORES", rows * 2 * 4 * 24)  # of so many rows
    problem = truth.problem(mask, dtype=dtype, phase="train", **GROUPED)
    plain = judge(problem, make(problem, 0), 0).softmax.plain
    assert set(plain) == set(ALL)
    for name, error in plain.items():
        assert 0.05 < error.relative / EPSILON[dtype] < 10, name
        assert error.worst_row >= error.relative


@pytest.mark.parametrize("mask", ["causal", "alibi", "padding:9,24", "padding:9,24+alibi"])
def test_heads_computed_together_are_those_computed_one_by_one(truth, monkeypatch, mask):
    problem = truth.problem(mask, heads=4, kv_heads=2, phase="train")
    inputs, rows = make(problem, 0), torch.tensor([0, 3, 11, 23])
    dout = torch.randn(2, 4, 4, 8, generator=torch.Generator().manual_seed(0))
    alone = exact(problem, *inputs.values(), rows, dout)
    for many in (2, 3, 4):
        monkeypatch.setattr(oracle, "_heads_at_once", lambda *_, many=many: many)
        for got, want in zip(exact(problem, *inputs.values(), rows, dout), alone, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_the_upstream_gradient_is_zero_outside_the_judged_rows(truth, monkeypatch):
    monkeypatch.setattr(reference, "EVERY_SCORES", 0)
    problem = truth.problem(q_len=400, kv_len=16, phase="train", dtype="bfloat16")
    softmax = judge(problem, make(problem, 0), 0).softmax
    assert 128 < len(softmax.rows) <= reference.ROWS < 400
    moved = (softmax.dout != 0).any(-1).all(0).all(0)
    assert torch.equal(moved.nonzero().flatten(), softmax.rows.sort().values)
    assert (softmax.dout.shape, softmax.dout.dtype) == ((2, 2, 400, 8), torch.bfloat16)
    assert softmax.want["dq"].shape[2] == len(softmax.rows)
    assert softmax.want["dk"].shape[2] == 16


def test_a_definition_is_computed_in_float64_with_its_gradients(truth):
    problem = truth.problem("causal", phase="train", **GROUPED, dtype="bfloat16")
    inputs = make(problem, 0)
    softmax = judge(problem, inputs, 0).softmax
    own = defined(problem, inputs, softmax, mean_definition(problem))
    seen = torch.ones(24, 24, dtype=torch.float64).tril()
    weights = seen / seen.sum(-1, keepdim=True)
    want = weights @ inputs["v"].double().repeat_interleave(2, 1)
    dv = (weights.mT @ softmax.dout.double()).unflatten(1, (2, 2)).sum(2)
    torch.testing.assert_close(own.want["forward"], want, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(own.want["dv"], dv, rtol=1e-12, atol=1e-13)
    assert not own.want["dq"].any()
    assert not own.want["dk"].any()
    assert 0.02 < own.plain["forward"].relative / EPSILON["bfloat16"] < 5
    assert compare(want.bfloat16(), own.want["forward"]).relative < EPSILON["bfloat16"]


@pytest.mark.parametrize("length", [300, 5_000, 200_000])
def test_the_rows_that_see_least_are_among_the_few(length):
    problem = Problem(1, 4, 4, length, length, 8, 8, mask=Mask.parse("causal"))
    rows = sample_rows(length, 256, 0)
    few = reference.few_rows(problem, rows)
    assert few[:2].tolist() == [0, 1] and few[-1] == length - 1
    assert len(few.unique()) == len(few) and torch.isin(few, rows).all()
    assert len(few) == min(len(rows), max(8, reference.PLAIN_SCORES // (4 * length)))


def pair(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    want, noise = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in "ab")
    return (want + 0.01 * noise).to(dtype), want


@pytest.mark.parametrize("slice_numbers", [1, 45, 1 << 24])
def test_every_measure_is_its_formula(monkeypatch, slice_numbers):
    monkeypatch.setattr(oracle, "SLICE_NUMBERS", slice_numbers)
    for dtype in (torch.float32, torch.bfloat16):
        got, want = pair(dtype)
        a, b = got.double().numpy(), want.numpy()
        error = compare(got, want)
        rows = np.linalg.norm(a - b, axis=-1)
        root_mean_square = np.sqrt((np.linalg.norm(b, axis=-1) ** 2).mean())
        assert error.relative == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b))
        assert error.max == pytest.approx(np.abs(a - b).max())
        assert error.worst_row == pytest.approx(rows.max() / root_mean_square)
        assert tuple(error.worst_at) == np.unravel_index(rows.argmax(), rows.shape)
        cosine = (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
        assert error.cosine == pytest.approx(cosine)


@pytest.mark.parametrize("slice_numbers", [1, 1 << 24])
@pytest.mark.parametrize("value", [3.0, math.nan, math.inf, -math.inf])
def test_the_worst_row_is_where_the_fault_is_a_number_or_none(monkeypatch, value, slice_numbers):
    monkeypatch.setattr(oracle, "SLICE_NUMBERS", slice_numbers)
    got, want = pair()
    got[1, 1, 2, 0] += value
    error = compare(got, want)
    assert error.worst_at == [1, 1, 2]
    measures = (error.relative, error.max, error.worst_row)
    assert {math.isfinite(x) for x in measures} == {math.isfinite(value)}


def test_nothing_wanted_and_something_given_is_an_infinite_relative_error():
    nothing = torch.zeros(1, 2, 3, 4, dtype=torch.float64)
    for given_, want, measures in (
        (nothing.float(), nothing, (0.0, 0.0, 0.0)),
        (nothing.float() + 0.5, nothing, (math.inf, 0.5, math.inf)),
        (nothing, nothing + 1, (1.0, 1.0, 1.0)),
        (nothing + 1, nothing + 1, (0.0, 0.0, 0.0)),
    ):
        error = compare(given_, want)
        assert (error.relative, error.max, error.worst_row) == pytest.approx(measures)


def test_the_seed_decides_values_and_the_problem_their_shapes_and_dtype(truth):
    for kind in INPUTS:
        problem = truth.problem(inputs=kind)
        first, again, other = (make(problem, seed) for seed in (3, 3, 4))
        for a, b, c in zip(*(x.values() for x in (first, again, other)), strict=True):
            assert torch.equal(a, b) and not torch.equal(a, c)
    problem = truth.problem(heads=4, kv_heads=2, q_len=5, kv_len=9, v_head_dim=3)
    for dtype in ("float64", "bfloat16"):
        wide, cast = make(problem, 0), make(problem.with_(dtype=dtype), 0)
        assert [tuple(x.shape) for x in cast.values()] == [(2, 4, 5, 8), (2, 2, 9, 8), (2, 2, 9, 3)]
        for a, b in zip(wide.values(), cast.values(), strict=True):
            assert b.dtype == getattr(torch, dtype) and b.is_contiguous()
            assert torch.equal(b, a.to(b.dtype))


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [({"kv_heads": 1}, {}), ({"head_dim": 1}, {}), ({}, {"scale": 1.0, "dtype": "bfloat16"})],
)
def test_every_score_of_sunk_lies_below_the_range_of_exponentials(truth, sizes, shape):
    problem = truth.problem(q_len=64, kv_len=64, inputs="sunk", **sizes, **shape)
    q, k, v = (x.double() for x in make(problem, 0).values())
    scores = q @ k.mT * problem.scale
    assert -128 < float(scores.mean()) < -104 and float(scores.max()) < -88.8  # ln of its largest
    if problem.head_dim > 1:
        assert float(scores.std()) > 0.5, "keys still differ"
    assert float(v.mean()) == pytest.approx(0.0, abs=0.1)


def test_captured_arrays_are_read_and_cast(truth, tmp_path):
    file = tmp_path / "captured.npz"
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((2, 2, 24, 8)) for name in "qkv"}
    np.savez(file, **given)
    problem = truth.problem(inputs=f"captured:{file}", dtype="bfloat16")
    for seed in (0, 1):
        for name, x in make(problem, seed).items():
            assert x.dtype == torch.bfloat16
            assert torch.equal(x, torch.from_numpy(given[name]).bfloat16())
