"""Gated linear attention against loops in NumPy, written from arXiv:2312.06635."""

import itertools

import numpy as np
import pytest
import torch

import impls
from attnbench.truth.inputs import make
from impls.linear import gla
from impls.masks import Mask
from impls.problem import Problem

CHUNKS = (1, 2, 7, 64, 1000)


def problem(**changes):
    given = {
        "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 75, "kv_len": 75, "head_dim": 16,
        "v_head_dim": 12, "mask": Mask.parse("causal"), "phase": "train", "dtype": "float64",
    }  # fmt: skip
    return Problem(**given | changes)


def alphas(k, asked, seed=0):
    """sigmoid(k W1 W2 + bias) ^ (1/16) of every token, from the same parameters."""
    first, second, bias = (x.double().numpy() for x in gla.parameters(asked, seed))
    out = np.zeros_like(k)
    for b, c, t in itertools.product(*map(range, k.shape[:3])):
        raw = (k[b, c, t] @ first[c]) @ second[c] + bias[c]
        out[b, c, t] = np.exp(-np.logaddexp(0, -raw) / 16)
    return out


def by_hand(q, k, v, alpha, scale):
    """S = diag(alpha) S + k v^T and o = s q S, token by token."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        c = h // (q.shape[1] // k.shape[1])
        state = np.zeros((k.shape[-1], v.shape[-1]))
        for t in range(q.shape[2]):
            state = np.diag(alpha[b, c, t]) @ state + np.outer(k[b, c, t], v[b, c, t])
            out[b, h, t] = scale * q[b, h, t] @ state
    return out


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_gate_passes_it_on_every_kind_of_input(verdict, dtype, inputs):
    asked = problem(q_len=150, kv_len=150, dtype=dtype, inputs=inputs)
    assert verdict("gla", asked).reason is None


@pytest.mark.parametrize("changes", [
    {"q_len": 1, "kv_len": 1}, {"q_len": 2, "kv_len": 2}, {"q_len": 65, "kv_len": 65},
    {"batch": 1, "heads": 1, "kv_heads": 1}, {"heads": 2}, {"heads": 6, "kv_heads": 1},
    {"v_head_dim": 16}, {"head_dim": 1, "v_head_dim": 1}, {"phase": "forward"},
    {"phase": "backward"}, {"phase": "decode", "q_len": 1}, {"phase": "decode", "q_len": 5},
    {"phase": "decode", "q_len": 1, "kv_len": 1},
    {"phase": "decode", "q_len": 1, "inputs": "peaky", "dtype": "bfloat16"},
])  # fmt: skip
@pytest.mark.parametrize("given", [{"chunk": "7", "seed": "3"}, {"chunk": "32"}])
def test_the_gate_passes_it_in_every_shape_and_phase(verdict, changes, given):
    row = impls.table().find("gla").with_options(given)
    assert verdict(row, problem(**{"dtype": "float32", **changes})).reason is None


@pytest.mark.parametrize("inputs", ["normal", "peaky"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_and_the_definition_give_the_recurrence_of_the_paper(chunk, inputs):
    asked = problem(phase="forward", inputs=inputs)
    q, k, v = make(asked, 0)
    arrays = [x.numpy() for x in (q, k, v)]
    want = by_hand(*arrays, alphas(arrays[1], asked), asked.scale)
    got = gla.build(asked, chunk=chunk, seed=0)(q, k, v)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-11)
    rows = torch.tensor([74, 0, 31, 31])
    some = gla.definition(asked, chunk=chunk, seed=0)(q, k, v, rows)
    np.testing.assert_allclose(some.numpy(), want[:, :, rows], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_have_the_gradients_of_the_recurrence(chunk):
    asked = problem(inputs="peaky")
    leaves = [x.requires_grad_() for x in make(asked, 0)]
    upstream = torch.randn(2, 4, 75, 12, dtype=torch.float64)
    out = gla.build(asked, chunk=chunk, seed=0)(*leaves)
    want = gla.definition(asked, chunk=chunk, seed=0)(*leaves, torch.arange(75))
    for got, right in zip(torch.autograd.grad(out, leaves, upstream),
                          torch.autograd.grad(want, leaves, upstream), strict=True):  # fmt: skip
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-11)


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
    want = by_hand(*arrays, alphas(arrays[1], asked), asked.scale)
    assert alphas(arrays[1], asked).min() < 1e-60
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-4, atol=1e-5 * abs(want).max())


def test_gates_of_one_leave_bare_linear_attention(monkeypatch):
    monkeypatch.setattr(gla, "gates", lambda k, given: torch.zeros_like(k))
    asked = problem(kv_heads=4, phase="forward")
    q, k, v = (x.numpy() for x in make(asked, 0))
    want = asked.scale * np.tril(q @ k.swapaxes(-1, -2)) @ v
    got = gla.build(asked, chunk=16, seed=0)(*make(asked, 0))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


def test_a_memory_and_steps_give_what_all_tokens_give_and_leave_the_memory():
    asked = problem(phase="decode", q_len=3)
    q, k, v = make(problem(), 0)
    attend = gla.build(asked, chunk=8, seed=0)
    memory = attend.remember(k[:, :, :72], v[:, :, :72])
    before = memory.clone()
    out, after = attend.step(q[:, :, 72:], k[:, :, 72:], v[:, :, 72:], memory)
    arrays = [x.numpy() for x in (q, k, v)]
    want = by_hand(*arrays, alphas(arrays[1], asked), asked.scale)[:, :, 72:]
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-10, atol=1e-12)
    assert torch.equal(memory, before)
    torch.testing.assert_close(after, attend.remember(k, v), rtol=1e-10, atol=1e-12)


def test_the_gates_start_as_a_linear_layer_and_follow_the_seed():
    first, second, bias = gla.parameters(problem(head_dim=64, heads=8, kv_heads=8), 0)
    assert first.shape == (8, 64, 16) and second.shape == (8, 16, 64) and bias.shape == (8, 64)
    for x, most in ((first, 1 / 8), (second, 1 / 4), (bias, 1 / 4)):
        assert 0.95 * most < float(x.abs().max()) <= most
        assert abs(float(x.std()) - most / 3**0.5) < 0.05 * most
    other = gla.parameters(problem(head_dim=64, heads=8, kv_heads=8), 1)[0]
    assert not torch.equal(first, other)
