import numpy as np
import pytest
import torch

from impls.lowrank.skyformer import places
from impls.spec import Unsupported


@pytest.mark.parametrize("variant", ["skyformer", "skyformer?landmarks=9&seed=1&gamma=0.01"])
def test_it_passes_the_gate(variant, gate_everywhere):
    gate_everywhere(variant)


@pytest.mark.parametrize(
    ("option", "says"),
    [("landmarks=0", "landmarks=0"), ("iterations=-1", "iterations=-1"), ("gamma=-0.1", "gamma")],
)
def test_an_option_out_of_range_is_refused_with_a_sentence(option, says, problem, built):
    with pytest.raises(Unsupported, match=says):
        built(f"skyformer?{option}", problem())


def _kappa(x, y):
    """Pair by pair, from the difference itself."""
    return np.array([[np.exp(-((a - b) @ (a - b)) / (2 * len(a) ** 0.5)) for b in y] for a in x])


@pytest.mark.parametrize("kind", ["attend", "define"])
def test_all_rows_as_landmarks_make_the_kernel_exact(kind, problem, built, inputs):
    p = problem(dtype="float64", q_len=9, kv_len=12, kv_heads=2)
    q, k, v = inputs(p)
    attend, define = built("skyformer?landmarks=99&iterations=0&gamma=0", p)
    out = attend(q, k, v) if kind == "attend" else define(q, k, v, torch.arange(9))
    assert "9 queries, 12 keys" in attend.note()
    want = _kappa(q[1, 3].numpy(), k[1, 1].numpy()) @ v[1, 1].numpy()
    np.testing.assert_allclose(out[1, 3], want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("iterations", [0, 2, 6])
def test_both_forms_are_the_papers(iterations, problem, built, inputs):
    p = problem(dtype="float64", kv_heads=2, q_len=13)
    q, k, v = inputs(p)
    attend, define = built(f"skyformer?landmarks=9&iterations={iterations}", p)
    at_q, at_k = (at.numpy() for at in places(p, 9, 0))
    x, y, values = (t.numpy() for t in (q[1, 3], k[1, 1], v[1, 1]))
    z = np.concatenate((x[at_q], y[at_k]))
    w = _kappa(z, z) + 0.1 * np.eye(9)
    root = np.diag(w.sum(1) ** -0.5)
    a, one = root @ w @ root, np.eye(9)
    inverse = np.linalg.inv(a) if iterations == 0 else a / a.sum(0).max()
    for _ in range(iterations):
        az = a @ inverse
        inverse = inverse @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    want = _kappa(x, z) @ root @ inverse @ root @ _kappa(z, y) @ values
    np.testing.assert_allclose(attend(q, k, v)[1, 3], want, rtol=1e-9, atol=1e-11)
    rows = torch.tensor([12, 3])
    np.testing.assert_allclose(define(q, k, v, rows)[1, 3], want[[12, 3]], rtol=1e-9, atol=1e-11)


def test_landmarks_come_from_both_ends_and_none_twice(problem):
    p = problem(q_len=300, kv_len=100)
    at_q, at_k = places(p, 200, 0)
    assert len(at_q) + len(at_k) == 200
    assert len(set(at_q.tolist())) == len(at_q) and len(set(at_k.tolist())) == len(at_k)
    assert int(at_q.max()) < 300 and int(at_k.max()) < 100
    assert 130 < len(at_q) < 170  # three quarters of them, on average
    assert not torch.equal(places(p, 200, 1)[0], at_q)


def test_more_landmarks_come_nearer_to_the_kernel(problem, built, inputs):
    p = problem(dtype="float64")
    q, k, v = inputs(p, 0.5)
    want = (-torch.cdist(q, k).square() / 8).exp() @ v
    far = []
    for landmarks in (4, 24, 90):
        attend, _ = built(f"skyformer?landmarks={landmarks}&gamma=0.001&iterations=12", p)
        far.append(float((attend(q, k, v) - want).norm() / want.norm()))
    assert far[2] < 0.6 * far[1] < 0.6 * far[0]


def test_keys_out_of_reach_give_nothing_and_values_come_in_linearly(problem, built, inputs):
    p = problem(dtype="float64")
    q, k, v = inputs(p)
    attend, _ = built("skyformer?landmarks=20", p)
    assert float(attend(q, k + 50.0, v).abs().max()) < 1e-9
    sums = attend(q, k, v + 2 * v.flip(2)), attend(q, k, v) + 2 * attend(q, k, v.flip(2))
    torch.testing.assert_close(*sums)
