"""Planted faults: each must be caught, and the sentence must name the deed."""

import re

import numpy as np
import pytest
import torch

from impls.masks import Mask


def table(problem, text):
    """What another mask would let be seen, on this problem's shape."""
    return torch.from_numpy(Mask.parse(text).visible(problem.shape).copy())


def changed(truth, change):
    """A build whose output is right but for ``change(out)``, done to a copy."""

    def build(problem):
        inner = truth.attention(problem)
        return lambda q, k, v: change(inner(q, k, v).clone())

    return build


def on(truth, change):
    """A build that does something to q, k and v before it computes the right thing."""

    def build(problem):
        inner = truth.attention(problem)
        return lambda q, k, v: inner(*change(q, k, v))

    return build


# ---- masks ---------------------------------------------------------------------------------------

MASK_FAULTS = {
    "inverted": ("causal", {}, lambda p: ~table(p, "causal")),
    "causal ignored": ("causal", {}, lambda p: table(p, "none")),
    "causal past by one": ("causal", {}, lambda p: table(p, "window:24,1")),
    "upper-left for lower-right, short q": (
        "causal", {"q_len": 9}, lambda p: table(p, "causal@upper-left"),
    ),
    "upper-left for lower-right, long q": (
        "causal", {"kv_len": 9}, lambda p: table(p, "causal@upper-left"),
    ),
    "lower-right for upper-left": (
        "causal@upper-left", {"q_len": 9}, lambda p: table(p, "causal"),
    ),
    "window ignored": ("window:3,2", {}, lambda p: table(p, "none")),
    "window one too wide on the left": ("window:3,2", {}, lambda p: table(p, "window:4,2")),
    "window one too wide on the right": ("window:3,2", {}, lambda p: table(p, "window:3,3")),
    "window one too narrow on the left": ("window:3,2", {}, lambda p: table(p, "window:2,2")),
    "window one too narrow on the right": ("window:3,2", {}, lambda p: table(p, "window:3,1")),
    "window of a causal mask ignored": ("causal+window:3,0", {}, lambda p: table(p, "causal")),
    "last key dropped": ("none", {}, lambda p: table(p, "padding:23")),
    "padding ignored": ("padding:20,3", {}, lambda p: table(p, "none")),
}  # fmt: skip
ELSEWHERE = {
    "prefix one short": ("prefix:9", lambda p: table(p, "prefix:8")),
    "documents run together": ("document:5,12,7", lambda p: table(p, "document:17,7")),
    "padding of the first for all": ("padding:20,3", lambda p: table(p, "padding:20")),
}
"""Faults in a few keys that may lie between those that are probed."""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("fault", MASK_FAULTS)
def test_a_wrong_mask_is_named_with_a_row_and_a_key_that_betray_it(truth, fault, phase, seed):
    mask, changes, seen = MASK_FAULTS[fault]
    problem = truth.problem(mask, phase=phase, **changes)
    wrong = seen(problem)
    verdict = truth.verdict(problem, lambda p: truth.attention(p, wrong), seed=seed)
    where = re.match(
        r"row (\d+) \(batch (\d), head (\d)\) (moved|did not move) when key (\d+) changed",
        verdict.reason,
    )
    assert where, verdict.reason
    row, batch, _, deed, key = where.groups()
    right = problem.mask.visible(problem.shape)
    said = np.broadcast_to(right, (2, 1, problem.q_len, problem.kv_len))
    did = np.broadcast_to(wrong.numpy(), (2, 1, problem.q_len, problem.kv_len))
    at = (int(batch), 0, int(row), int(key))
    assert said[at] != did[at]
    assert deed == ("did not move" if said[at] else "moved")
    name = "the empty mask" if mask == "none" else f"the mask {mask}"
    assert name in verdict.reason


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fault", ELSEWHERE)
def test_a_wrong_mask_is_caught_by_its_error_where_no_probed_key_betrays_it(truth, fault, seed):
    mask, seen = ELSEWHERE[fault]
    problem = truth.problem(mask)
    wrong = seen(problem)
    reason = truth.verdict(problem, lambda p: truth.attention(p, wrong), seed=seed).reason
    assert re.search(r"moved? when key \d+ changed|of forward is", reason)


def test_a_bias_whose_slopes_are_wrong_is_caught(truth):
    problem = truth.problem("causal+alibi")
    twice = torch.from_numpy(problem.mask.bias(problem.shape)).float()
    verdict = truth.verdict(problem, lambda p: truth.attention(p, change=lambda s: s + twice))
    assert "relative error of forward" in verdict.reason


def test_slopes_given_to_the_heads_in_the_wrong_order_are_caught(truth):
    problem = truth.problem("alibi", heads=4, kv_heads=4)
    added = torch.from_numpy(problem.mask.bias(problem.shape)).float()
    swap = added.flip(1) - added
    verdict = truth.verdict(problem, lambda p: truth.attention(p, change=lambda s: s + swap))
    assert verdict.reason is not None


def test_a_slope_left_out_is_caught(truth):
    problem = truth.problem("alibi")
    added = torch.from_numpy(problem.mask.bias(problem.shape)).float()
    verdict = truth.verdict(problem, lambda p: truth.attention(p, change=lambda s: s - added))
    assert verdict.reason is not None


