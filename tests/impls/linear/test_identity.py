"""Q (K^T V) against its loop and its recurrence."""

import numpy as np
import pytest
import torch

from impls.linear.identity import build, definition
from impls.masks import Mask
from impls.problem import Problem


def given(mask, **changes):
    ordinary = {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "q_len": 19,
        "kv_len": 19,
        "head_dim": 5,
        "v_head_dim": 3,
        "dtype": "float64",
    }
    p = Problem(mask=Mask.parse(mask), **{**ordinary, **changes})
    rng = np.random.default_rng(0)
    q = rng.normal(size=(p.batch, p.heads, p.q_len, p.head_dim))
    k = rng.normal(size=(p.batch, p.kv_heads, p.kv_len, p.head_dim))
    v = rng.normal(size=(p.batch, p.kv_heads, p.kv_len, p.v_head_dim))
    return p, q, k, v


def loop(p, q, k, v, causal, normalise):
    out = np.zeros((p.batch, p.heads, p.q_len, p.v_head_dim))
    for b, h, i in np.ndindex(out.shape[:3]):
        kv = h // p.group
        last = i + p.kv_len - p.q_len if causal else p.kv_len - 1
        for j in range(last + 1):
            out[b, h, i] += p.head_dim**-0.5 * (q[b, h, i] @ k[b, kv, j]) * v[b, kv, j]
        if normalise and last >= 0:
            out[b, h, i] /= last + 1
    return out


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("lengths", [(19, 19), (6, 19), (19, 6), (1, 1)])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_it_is_the_loop_over_pairs(mask, lengths, normalise):
    p, q, k, v = given(mask, q_len=lengths[0], kv_len=lengths[1])
    want = torch.from_numpy(loop(p, q, k, v, mask == "causal", normalise))
    q, k, v = map(torch.from_numpy, (q, k, v))
    torch.testing.assert_close(build(p, normalise, 4)(q, k, v), want)
    rows = torch.tensor([0, lengths[0] - 1, lengths[0] // 2])
    defined = definition(p, normalise, 4)(q, k, v, rows)
    torch.testing.assert_close(defined, want[:, :, rows])


def test_the_causal_form_is_a_recurrence_with_one_state():
    p, q, k, v = given("causal", kv_heads=4)
    state = np.zeros((p.batch, p.heads, p.head_dim, p.v_head_dim))
    got = build(p, False, 4)(*map(torch.from_numpy, (q, k, v))).numpy()
    for i in range(p.q_len):
        state += k[:, :, i, :, None] * v[:, :, i, None, :]
        out = p.scale * np.einsum("bhd,bhde->bhe", q[:, :, i], state)
        np.testing.assert_allclose(got[:, :, i], out, atol=1e-12)


def test_without_a_mask_the_order_of_the_products_does_not_matter():
    p, *arrays = given("none", kv_heads=4)
    q, k, v = map(torch.from_numpy, arrays)
    torch.testing.assert_close(build(p, False, 4)(q, k, v), (q @ k.mT) @ v * p.scale)


def test_it_is_linear_in_queries_and_in_keys():
    p, *arrays = given("causal")
    q, k, v = map(torch.from_numpy, arrays)
    attend = build(p, True, 4)
    torch.testing.assert_close(attend(3.0 * q, -2.0 * k, v), -6.0 * attend(q, k, v))
