"""The Taylor series against its loop, its features, and softmax where it comes near."""

import math

import numpy as np
import pytest
import torch

from impls.linear.taylor import Taylor, build, definition, projection
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Unsupported


@pytest.mark.parametrize("features", [0, 3])
@pytest.mark.parametrize("lengths", [(19, 19), (6, 19), (19, 6), (1, 1)])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_it_is_the_loop_over_pairs(mask, lengths, features):
    p = Problem(2, 4, 2, *lengths, 5, 3, "float64", Mask.parse(mask))
    rng = np.random.default_rng(0)
    q = rng.normal(size=(p.batch, p.heads, p.q_len, p.head_dim))
    k = rng.normal(size=(p.batch, p.kv_heads, p.kv_len, p.head_dim))
    v = rng.normal(size=(p.batch, p.kv_heads, p.kv_len, p.v_head_dim))
    down = projection(p, features, torch.float64)
    down = np.eye(5) if down is None else down.numpy()
    want = np.zeros((p.batch, p.heads, p.q_len, p.v_head_dim))
    for b, h, i in np.ndindex(want.shape[:3]):
        kv, total = h // p.group, 0.0
        for j in range(i + p.kv_len - p.q_len + 1 if mask == "causal" else p.kv_len):
            x = (q[b, h, i] @ down) @ (k[b, kv, j] @ down) / math.sqrt(5)
            weight = 1 + x + x**2 / 2
            want[b, h, i] += weight * v[b, kv, j]
            total += weight
        want[b, h, i] /= total or 1.0
    q, k, v, want = map(torch.from_numpy, (q, k, v, want))
    torch.testing.assert_close(build(p, features, 4)(q, k, v), want)
    torch.testing.assert_close(definition(p, features, 4)(q, k, v, torch.arange(p.q_len)), want)


@pytest.mark.parametrize("features", [0, 1, 16])
def test_the_product_of_features_is_the_series(features):
    p = Problem(1, 2, 2, 7, 9, 24, 8, "float64")
    maps = Taylor(p, features)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, n, 24, generator=generator, dtype=torch.float64) for n in (7, 9))
    u, w = maps.queries(q, 0), maps.keys(k, 0)
    assert maps.expand(u).shape[-1] == maps.width
    x = u @ w.mT
    torch.testing.assert_close(maps.expand(u) @ maps.expand(w).mT, 1 + x + x**2 / 2)
    torch.testing.assert_close(maps.weights(u, w), 1 + x + x**2 / 2)


def test_sixteen_features_make_153_and_not_273():
    assert Taylor(Problem(), 16).width == 1 + 16 + 16 * 17 // 2 == 153


def test_without_a_projection_small_scores_come_near_softmax_in_the_third_order():
    p = Problem(1, 2, 2, 50, 50, 16, 16, "float64", Mask.parse("causal"))
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 50, 16, generator=generator, dtype=torch.float64) for _ in "qkv")
    attend, far = build(p, 0, 16), []
    for size in (0.1, 0.2, 0.4):
        exact = torch.nn.functional.scaled_dot_product_attention(size * q, k, v, is_causal=True)
        far.append((attend(size * q, k, v) - exact).norm().item())
    assert 6 < far[1] / far[0] < 10 and 6 < far[2] / far[1] < 10  # 2^3 each time


def test_as_many_features_as_channels_are_no_projection_and_more_are_said():
    p = Problem(head_dim=16, v_head_dim=16)
    assert projection(p, 16, torch.float32) is None
    assert build(p, 16, 128).note() == ""
    assert "no projection" in build(p, 99, 128).note()


def test_the_projection_is_of_unit_size_on_average():
    p = projection(Problem(head_dim=256), 64, torch.float64)
    assert (p @ p.T).diagonal().mean().item() == pytest.approx(1.0, abs=0.05)


def test_a_negative_number_of_features_is_refused():
    with pytest.raises(Unsupported, match="features=-1 must be 0"):
        build(Problem(), -1, 128)
    assert definition(Problem(), -1, 128)
