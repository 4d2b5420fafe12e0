"""Gated linear attention: its gates, and where they end."""

from pathlib import Path

import numpy as np
import torch

from attnbench.gate.inputs import make
from impls.linear import gla
from impls.loading import load_file

papers = load_file(Path(__file__).with_name("papers.py"))
problem = papers.problem


def test_the_gradient_by_halves_is_that_of_finite_differences():
    asked = problem(batch=1, q_len=6, kv_len=6, head_dim=3, v_head_dim=2)
    leaves = [x.requires_grad_() for x in make(asked, 0)]
    assert torch.autograd.gradcheck(gla.build(asked, chunk=4, seed=0), leaves)


def test_gates_that_close_to_nothing_overflow_nowhere():
    asked = problem(dtype="float32", q_len=130, kv_len=130)
    q, k, v = (x.requires_grad_() for x in make(asked, 0))
    loud = k.detach().mul(1e4).requires_grad_()
    out = gla.build(asked, chunk=64, seed=0)(q, loud, v)
    gradients = torch.autograd.grad(out.sum(), (q, loud, v))
    assert all(x.isfinite().all() for x in (out, *gradients))
    arrays = [x.detach().double().numpy() for x in (q, loud, v)]
    want = papers.of_gla(*arrays, asked)
    assert papers.alphas(arrays[1], asked).min() < 1e-60
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-4, atol=1e-5 * abs(want).max())


def test_gates_of_one_leave_bare_linear_attention(monkeypatch):
    monkeypatch.setattr(gla, "gates", lambda k, given: torch.zeros_like(k))
    asked = problem(kv_heads=4, phase="forward")
    q, k, v = (x.numpy() for x in make(asked, 0))
    want = asked.scale * np.tril(q @ k.swapaxes(-1, -2)) @ v
    got = gla.build(asked, chunk=16, seed=0)(*make(asked, 0))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


def test_the_gates_start_as_a_linear_layer_and_follow_the_seed():
    first, second, bias = gla.parameters(problem(head_dim=64, heads=8, kv_heads=8), 0)
    assert first.shape == (8, 64, 16) and second.shape == (8, 16, 64) and bias.shape == (8, 64)
    for x, most in ((first, 1 / 8), (second, 1 / 4), (bias, 1 / 4)):
        assert 0.95 * most < float(x.abs().max()) <= most
        assert abs(float(x.std()) - most / 3**0.5) < 0.05 * most
    other = gla.parameters(problem(head_dim=64, heads=8, kv_heads=8), 1)[0]
    assert not torch.equal(first, other)
