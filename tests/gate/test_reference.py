"""The yardsticks: plain forms, and what a variant is held against."""

import numpy as np
import pytest
import torch

from attnbench.gate import reference
from attnbench.gate.budget import EPSILON
from attnbench.gate.inputs import Inputs, make
from attnbench.gate.oracle import compare, recomputed, sample_rows, softmax_define
from attnbench.gate.reference import defined, judge
from impls.lowrank.mean_v import definition as mean_definition
from impls.masks import Mask
from impls.problem import Problem

PAIRS = {
    "none": lambda b, h, i, j: True,
    "causal": lambda b, h, i, j: j <= i,
    "window:3,2": lambda b, h, i, j: i - 3 <= j <= i + 2,
    "padding:0,11": lambda b, h, i, j: j < (0, 11)[b],
    "causal+alibi": lambda b, h, i, j: j <= i,
}


def slope(problem):
    return lambda b, h, i, j: -(2.0 ** (-8 * (h + 1) / problem.heads)) * abs(i - j)


def dense(truth, problem, mask, inputs, dout):
    added = slope(problem) if "alibi" in mask else None
    visible, bias = truth.tables(problem, PAIRS[mask], added)
    names = ("forward", "dq", "dk", "dv")
    return dict(zip(names, truth.dense(problem, inputs, dout, visible, bias), strict=False))


def upstream(problem):
    shape = (problem.batch, problem.heads, problem.q_len, problem.v_head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).double()