def test_a_row_that_sees_nothing_must_be_zero(truth):
    problem = truth.problem("padding:0,11")

    def build(problem):
        seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())
        mean_where_blind = seen | ~seen.any(-1, keepdim=True)
        return truth.attention(problem, mean_where_blind)

    assert "hides from it" in truth.verdict(problem, build).reason


# ---- values --------------------------------------------------------------------------------------


def test_the_scale_forgotten_is_caught(truth):
    verdict = truth.verdict(truth.problem("causal"), lambda p: truth.attention(p, scale=1.0))
    assert "relative error of forward" in verdict.reason


def test_one_wrong_head_is_named(truth):
    def change(out):
        out[:, 1] *= 1.001
        return out

    verdict = truth.verdict(truth.problem("causal"), changed(truth, change))
    assert re.search(r"relative error of forward is .*head 1\)", verdict.reason)


def test_kv_heads_given_to_the_wrong_query_heads_are_caught(truth):
    problem = truth.problem(heads=4, kv_heads=2)

    def build(problem):
        inner = truth.attention(problem.with_(kv_heads=4))
        return lambda q, k, v: inner(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))

    assert "relative error of forward" in truth.verdict(problem, build).reason


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_what_is_wrong_only_past_a_length_is_caught_and_the_row_lies_there(truth, mask):
    def change(out):
        out[:, :, 300:] *= 1.02
        return out

    problem = truth.problem(mask, q_len=340, kv_len=340)
    reason = truth.verdict(problem, changed(truth, change)).reason
    assert "of forward is" in reason
    assert int(re.search(r"worst at row (\d+)", reason)[1]) >= 300


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_inside_float32_is_caught(truth, half):
    def build(problem):
        inner = truth.attention(problem)
        return lambda q, k, v: inner(q.to(half), k.to(half), v.to(half)).float()

    reason = truth.verdict(truth.problem(), build).reason
    assert "relative error of forward" in reason
    assert "the plain form in float32" in reason


def test_float32_inside_float64_is_caught(truth):
    def build(problem):
        inner = truth.attention(problem)
        return lambda q, k, v: inner(q.float(), k.float(), v.float()).double()

    reason = truth.verdict(truth.problem(dtype="float64"), build).reason
    assert "relative error of forward" in reason


def test_zeros_are_caught(truth):
    reason = truth.verdict(truth.problem("causal"), lambda p: lambda q, k, v: v * 0).reason
    assert "did not move when key" in reason


def test_noise_is_caught(truth):
    reason = truth.verdict(
        truth.problem("causal"), lambda p: lambda q, k, v: torch.rand_like(v)
    ).reason
    assert "moved when key" in reason


# ---- gradients -----------------------------------------------------------------------------------


class Bent(torch.autograd.Function):
    """The identity, with something done to its gradient."""

    @staticmethod
    def forward(ctx, x, bend):
        ctx.bend = bend
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.bend(gradient.clone()), None


def bent(truth, which, bend):
    def change(*qkv):
        return [
            Bent.apply(x, bend) if name == which else x for name, x in zip("qkv", qkv, strict=True)
        ]

    return on(truth, change)


@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_a_gradient_one_percent_too_large_is_caught_though_the_output_is_right(truth, which, mask):
    problem = truth.problem(mask, phase="train")
    build = bent(truth, which, lambda g: g * 1.01)
    assert truth.verdict(problem.with_(phase="forward"), build).reason is None
    verdict = truth.verdict(problem, build)
    assert f"relative error of d{which} is 0.01" in verdict.reason
    assert verdict.error["forward"].relative < 1e-6


def test_a_detached_key_is_caught_by_the_gradient_it_lacks(truth):
    problem = truth.problem("causal", phase="train")
    verdict = truth.verdict(problem, on(truth, lambda q, k, v: (q, k.detach(), v)))
    assert "relative error of dk is 1" in verdict.reason


def test_a_detached_value_is_caught_by_the_row_that_sends_it_nothing(truth):
    problem = truth.problem("causal", phase="train")
    verdict = truth.verdict(problem, on(truth, lambda q, k, v: (q, k, v.detach())))
    assert re.search(r"key \d+ .* has no dv from row \d+, which may see it", verdict.reason)


@pytest.mark.parametrize("which", ["k", "v"])
def test_a_gradient_that_leaks_to_a_hidden_key_is_named(truth, which):
    def bend(gradient):
        gradient[:, :, -1] += 1e-6
        return gradient

    problem = truth.problem("causal", phase="train")
    for seed in range(3):
        reason = truth.verdict(problem, bent(truth, which, bend), seed=seed).reason
        said = rf"key 23 .* has a d{which} from row \d+, from which the mask causal hides it"
        assert re.search(said, reason)


def test_a_gradient_that_leaks_to_another_query_is_named(truth):
    def bend(gradient):
        gradient[:, :, 0] += 1e-3
        return gradient

    reason = truth.verdict(truth.problem(phase="train"), bent(truth, "q", bend)).reason
    assert re.search(r"row 0 .* has a dq though only row \d+ of the output had a gradient", reason)


def test_a_gradient_that_is_not_finite_is_named(truth):
    def bend(gradient):
        gradient[0, 1, 7] = torch.nan
        return gradient

    for which in "qkv":
        problem = truth.problem(phase="train")
        reason = truth.verdict(problem, bent(truth, which, bend)).reason
        assert reason is not None
        assert "row 7 (batch 0, head 1)" in reason or f"d{which}" in reason
