"""State space duality: its dual form in NumPy, written from arXiv:2405.21060, and its gates."""

import itertools
from pathlib import Path

import numpy as np
import torch

from attnbench.gate.inputs import make
from impls.linear import ssd
from impls.loading import load_file

papers = load_file(Path(__file__).with_name("papers.py"))
problem = papers.problem


def semiseparable(q, k, v, dt, a, scale):
    """The dual form: the matrix of q_i . k_j prod(exp(dt a), j < u <= i) dt_j, one pair a time."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        for i in range(q.shape[2]):
            for j in range(i + 1):
                fade = np.prod(np.exp(dt[b, h, j + 1 : i + 1] * a[h]))
                weight = scale * q[b, h, i] @ k[b, h, j] * fade * dt[b, h, j]
                out[b, h, i] += weight * v[b, h, j]
    return out


def test_it_is_the_product_with_the_semiseparable_matrix_too():
    asked = problem(batch=1, heads=2, phase="forward", q_len=40, kv_len=40)
    q, k, v = make(asked, 0)
    arrays = [x.numpy() for x in (q, k, v)]
    want = semiseparable(*arrays, *papers.steps(arrays[1], asked), asked.scale)
    got = ssd.build(asked, chunk=16, seed=0)(q, k, v)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


def test_a_short_sum_after_long_ones_keeps_its_digits():
    """Decays of e^-70 a token, then gentle ones: a difference of running sums would be off."""
    asked = problem(batch=1, heads=1, kv_heads=1, q_len=64, kv_len=64, dtype="float32")
    w, _, a = ssd.parameters(asked, 0)
    q, k, v = make(asked, 0)
    direction = (w[0] / (w[0] @ w[0]))[None, None, None]
    k -= (k @ w[0])[..., None] * direction
    k[:, :, :32] += (90 / -a[0]) * direction  # k . w makes dt there
    arrays = [x.double().numpy() for x in (q, k, v)]
    dt, rate = papers.steps(arrays[1], asked)
    assert (dt * rate)[0, 0, :32].sum() < -2000
    want = papers.of_ssd(*arrays, asked)
    got = ssd.build(asked, chunk=64, seed=0)(q, k, v).double().numpy()
    assert np.linalg.norm((got - want)[:, :, 33:]) < 1e-6 * np.linalg.norm(want[:, :, 33:])


def test_steps_of_one_that_fade_nothing_leave_bare_linear_attention(monkeypatch):
    def open_gates(k, given):
        return torch.ones_like(k[..., 0]), torch.zeros_like(k[..., 0])

    monkeypatch.setattr(ssd, "gates", open_gates)
    asked = problem(kv_heads=4, phase="forward")
    q, k, v = (x.numpy() for x in make(asked, 0))
    want = asked.scale * np.tril(q @ k.swapaxes(-1, -2)) @ v
    got = ssd.build(asked, chunk=16, seed=0)(*make(asked, 0))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


def test_the_gates_start_in_the_ranges_of_mamba_2_and_follow_the_seed():
    asked = problem(heads=512, kv_heads=512)
    w, bias, a = ssd.parameters(asked, 0)
    dt = np.log1p(np.exp(bias.double().numpy()))
    assert dt.min() > 0.99e-3 and dt.max() < 0.101
    assert abs(np.log(dt).mean() - np.log(0.01)) < 0.2  # the middle of log-uniform
    assert -16 <= a.min() < -15.5 and -1.5 < a.max() <= -1
    assert w.shape == (512, 16) and 0.24 < float(w.abs().max()) <= 0.25
    assert not torch.equal(w, ssd.parameters(asked, 1)[0])