@pytest.mark.parametrize("mask", PAIRS)
def test_both_plain_forms_are_softmax_attention_in_float64(truth, mask):
    group = {"heads": 4, "kv_heads": 2, "v_head_dim": 5}
    problem = truth.problem(mask, dtype="float64", phase="train", **group)
    inputs, dout, rows = make(problem, 0), upstream(problem), torch.arange(24)
    want = dense(truth, problem, mask, inputs, dout)
    leaves = Inputs(*(x.clone().requires_grad_() for x in inputs))
    out = softmax_define(problem)(*leaves, rows)
    kept = dict(zip(want, (out.detach(), *torch.autograd.grad(out, leaves, dout)), strict=True))
    again = recomputed(problem, *inputs, rows, dout)
    for name, expected in want.items():
        np.testing.assert_allclose(kept[name].numpy(), expected, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(again[name].numpy(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mask", ["causal", "padding:0,11"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_plain_errors_are_positive_and_about_the_dtypes_spacing(truth, dtype, mask):
    problem = truth.problem(mask, dtype=dtype, phase="train", heads=4, kv_heads=2)
    plain = judge(problem, make(problem, 0), 0).softmax.plain
    assert set(plain) == {"forward", "dq", "dk", "dv"}
    for name, error in plain.items():
        spacings = error.relative / EPSILON[dtype]
        assert 0.05 < spacings < 10, (name, spacings)
        assert error.worst_row >= error.relative


@pytest.mark.parametrize("mask", PAIRS)
def test_what_is_wanted_is_the_dense_form_under_the_judges_own_upstream_gradient(truth, mask):
    problem = truth.problem(mask, phase="train", heads=4, kv_heads=2)
    inputs = make(problem, 0)
    judged = judge(problem, inputs, 0)
    want = dense(truth, problem, mask, inputs, judged.softmax.dout)
    for name, expected in want.items():
        np.testing.assert_allclose(
            judged.softmax.want[name].numpy(), expected, rtol=1e-9, atol=1e-11, err_msg=name
        )


def test_the_upstream_gradient_is_zero_outside_the_judged_rows(truth):
    problem = truth.problem(q_len=400, kv_len=16, phase="train", dtype="bfloat16")
    softmax = judge(problem, make(problem, 0), 0).softmax
    judged = torch.zeros(400, dtype=torch.bool)
    judged[softmax.rows] = True
    assert 128 < int(judged.sum()) <= reference.ROWS < 400
    moved = (softmax.dout != 0).any(-1).all(0).all(0)
    assert torch.equal(moved, judged)
    assert softmax.dout.shape == (2, 2, 400, 8)
    assert softmax.dout.dtype == torch.bfloat16
    assert softmax.want["dq"].shape[2] == len(softmax.rows)
    assert softmax.want["dk"].shape[2] == 16


def test_the_mean_and_the_entropy_are_those_of_the_mask(truth):
    problem = truth.problem("causal")
    inputs = make(problem, 0)
    judged = judge(problem, inputs, 0)
    running = inputs.v.double().cumsum(2) / torch.arange(1, 25)[:, None]
    torch.testing.assert_close(judged.mean, running, rtol=1e-12, atol=1e-14)
    visible, bias = truth.tables(problem, PAIRS["causal"])
    *_, entropy = truth.dense(problem, inputs, None, visible, bias)
    assert judged.entropy == pytest.approx(entropy, abs=1e-12)


def test_on_long_rows_a_few_give_the_yardstick(truth, monkeypatch):
    problem = truth.problem("causal", q_len=128, kv_len=128, phase="train")
    inputs = make(problem, 0)
    whole = judge(problem, inputs, 0).softmax
    monkeypatch.setattr(reference, "PLAIN_SCORES", 2 * 2 * 128 * 40)
    assert len(reference.few_rows(problem, whole.rows)) == 40
    few = judge(problem, inputs, 0).softmax
    assert len(few.rows) == 128
    for name, error in whole.plain.items():
        assert few.plain[name].relative == pytest.approx(error.relative, rel=0.5), name


@pytest.mark.parametrize("mask", ["causal"])
def test_a_definition_is_computed_in_float64_with_its_gradients(truth, mask):
    problem = truth.problem(mask, phase="train", heads=4, kv_heads=2, dtype="bfloat16")
    inputs = make(problem, 0)
    softmax = judge(problem, inputs, 0).softmax
    own = defined(problem, inputs, softmax, mean_definition(problem))
    visible, _ = truth.tables(problem, PAIRS[mask])
    seen = torch.from_numpy(visible).double()
    weights = seen / seen.sum(-1, keepdim=True)
    want = weights @ inputs.v.double().repeat_interleave(2, 1)
    dv = (weights.mT @ softmax.dout.double()).unflatten(1, (2, 2)).sum(2)
    torch.testing.assert_close(own.want["forward"], want, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(own.want["dv"], dv, rtol=1e-12, atol=1e-13)
    assert not own.want["dq"].any()
    assert not own.want["dk"].any()
    assert 0.02 < own.plain["forward"].relative / EPSILON["bfloat16"] < 5
    assert compare(want.bfloat16(), own.want["forward"]).relative < EPSILON["bfloat16"]


def test_a_yardstick_of_few_rows_is_tried_again_under_other_scores(monkeypatch):
    problem = Problem(
        heads=2,
        kv_heads=1,
        q_len=1,
        kv_len=300,
        phase="decode",
        dtype="bfloat16",
    )
    inputs = make(problem, 0)
    often = reference.judge(problem, inputs, 0).softmax
    monkeypatch.setattr(reference, "MOST_DRAWS", 1)
    once = reference.judge(problem, inputs, 0).softmax
    assert (once.tried, often.tried) == (2, 32)
    assert often.plain["forward"].relative > once.plain["forward"].relative


@pytest.mark.parametrize("length", [300, 5_000, 200_000])
def test_the_rows_that_see_least_are_among_the_few(length):
    problem = Problem(1, 4, 4, length, length, 8, 8, mask=Mask.parse("causal"))
    rows = sample_rows(length, 256, 0)
    few = reference.few_rows(problem, rows)
    assert few[:2].tolist() == [0, 1] and few[-1] == length - 1
    assert len(few.unique()) == len(few) and torch.isin(few, rows).all()
    assert len(few) == min(len(rows), max(8, reference.PLAIN_SCORES // (4 * length)))
