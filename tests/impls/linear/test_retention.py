"""Retention against the parallel form in NumPy, written from arXiv:2307.08621."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from attnbench.gate.inputs import make
from impls.linear import decay, retention, unrolled
from impls.loading import load_file

papers = load_file(Path(__file__).with_name("papers.py"))
problem = papers.problem


def parallel(q, k, v, scale):
    """s (q k^T . D) v with D_nm = g^(n-m) below the diagonal, for one query head a key head."""
    n = np.arange(q.shape[2])
    decay_hnm = np.array(
        [np.tril((1 - 2.0 ** (-5 - h)) ** (n[:, None] - n).clip(0)) for h in range(q.shape[1])]
    )
    return scale * (q @ k.swapaxes(-1, -2) * decay_hnm) @ v


@pytest.mark.parametrize("chunk", papers.CHUNKS)
def test_chunks_of_any_size_give_the_parallel_form(chunk):
    asked = problem(kv_heads=4, phase="forward")
    q, k, v = make(asked, 0)
    want = parallel(*(x.numpy() for x in (q, k, v)), asked.scale)
    got = retention.build(asked, chunk=chunk)(q, k, v)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


def test_without_a_decay_it_is_bare_linear_attention(monkeypatch):
    monkeypatch.setattr(retention, "log_rates", lambda heads: torch.zeros(heads).double())
    asked = problem(kv_heads=4, phase="forward")
    q, k, v = (x.numpy() for x in make(asked, 0))
    want = asked.scale * np.tril(q @ k.swapaxes(-1, -2)) @ v
    got = retention.build(asked, chunk=16)(*make(asked, 0))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


def test_the_first_head_keeps_31_of_32_parts():
    rates = retention.log_rates(3).exp()
    np.testing.assert_allclose(rates, [31 / 32, 63 / 64, 127 / 128], rtol=1e-14)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("chunks", [64, 65, 100])
@pytest.mark.parametrize("rates", [(1, 1), (5, 1)])
def test_the_scan_in_two_steps_is_the_scan(backward, chunks, rates):
    generator = torch.Generator().manual_seed(0)
    added = torch.randn(2, 3, chunks, 5, 4, generator=generator, dtype=torch.float64)
    kept = torch.rand(2, 3, chunks, *rates, generator=generator, dtype=torch.float64)
    want = torch.zeros_like(added)
    order = list(range(chunks))[:: -1 if backward else 1]
    for here, after in itertools.pairwise(order):
        want[:, :, after] = kept[:, :, here] * want[:, :, here] + added[:, :, here]
    turned = (lambda x: x.flip(2)) if backward else (lambda x: x)
    two = turned(decay._two_steps(turned(added), turned(kept)))
    torch.testing.assert_close(two, want, rtol=1e-12, atol=1e-13)
    one = decay._scan(added, kept, backward=backward)
    torch.testing.assert_close(one, want, rtol=1e-12, atol=1e-13)


def test_the_scan_has_the_gradients_of_finite_differences():
    added = torch.randn(1, 2, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    kept = torch.rand(1, 2, 4, 3, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(decay.states_before, (added, kept))


def test_a_definition_run_again_in_stretches_is_the_same(monkeypatch):
    asked = problem(q_len=90, kv_len=90)
    leaves = [x.requires_grad_() for x in make(asked, 0)]
    rows = torch.tensor([80, 7])

    def gradients():
        out = retention.definition(asked, chunk=1)(*leaves, rows)
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    whole = gradients()
    monkeypatch.setattr(unrolled, "CACHE_BYTES", 1)  # a token at a time
    for got, want in zip(gradients(), whole, strict=True):
        assert torch.equal(got, want)
