"""Nyström, Skyformer, Linformer, Performer, random features: the papers' forms of one head."""

import numpy as np
import pytest
import torch

from impls.lowrank import rfa
from impls.lowrank.performer import directions
from impls.lowrank.skyformer import places
from tests.impls.small import both_forms, both_give, inputs, problem


def head_of(tensors):
    """The last query head of the second element, and the keys and values that it reads."""
    q, k, v = tensors
    return q[1, 3].numpy(), k[1, 1].numpy(), v[1, 1].numpy()


def check(label, p, want, **close):
    both_give(label, p, inputs(p), want, head=(1, 3), **close)


def newton(a, z, rounds):
    """The iteration that both papers take for an inverse."""
    one = np.eye(len(a))
    for _ in range(rounds):
        az = a @ z
        z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    return z


def cut_as_numpy(x, count):
    return np.array([part.mean(0) for part in np.array_split(x, min(count, len(x)))])


def test_both_forms_of_nystrom_are_the_papers():
    def soft(x):
        x = np.exp(x - x.max(1, keepdims=True))
        return x / x.sum(1, keepdims=True)

    for landmarks, iterations, n in ((7, 6, 45), (7, 0, 13), (9, 3, 13), (20, 6, 45)):
        p = problem(q_len=n)
        q, k, v = head_of(inputs(p))
        ql, kl, s = cut_as_numpy(q, landmarks), cut_as_numpy(k, landmarks), 0.25
        a = soft(s * ql @ kl.T)
        z = a.T / (abs(a).sum(0).max() * abs(a).sum(1).max())
        z = newton(a, z, iterations) if iterations else np.linalg.pinv(a)
        want = soft(s * q @ kl.T) @ z @ soft(s * ql @ k.T) @ v
        label = f"nystrom?landmarks={landmarks}&iterations={iterations}"
        check(label, p, want, rtol=1e-8, atol=1e-9)


def kappa(x, y):
    """Pair by pair, from the difference itself."""
    return np.array([[np.exp(-((a - b) @ (a - b)) / (2 * len(a) ** 0.5)) for b in y] for a in x])


@pytest.mark.parametrize("iterations", [0, 2, 6])
def test_both_forms_of_skyformer_are_the_papers(iterations):
    p = problem(q_len=13)
    x, y, values = head_of(inputs(p))
    at_q, at_k = (at.numpy() for at in places(p, 9, 0))
    z = np.concatenate((x[at_q], y[at_k]))
    w = kappa(z, z) + 0.1 * np.eye(9)
    root = np.diag(w.sum(1) ** -0.5)
    a = root @ w @ root
    inverse = newton(a, a / a.sum(0).max(), iterations) if iterations else np.linalg.inv(a)
    want = kappa(x, z) @ root @ inverse @ root @ kappa(z, y) @ values
    label = f"skyformer?landmarks=9&iterations={iterations}"
    check(label, p, want, rtol=1e-9, atol=1e-11)


def test_both_forms_of_linformer_average_segments_cut_as_numpy_cuts():
    p = problem()
    q, k, v = head_of(inputs(p))
    scores = np.exp(q @ cut_as_numpy(k, 7).T / 4)
    want = scores @ cut_as_numpy(v, 7) / scores.sum(1, keepdims=True)
    check("linformer?rank=7", p, want, rtol=1e-11, atol=1e-13)


def of_performer(q, k, v, w, visible):
    """One head: every pair's kernel from its logarithm, in loops over queries."""
    s = q.shape[1] ** -0.25
    q, k, out = q * s, k * s, np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        keys = np.flatnonzero(visible[i])
        if not len(keys):
            continue
        logs = (q[i] + k[keys]) @ w.T - (q[i] @ q[i] + (k[keys] ** 2).sum(1))[:, None] / 2
        kernel = np.exp(logs - logs.max()).sum(1)
        out[i] = kernel @ v[keys] / kernel.sum()
    return out


def test_both_forms_of_performer_are_the_papers():
    for mask, factor, n, m in (("none", 8, 45, 45), ("causal", 1, 13, 45), ("causal", 8, 45, 13)):
        p = problem(mask, q_len=n, kv_len=m)
        tensors = inputs(p, factor)
        visible = np.ones((n, m)) if mask == "none" else np.tri(n, m, m - n)
        want = of_performer(*head_of(tensors), directions(20, 16, 0).numpy(), visible)
        label = "performer?features=20&chunk=7"
        both_give(label, p, tensors, want, head=(1, 3), rtol=1e-9, atol=1e-10)


def test_the_kernels_are_unbiased_over_seeds_and_performer_s_gets_nearer_with_features():
    torch.manual_seed(0)
    x, y = 0.5 * torch.randn(2, 8, dtype=torch.float64)
    spread = {}
    for features in (8, 64):
        w = torch.stack([directions(features, 8, s) for s in range(1000)])
        samples = (w @ (x + y) - (x @ x + y @ y) / 2).exp().mean(1)
        spread[features] = float(samples.std())
        assert abs(float(samples.mean() - (x @ y).exp())) < 4 * spread[features] / 1000**0.5
    assert spread[64] < 0.5 * spread[8]
    x, y = (z / z.norm() for z in (x, y))
    w = torch.stack([rfa.directions(16, 8, s) for s in range(1000)])
    samples = (w @ (x - y)).cos().mean(1)  # cos a cos b + sin a sin b
    want = float((-(x - y).square().sum() / 2).exp())
    assert abs(float(samples.mean()) - want) < 4 * float(samples.std()) / 1000**0.5


@pytest.mark.parametrize(("features", "sigma"), [(20, 1.0), (3, 0.5)])
def test_both_causal_forms_are_the_papers_recurrence(features, sigma):
    """One head, token by token, as a decoder with the paper's two sums."""
    p = problem("causal")
    label = f"rfa?features={features}&sigma={sigma}&chunk=7"
    w = rfa.directions(features, 16, 0).numpy() / sigma

    def phi(x):
        a = w @ (x / np.linalg.norm(x))
        return np.concatenate((np.sin(a), np.cos(a))) / len(w) ** 0.5

    s, z, want = 0.0, 0.0, []
    for q_n, k_n, v_n in zip(*head_of(inputs(p)), strict=True):
        s, z = s + np.outer(phi(k_n), v_n), z + phi(k_n)
        want.append(phi(q_n) @ s / max(phi(q_n) @ z, 0.01))
    check(label, p, np.array(want), rtol=1e-9, atol=1e-10)
    (q, k, v), attend = inputs(p), both_forms(label, p)[0]
    torch.testing.assert_close(attend(q * 7, k / 3, v), attend(q, k, v))  # lengths say nothing
