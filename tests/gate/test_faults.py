"""Faults before the gate, besides those that ``attnbench selfcheck`` plants."""

import re

import numpy as np
import pytest
import torch

from attnbench.gate import reference
from attnbench.gate.oracle import sample_rows
from attnbench.gate.reference import ROWS
from impls.masks import Mask

MASKS = (  # the problem's mask, its lengths, and the mask that is computed instead
    ("causal", {"kv_len": 9}, "causal@upper-left"),
    ("causal@upper-left", {"q_len": 9}, "causal"),
    ("window:3,2", {}, "window:2,2"),
    ("causal+window:3,0", {}, "causal"),
    ("none", {}, "padding:23"),
    ("padding:20,3", {}, "none"),
)


def visible(problem, text):
    """What another mask allows on this problem's shape."""
    return torch.from_numpy(Mask.parse(text).visible(problem.shape).copy())


@pytest.mark.parametrize(("mask", "lengths", "computed"), MASKS)
def test_a_wrong_mask_is_named_with_a_row_and_a_key_that_betray_it(truth, mask, lengths, computed):
    for seed, phase in enumerate(("forward", "train")):
        problem = truth.problem(mask, phase=phase, **lengths)
        wrong = visible(problem, computed)
        verdict = truth.verdict(problem, lambda p, w=wrong: truth.attention(p, w), seed=seed)
        said = r"row (\d+) \(batch (\d), head (\d)\) (moved|did not move) when key (\d+) changed"
        where = re.match(said, verdict.reason)
        assert where, verdict.reason
        row, batch, _, deed, key = where.groups()
        at = (int(batch), 0, int(row), int(key))
        shape = (2, 1, problem.q_len, problem.kv_len)
        allowed = np.broadcast_to(problem.mask.visible(problem.shape), shape)[at]
        assert allowed != np.broadcast_to(wrong.numpy(), shape)[at]
        assert deed == ("did not move" if allowed else "moved")
        name = "the empty mask" if mask == "none" else f"the mask {mask}"
        assert name in verdict.reason


def before(change):
    """The right output of q, k and v to which something was done."""
    return lambda inner: lambda *qkv: inner(*change(*qkv))


def overflowing(inner):
    """Not finite on the loud inputs of a problem, and right on the mild ones of the probe."""
    return lambda q, k, v: inner(q, k, v).masked_fill(q.abs().amax(-1, keepdim=True) > 8, torch.inf)


def off_past_300(inner):
    return lambda *qkv: inner(*qkv) * (1 + 0.02 * (torch.arange(len(qkv[0][0, 0])) >= 300)[:, None])


OVERFLOW = r"\d+ rows are not finite in the output: row \d+ .* holds inf"
WRONG_KV_HEADS = before(lambda q, k, v: (q, k[:, [1, 0]], v[:, [1, 0]]))
VALUES = (  # what is done, the mask, what else of the problem, and what the reason has to match
    (overflowing, "causal", {"inputs": "peaky"}, OVERFLOW),
    (before(lambda q, k, v: (q * 8**0.5, k, v)), "causal", {}, "relative error of forward"),
    (WRONG_KV_HEADS, "none", {"heads": 4, "kv_heads": 2}, "relative error of forward"),
    (off_past_300, "causal", {"q_len": 340, "kv_len": 340}, r"of forward is .*worst at row 3\d\d"),
    (lambda inner: lambda *qkv: inner(*(x.float() for x in qkv)).double(), "none",
     {"dtype": "float64"}, "relative error of forward"),
    (lambda inner: lambda q, k, v: torch.rand_like(v), "causal", {}, "moved when key"),
)  # fmt: skip


@pytest.mark.parametrize(("fault", "mask", "changes", "said"), VALUES)
def test_a_wrong_value_is_named(truth, fault, mask, changes, said):
    problem = truth.problem(mask, **changes)
    assert re.search(said, truth.verdict(problem, lambda p: fault(truth.attention(p))).reason)


@pytest.mark.parametrize(("mask", "dtype"), [("none", "bfloat16"), ("causal", "float32")])
def test_a_fault_in_rows_that_are_not_sampled_is_refused(truth, monkeypatch, mask, dtype):
    monkeypatch.setattr(reference, "EVERY_SCORES", 0)
    problem = truth.problem(mask, batch=1, q_len=600, kv_len=600, dtype=dtype)
    sampled, inner = set(sample_rows(600, ROWS, 0).tolist()), truth.attention(problem)
    rows = [row for row in range(300, 600) if row not in sampled][:3]
    factor = 1.01 if dtype == "float32" else 4.0  # a hundredth is bfloat16's own spacing

    def attend(q, k, v):
        out = inner(q, k, v)
        out[:, :, rows] *= factor
        return out

    reason = truth.verdict(problem, lambda _: attend).reason
    assert "not among the sampled" in reason
    assert any(f"row {row}" in reason for row in rows)


class Bent(torch.autograd.Function):
    """The identity, with something done to its gradient."""

    @staticmethod
    def forward(ctx, x, bend):
        ctx.bend = bend
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.bend(gradient.clone()), None


def bent(which, bend):
    n = "qkv".index(which)
    return before(lambda *qkv: (*qkv[:n], Bent.apply(qkv[n], bend), *qkv[n + 1 :]))


def at(where, change):
    def bend(gradient):
        gradient[where] = change(gradient[where])
        return gradient

    return bend


FIRST, LAST = ((slice(None), slice(None), row) for row in (0, -1))
LEAK = r"key 23 .* has a d{} from row \d+, from which the mask causal hides it"
GRADIENTS = [
    *((bent(x, lambda g: g * 1.01), "causal", f"relative error of d{x} is 0.01") for x in "qkv"),
    (bent("k", lambda g: g * 1.01), "none", "relative error of dk is 0.01"),
    (before(lambda q, k, v: (q, k, v.detach())), "causal",
     r"key \d+ .* has no dv from row \d+, which may see it"),
    *((bent(x, at(LAST, lambda g: g + 1e-6)), "causal", LEAK.format(x)) for x in "kv"),
    (bent("q", at(FIRST, lambda g: g + 1e-3)), "none",
     r"row 0 .* has a dq though only row \d+ of the output had a gradient"),
    *((bent(x, at((0, 1, 7), lambda g: g * torch.nan)), "none", rf"row 7 \(batch 0, head 1\)|d{x}")
      for x in "qk"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "mask", "said"), GRADIENTS)
def test_a_wrong_gradient_is_caught_though_the_output_is_right(truth, fault, mask, said):
    for phase in ("forward", "train"):
        problem = truth.problem(mask, phase=phase)
        reason = truth.verdict(problem, lambda p: fault(truth.attention(p))).reason
        assert reason is None if phase == "forward" else re.search(said, reason)
