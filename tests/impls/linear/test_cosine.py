"""Cosines as scores, against loops, under every mask that hides."""

import numpy as np
import pytest
import torch

import impls
from impls.linear.cosine import build, definition
from impls.linear.cost import cosine as cost
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Unsupported

MASKS = [
    "none",
    "causal",
    "window:3,1",
    "causal+document:5,6,8",
    "padding:0,11",
    "prefix:4",
    "causal+window:2,0",
]


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


def loop(p, q, k, v, temperature):
    seen = p.mask.visible(p.shape)
    seen = np.broadcast_to(seen, (p.batch, p.heads, p.q_len, p.kv_len))
    out = np.zeros((p.batch, p.heads, p.q_len, p.v_head_dim))
    for b, h, i in np.ndindex(out.shape[:3]):
        kv, total = h // p.group, 0.0
        for j in np.flatnonzero(seen[b, h, i]):
            x, y = q[b, h, i], k[b, kv, j]
            weight = x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
            weight = np.exp(weight / temperature) if temperature else weight
            out[b, h, i] += weight * v[b, kv, j]
            total += weight
        if temperature and total:
            out[b, h, i] /= total
    return out


@pytest.mark.parametrize("normalise", ["none", "softmax"])
@pytest.mark.parametrize("mask", MASKS)
def test_it_is_the_loop_over_pairs(mask, normalise):
    p, *arrays = given(mask)
    want = torch.from_numpy(loop(p, *arrays, 0.3 if normalise == "softmax" else None))
    q, k, v = map(torch.from_numpy, arrays)
    torch.testing.assert_close(build(p, normalise, 0.3, 4)(q, k, v), want)
    rows = torch.tensor([18, 0, 7])
    defined = definition(p, normalise, 0.3, 4)(q, k, v, rows)
    torch.testing.assert_close(defined, want[:, :, rows])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("label", ["cosine", "cosine?normalise=softmax"])
@pytest.mark.parametrize("mask", [*MASKS, "causal@upper-left"])
def test_the_gate_holds_under_every_mask(verdict, label, mask, dtype):
    p, *_ = given(mask, dtype=dtype, phase="train")
    assert verdict(label, p).reason is None


@pytest.mark.parametrize("label", ["cosine", "cosine?normalise=softmax&temperature=0.01"])
def test_the_gate_holds_for_a_file_of_booleans_and_other_lengths(verdict, label, tmp_path):
    table = np.random.default_rng(0).random((4, 19, 19)) < 0.4
    table[:, 5] = False
    np.save(tmp_path / "seen.npy", table)
    p, *_ = given(f"dense:{tmp_path / 'seen.npy'}", dtype="float32", phase="train")
    assert verdict(label, p).reason is None
    for lengths in ((5, 19), (19, 5)):
        for mask in ("causal", "causal@upper-left", "window:3,1"):
            p, *_ = given(mask, q_len=lengths[0], kv_len=lengths[1], dtype="float32")
            assert verdict(label, p).reason is None


def test_a_mask_that_adds_to_scores_is_refused():
    row = impls.table().find("cosine")
    assert "alibi" in row.supports(given("alibi")[0])


@pytest.mark.parametrize("normalise", ["none", "softmax"])
@pytest.mark.parametrize("mask", ["none", "causal", "window:3,1"])
def test_how_long_queries_and_keys_are_does_not_matter(mask, normalise):
    p, *arrays = given(mask)
    q, k, v = map(torch.from_numpy, arrays)
    attend = build(p, normalise, 0.1, 4)
    torch.testing.assert_close(attend(q * 1e3, k * 1e-3, v), attend(q, k, v))


@pytest.mark.parametrize("mask", ["none", "causal", "window:3,1"])
def test_zeros_have_the_cosine_zero_and_no_gradient(mask):
    p, *arrays = given(mask, phase="train")
    q, k, v = map(torch.from_numpy, arrays)
    q[:, :, 4], k[:, :, 6] = 0.0, 0.0
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    rows = torch.arange(p.q_len)
    for function in (build(p, "none", 0.1, 4), lambda *x: definition(p, "none", 0.1, 4)(*x, rows)):
        out = function(q, k, v)
        dq, dk, dv = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert not out[:, :, 4].any() and not dq[:, :, 4].any() and not dk[:, :, 6].any()
        assert not dv[:, :, 6].any() and all(x.isfinite().all() for x in (dq, dk, dv))


def test_a_high_temperature_gives_the_mean_and_a_low_one_the_nearest():
    p, *arrays = given("none", kv_heads=4)
    q, k, v = map(torch.from_numpy, arrays)
    hot = build(p, "softmax", 1e9, 4)(q, k, v)
    torch.testing.assert_close(hot, v.mean(2, keepdim=True).expand_as(hot))
    cold = build(p, "softmax", 1e-9, 4)(q, k, v)
    nearest = torch.nn.functional.cosine_similarity(q[..., None, :], k[..., None, :, :], dim=-1)
    best = nearest.argmax(-1)[..., None].expand(*q.shape[:3], p.v_head_dim)
    torch.testing.assert_close(cold, v.gather(2, best))


@pytest.mark.parametrize(
    "options, said",
    [
        (("sum", 0.1, 4), "normalise='sum' must be none or softmax"),
        (("softmax", 0.0, 4), "temperature=0.0 must be above 0"),
        (("none", float("nan"), 4), "temperature=nan must be above 0"),
        (("softmax", 0.1, 0), "chunk=0 must be 1 or more"),
    ],
)
def test_options_that_cannot_work_are_refused(options, said):
    p, *_ = given("window:3,1")
    with pytest.raises(Unsupported, match=said):
        build(p, *options)
    assert definition(p, *options) and cost(p, *options).flops > 0
