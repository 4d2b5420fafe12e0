"""Hedgehog against its loop, and at inputs that an exponential would not survive."""

import numpy as np
import pytest
import torch

from impls.linear.hedgehog import build, definition, maps
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Unsupported


def features(x, w):
    x = x @ w
    halves = [np.exp(s * x - (s * x).max()) for s in (1, -1)]
    return np.concatenate([half / half.sum() for half in halves])


@pytest.mark.parametrize("init", ["identity", "random"])
@pytest.mark.parametrize("lengths", [(19, 19), (6, 19), (19, 6), (1, 1)])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_it_is_the_loop_over_pairs(mask, lengths, init):
    p = Problem(2, 4, 2, *lengths, 5, 3, "float64", Mask.parse(mask))
    rng = np.random.default_rng(0)
    q = rng.normal(size=(p.batch, p.heads, p.q_len, p.head_dim))
    k = rng.normal(size=(p.batch, p.kv_heads, p.kv_len, p.head_dim))
    v = rng.normal(size=(p.batch, p.kv_heads, p.kv_len, p.v_head_dim))
    both = maps(p, init, torch.float64)
    wq, wk = (np.stack([np.eye(5)] * n) for n in (4, 2)) if both is None else map(np.asarray, both)
    want = np.zeros((p.batch, p.heads, p.q_len, p.v_head_dim))
    for b, h, i in np.ndindex(want.shape[:3]):
        kv, total = h // p.group, 0.0
        for j in range(i + p.kv_len - p.q_len + 1 if mask == "causal" else p.kv_len):
            weight = features(q[b, h, i], wq[h]) @ features(k[b, kv, j], wk[kv])
            want[b, h, i] += weight * v[b, kv, j]
            total += weight
        want[b, h, i] /= total or 1.0
    q, k, v, want = map(torch.from_numpy, (q, k, v, want))
    torch.testing.assert_close(build(p, init, 4)(q, k, v), want)
    torch.testing.assert_close(definition(p, init, 4)(q, k, v, torch.arange(p.q_len)), want)


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_huge_inputs_stay_finite(mask):
    p = Problem(1, 2, 2, 200, 200, 16, 16, "float16", Mask.parse(mask), "train")
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 2, 200, 16, generator=generator) for _ in "qkv"]
    q, k, v = (x.mul(s).half().requires_grad_() for x, s in zip(inputs, (1e4, 1e4, 1), strict=True))
    out = build(p, "identity", 32)(q, k, v)
    grads = torch.autograd.grad(out.float().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in (out, *grads))


def test_random_maps_keep_the_size_of_a_vector():
    p = Problem(1, 4, 4, 9, 9, 64, 64, "float64")
    both = maps(p, "random", torch.float64)
    assert both is not None
    for w in both:
        assert w.shape == (4, 64, 64)
        assert float(w.var()) == pytest.approx(1 / 64, rel=0.05)
        assert abs(float(w.mean())) < 5 / 64**0.5 / w.numel() ** 0.5


def test_channels_alike_weigh_all_keys_alike():
    p = Problem(1, 1, 1, 9, 9, 8, 4)
    v = torch.randn(1, 1, 9, 4, generator=torch.Generator().manual_seed(0))
    out = build(p, "identity", 4)(torch.zeros(1, 1, 9, 8), torch.full((1, 1, 9, 8), 3.0), v)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out))


def test_another_beginning_is_refused():
    with pytest.raises(Unsupported, match="init='zeros' must be identity or random"):
        build(Problem(), "zeros", 128)
    assert definition(Problem(), "zeros", 128)
