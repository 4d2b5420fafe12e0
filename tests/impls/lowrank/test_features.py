"""Performer and random feature attention: the papers' forms, and kernels that come near."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from impls.lowrank import rfa
from impls.lowrank.performer import directions
from tests.impls.small import cost, inputs, made, problem


def of_performer(q, k, v, w, seen):
    """One head: every pair's kernel from its logarithm, in loops over queries."""
    s = q.shape[1] ** -0.25
    q, k, out = q * s, k * s, np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        keys = np.flatnonzero(seen[i])
        if not len(keys):
            continue
        logs = (q[i] + k[keys]) @ w.T - (q[i] @ q[i] + (k[keys] ** 2).sum(1))[:, None] / 2
        kernel = np.exp(logs - logs.max()).sum(1)
        out[i] = kernel @ v[keys] / kernel.sum()
    return out


@pytest.mark.parametrize(
    ("mask", "factor", "n", "m"),
    [("none", 8.0, 45, 45), ("causal", 1.0, 13, 45), ("causal", 8.0, 45, 13)],
)
def test_both_forms_of_performer_are_the_papers(mask, factor, n, m):
    given = problem(mask, q_len=n, kv_len=m)
    q, k, v = inputs(given, factor)
    attend, define = made("performer?features=20&chunk=7", given)
    seen = np.ones((n, m)) if mask == "none" else np.tri(n, m, m - n)
    w = directions(20, 16, 0).numpy()
    want = of_performer(*(x.numpy() for x in (q[1, 3], k[1, 1], v[1, 1])), w, seen)
    np.testing.assert_allclose(attend(q, k, v)[1, 3], want, rtol=1e-9, atol=1e-10)
    rows = torch.tensor([12, 3])
    np.testing.assert_allclose(define(q, k, v, rows)[1, 3], want[[12, 3]], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("variant", "new"), [("performer?features=40", 1), ("rfa?features=40", 3)])
def test_decoding_costs_a_step_however_long_the_cache(variant, new):
    given = problem(phase="decode", q_len=new, v_head_dim=24, dtype="float32")
    said = cost(variant, given)
    assert said == cost(variant, given.with_(kv_len=10_000))
    q, k, v = inputs(given)
    attend, _ = made(variant, given)
    memory = attend.remember(k[:, :, new:], v[:, :, new:])
    with FlopCounterMode(display=False) as counted:
        out, after = attend.step(q, k[:, :, :new], v[:, :, :new], memory)
    # the sum that is divided by is a column more
    assert said.flops == pytest.approx(counted.get_total_flops(), rel=1 / 24)
    ends = (q, k[:, :, :new], v[:, :, :new], out, memory.sums_bcfz, after.sums_bcfz)
    assert said.bytes == sum(x.numel() for x in ends) * 4


def test_rows_are_orthogonal_and_each_is_gaussian():
    for block in directions(16, 8, 0).split(8):
        gram = block @ block.T
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), rtol=0, atol=1e-12)
    many = torch.stack([directions(8, 8, s) for s in range(2000)])
    assert abs(float(many.square().mean()) - 1) < 0.05
    assert float(many.mean(0).abs().max()) < 5 / 2000**0.5


def test_the_kernels_are_unbiased_over_seeds_and_performer_s_gets_nearer_with_features():
    torch.manual_seed(0)
    x, y = 0.5 * torch.randn(2, 8, dtype=torch.float64)
    spread = {}
    for features in (8, 64):
        w = torch.stack([directions(features, 8, s) for s in range(1000)])
        drawn = (w @ (x + y) - (x @ x + y @ y) / 2).exp().mean(1)
        spread[features] = float(drawn.std())
        assert abs(float(drawn.mean() - (x @ y).exp())) < 4 * spread[features] / 1000**0.5
    assert spread[64] < 0.5 * spread[8]
    x, y = (z / z.norm() for z in (x, y))
    w = torch.stack([rfa.directions(16, 8, s) for s in range(1000)])
    drawn = (w @ (x - y)).cos().mean(1)  # cos a cos b + sin a sin b
    want = float((-(x - y).square().sum() / 2).exp())
    assert abs(float(drawn.mean()) - want) < 4 * float(drawn.std()) / 1000**0.5


# ---- random feature attention --------------------------------------------------------------------


@pytest.mark.parametrize(("features", "sigma"), [(20, 1.0), (3, 0.5)])
def test_both_causal_forms_are_the_papers_recurrence(features, sigma):
    """One head, token by token, as a decoder with the paper's two sums."""
    given = problem("causal")
    q, k, v = inputs(given)
    attend, define = made(f"rfa?features={features}&sigma={sigma}&chunk=7", given)
    w = rfa.directions(features, 16, 0).numpy() / sigma

    def phi(x):
        a = w @ (x / np.linalg.norm(x))
        return np.concatenate((np.sin(a), np.cos(a))) / len(w) ** 0.5

    s, z, want = 0.0, 0.0, []
    for q_n, k_n, v_n in zip(*(x.numpy() for x in (q[1, 3], k[1, 1], v[1, 1])), strict=True):
        s, z = s + np.outer(phi(k_n), v_n), z + phi(k_n)
        want.append(phi(q_n) @ s / max(phi(q_n) @ z, 0.01))
    np.testing.assert_allclose(attend(q, k, v)[1, 3], want, rtol=1e-9, atol=1e-10)
    rows, some = torch.tensor([12, 3]), np.array(want)[[12, 3]]
    np.testing.assert_allclose(define(q, k, v, rows)[1, 3], some, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(attend(q * 7, k / 3, v), attend(q, k, v))  # lengths say nothing
