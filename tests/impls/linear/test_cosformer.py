"""cosFormer against its loop, at the ends of its cosine and where no weight is left."""

import math

import numpy as np
import pytest
import torch

from impls.linear.cosformer import build, definition
from impls.masks import Mask
from impls.problem import Problem


@pytest.mark.parametrize("lengths", [(19, 19), (6, 19), (19, 6), (1, 1)])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_it_is_the_loop_over_pairs(mask, lengths):
    p = Problem(2, 4, 2, *lengths, 5, 3, "float64", Mask.parse(mask))
    rng = np.random.default_rng(0)
    q = rng.normal(size=(p.batch, p.heads, p.q_len, p.head_dim))
    k = rng.normal(size=(p.batch, p.kv_heads, p.kv_len, p.head_dim))
    v = rng.normal(size=(p.batch, p.kv_heads, p.kv_len, p.v_head_dim))
    want = np.zeros((p.batch, p.heads, p.q_len, p.v_head_dim))
    for b, h, i in np.ndindex(want.shape[:3]):
        kv, total, at = h // p.group, 0.0, i + p.kv_len - p.q_len
        for j in range(at + 1 if mask == "causal" else p.kv_len):
            weight = np.maximum(q[b, h, i], 0) @ np.maximum(k[b, kv, j], 0)
            weight *= math.cos(math.pi / 2 * (at - j) / max(lengths))
            want[b, h, i] += weight * v[b, kv, j]
            total += weight
        if total > 0:
            want[b, h, i] /= total
    q, k, v, want = map(torch.from_numpy, (q, k, v, want))
    torch.testing.assert_close(build(p, 4)(q, k, v), want)
    torch.testing.assert_close(definition(p, 4)(q, k, v, torch.arange(p.q_len)), want)


def test_no_weight_is_lost_at_the_far_end():
    length = 4096
    p = Problem(1, 1, 1, length, length, 2, 1)
    q, k, v = (torch.zeros(1, 1, length, width) for width in (2, 2, 1))
    q[0, 0, -1] = k[0, 0, 0] = torch.tensor([1.0, 0.0])  # the one pair with a weight
    v[0, 0, 0] = 7.0
    out = build(p, 128)(q, k, v)
    assert out[0, 0, -1].item() == pytest.approx(7.0, rel=1e-6)
    assert not out[0, 0, :-1].any()


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_rows_whose_weights_are_zero_give_zeros_and_a_finite_gradient(mask):
    p = Problem(1, 2, 1, 40, 40, 4, 4, mask=Mask.parse(mask), phase="train")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, 40, 4, generator=generator) for h in (2, 1, 1))
    q[:, :, 30] = -q[:, :, 30].abs()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = build(p, 8)(q, k, v)
    dq, dk, dv = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert not out[:, :, 30].any() and not dq[:, :, 30].any() and out[:, :, 31].any()
    assert all(x.isfinite().all() for x in (dq, dk, dv))


def test_a_longer_problem_is_another_operator():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(1, 1, 12, 4, generator=generator) for _ in range(3))
    causal = Mask.parse("causal")
    short = build(Problem(1, 1, 1, 9, 9, 4, 4, mask=causal), 4)
    whole = build(Problem(1, 1, 1, 12, 12, 4, 4, mask=causal), 4)
    early = [x[:, :, :9] for x in (q, k, v)]
    assert not torch.allclose(short(*early), whole(q, k, v)[:, :, :9], atol=1e-4)
