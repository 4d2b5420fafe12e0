"""Nyström, Skyformer and Linformer: the papers' forms, public libraries, and where they end."""

import numpy as np
import pytest
import torch

from impls.lowrank.skyformer import places
from tests.impls.small import inputs, made, problem, softmax


def newton(a, z, rounds):
    """The iteration that both papers take for an inverse."""
    one = np.eye(len(a))
    for _ in range(rounds):
        az = a @ z
        z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    return z


def check(label, given, want, **close):
    """One head of both forms is what was computed by hand."""
    tensors, rows = inputs(given), torch.tensor([12, 3])
    attend, define = made(label, given)
    np.testing.assert_allclose(attend(*tensors)[1, 3], want, **close)
    np.testing.assert_allclose(define(*tensors, rows)[1, 3], want[[12, 3]], **close)


def one_head(given):
    q, k, v = inputs(given)
    return q[1, 3].numpy(), k[1, 1].numpy(), v[1, 1].numpy()


def cut_as_numpy(x, count):
    return np.array([part.mean(0) for part in np.array_split(x, min(count, len(x)))])


# ---- Nyström -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("landmarks", "iterations", "n"), [(7, 6, 45), (7, 0, 13), (9, 3, 13), (20, 6, 45)]
)
def test_both_forms_of_nystrom_are_the_papers(landmarks, iterations, n):
    def soft(x):
        x = np.exp(x - x.max(1, keepdims=True))
        return x / x.sum(1, keepdims=True)

    given = problem(q_len=n)
    q, k, v = one_head(given)
    ql, kl, s = cut_as_numpy(q, landmarks), cut_as_numpy(k, landmarks), 0.25
    a = soft(s * ql @ kl.T)
    z = a.T / (abs(a).sum(0).max() * abs(a).sum(1).max())
    z = newton(a, z, iterations) if iterations else np.linalg.pinv(a)
    want = soft(s * q @ kl.T) @ z @ soft(s * ql @ k.T) @ v
    label = f"nystrom?landmarks={landmarks}&iterations={iterations}"
    check(label, given, want, rtol=1e-8, atol=1e-9)


# ---- Skyformer -----------------------------------------------------------------------------------


def kappa(x, y):
    """Pair by pair, from the difference itself."""
    return np.array([[np.exp(-((a - b) @ (a - b)) / (2 * len(a) ** 0.5)) for b in y] for a in x])


@pytest.mark.parametrize("iterations", [0, 2, 6])
def test_both_forms_of_skyformer_are_the_papers(iterations):
    given = problem(q_len=13)
    x, y, values = one_head(given)
    at_q, at_k = (at.numpy() for at in places(given, 9, 0))
    z = np.concatenate((x[at_q], y[at_k]))
    w = kappa(z, z) + 0.1 * np.eye(9)
    root = np.diag(w.sum(1) ** -0.5)
    a = root @ w @ root
    inverse = newton(a, a / a.sum(0).max(), iterations) if iterations else np.linalg.inv(a)
    want = kappa(x, z) @ root @ inverse @ root @ kappa(z, y) @ values
    label = f"skyformer?landmarks=9&iterations={iterations}"
    check(label, given, want, rtol=1e-9, atol=1e-11)


def test_all_rows_as_landmarks_make_the_kernel_exact():
    given = problem(q_len=13)
    x, y, values = one_head(given)
    label = "skyformer?landmarks=99&iterations=0&gamma=0"
    check(label, given, kappa(x, y) @ values, rtol=1e-7, atol=1e-9)
    assert "13 queries, 45 keys" in made(label, given)[0].note()
    attend, _ = made("skyformer?landmarks=20", problem(kv_heads=4))
    q, k, v = inputs(problem(kv_heads=4))
    assert float(attend(q, k + 50.0, v).abs().max()) < 1e-9  # keys out of reach give nothing


# ---- Linformer -----------------------------------------------------------------------------------


def test_both_forms_of_linformer_average_segments_cut_as_numpy_cuts():
    given = problem()
    q, k, v = one_head(given)
    scores = np.exp(q @ cut_as_numpy(k, 7).T / 4)
    want = scores @ cut_as_numpy(v, 7) / scores.sum(1, keepdims=True)
    check("linformer?rank=7", given, want, rtol=1e-11, atol=1e-13)
    tensors = inputs(given)
    attend, _ = made("linformer?rank=100", given)  # as many segments as keys
    assert "rank 45" in attend.note()
    torch.testing.assert_close(attend(*tensors), softmax(given, *tensors), rtol=1e-12, atol=1e-12)


def test_landmarks_come_from_both_ends_and_none_twice():
    given = problem(q_len=300, kv_len=100)
    at_q, at_k = places(given, 200, 0)
    assert len(at_q) + len(at_k) == 200
    assert len(set(at_q.tolist())) == len(at_q) and len(set(at_k.tolist())) == len(at_k)
    assert int(at_q.max()) < 300 and int(at_k.max()) < 100
    assert 130 < len(at_q) < 170  # three quarters of them, on average
    assert not torch.equal(places(given, 200, 1)[0], at_q)
