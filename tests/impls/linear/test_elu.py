"""elu + 1 against its loop, and its features where digits are easily lost."""

import math

import numpy as np
import pytest
import torch

from impls.linear.elu import build, definition, elu_plus_one
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
        kv, total = h // p.group, 0.0
        for j in range(i + p.kv_len - p.q_len + 1 if mask == "causal" else p.kv_len):
            weight = sum(phi(x) * phi(y) for x, y in zip(q[b, h, i], k[b, kv, j], strict=True))
            want[b, h, i] += weight * v[b, kv, j]
            total += weight
        want[b, h, i] /= total or 1.0
    q, k, v, want = map(torch.from_numpy, (q, k, v, want))
    torch.testing.assert_close(build(p, 4)(q, k, v), want)
    torch.testing.assert_close(definition(p, 4)(q, k, v, torch.arange(p.q_len)), want)


def phi(x):
    return (x if x > 0 else math.exp(x) - 1.0) + 1.0


def test_features_and_their_gradient_are_those_of_elu():
    x = torch.linspace(-6, 6, 97, dtype=torch.float64, requires_grad=True)
    want = torch.nn.functional.elu(x) + 1.0
    torch.testing.assert_close(elu_plus_one(x), want)
    up = torch.cos(x.detach())
    (got,) = torch.autograd.grad(elu_plus_one(x), x, up)
    torch.testing.assert_close(got, torch.autograd.grad(want, x, up)[0])


def test_features_keep_their_digits_far_below_zero():
    x = torch.tensor([-30.0])
    assert torch.nn.functional.elu(x) + 1.0 == 0.0
    assert elu_plus_one(x).item() == pytest.approx(math.exp(-30.0), rel=1e-6)


def test_one_key_is_returned_however_small_its_weight():
    p = Problem(1, 1, 1, 1, 1, 2, 2, mask=Mask.parse("causal"))
    low = torch.full((1, 1, 1, 2), -20.0)
    v = torch.tensor([[[[3.0, -5.0]]]])
    torch.testing.assert_close(build(p, 128)(low, low, v), v)
