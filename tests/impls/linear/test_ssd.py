"""State space duality against loops in NumPy, written from arXiv:2405.21060."""

import itertools

import numpy as np
import pytest
import torch

import impls
from attnbench.truth.inputs import make
from impls.linear import ssd
from impls.masks import Mask
from impls.problem import Problem

CHUNKS = (1, 2, 7, 64, 1000)


def problem(**changes):
    given = {
        "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 75, "kv_len": 75, "head_dim": 16,
        "v_head_dim": 12, "mask": Mask.parse("causal"), "phase": "train", "dtype": "float64",
    }  # fmt: skip
    return Problem(**given | changes)


def steps(k, asked, seed=0):
    """dt = softplus(k . w + bias) of every token, and a of every head, from the parameters."""
    w, bias, a = (x.double().numpy() for x in ssd.parameters(asked, seed))
    dt = np.zeros(k.shape[:3])
    for b, c, t in itertools.product(*map(range, k.shape[:3])):
        dt[b, c, t] = np.logaddexp(0, k[b, c, t] @ w[c] + bias[c])
    return dt, a


def by_hand(q, k, v, dt, a, scale):
    """S = exp(dt a) S + k (dt v)^T and o = s q S, token by token."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        c = h // (q.shape[1] // k.shape[1])
        state = np.zeros((k.shape[-1], v.shape[-1]))
        for t in range(q.shape[2]):
            added = np.outer(k[b, c, t], dt[b, c, t] * v[b, c, t])
            state = np.exp(dt[b, c, t] * a[c]) * state + added
            out[b, h, t] = scale * q[b, h, t] @ state
    return out


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


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_gate_passes_it_on_every_kind_of_input(verdict, dtype, inputs):
    asked = problem(q_len=150, kv_len=150, dtype=dtype, inputs=inputs)
    assert verdict("ssd", asked).reason is None


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
    row = impls.table().find("ssd").with_options(given)
    assert verdict(row, problem(**{"dtype": "float32", **changes})).reason is None


@pytest.mark.parametrize("inputs", ["normal", "peaky"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_and_the_definition_give_the_recurrence_of_the_paper(chunk, inputs):
    asked = problem(phase="forward", inputs=inputs)
    q, k, v = make(asked, 0)
    arrays = [x.numpy() for x in (q, k, v)]
    want = by_hand(*arrays, *steps(arrays[1], asked), asked.scale)
    got = ssd.build(asked, chunk=chunk, seed=0)(q, k, v)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-11)
    rows = torch.tensor([74, 0, 31, 31])
    some = ssd.definition(asked, chunk=chunk, seed=0)(q, k, v, rows)
    np.testing.assert_allclose(some.numpy(), want[:, :, rows], rtol=1e-10, atol=1e-11)


def test_it_is_the_product_with_the_semiseparable_matrix_too():
    asked = problem(batch=1, heads=2, phase="forward", q_len=40, kv_len=40)
    q, k, v = make(asked, 0)
    arrays = [x.numpy() for x in (q, k, v)]
    want = semiseparable(*arrays, *steps(arrays[1], asked), asked.scale)
    got = ssd.build(asked, chunk=16, seed=0)(q, k, v)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_have_the_gradients_of_the_recurrence(chunk):
    asked = problem()
    leaves = [x.requires_grad_() for x in make(asked, 0)]
    upstream = torch.randn(2, 4, 75, 12, dtype=torch.float64)
    out = ssd.build(asked, chunk=chunk, seed=0)(*leaves)
    want = ssd.definition(asked, chunk=chunk, seed=0)(*leaves, torch.arange(75))
    for got, right in zip(torch.autograd.grad(out, leaves, upstream),
                          torch.autograd.grad(want, leaves, upstream), strict=True):  # fmt: skip
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-11)


def test_a_short_sum_after_long_ones_keeps_its_digits():
    """Decays of e^-70 a token, then gentle ones: a difference of running sums would be off."""
    asked = problem(batch=1, heads=1, kv_heads=1, q_len=64, kv_len=64, dtype="float32")
    w, _, a = ssd.parameters(asked, 0)
    q, k, v = make(asked, 0)
    direction = (w[0] / (w[0] @ w[0]))[None, None, None]
    k -= (k @ w[0])[..., None] * direction
    k[:, :, :32] += (90 / -a[0]) * direction  # k . w makes dt there
    arrays = [x.double().numpy() for x in (q, k, v)]
    dt, rate = steps(arrays[1], asked)
    assert (dt * rate)[0, 0, :32].sum() < -2000
    want = by_hand(*arrays, dt, rate, asked.scale)
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


def test_a_memory_and_steps_give_what_all_tokens_give_and_leave_the_memory():
    asked = problem(phase="decode", q_len=3)
    q, k, v = make(problem(), 0)
    attend = ssd.build(asked, chunk=8, seed=0)
    memory = attend.remember(k[:, :, :72], v[:, :, :72])
    before = memory.clone()
    out, after = attend.step(q[:, :, 72:], k[:, :, 72:], v[:, :, 72:], memory)
    arrays = [x.numpy() for x in (q, k, v)]
    want = by_hand(*arrays, *steps(arrays[1], asked), asked.scale)[:, :, 72:]
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-10, atol=1e-12)
    assert torch.equal(memory, before)
    torch.testing.assert_close(after, attend.remember(k, v), rtol=1e-10, atol=1e-12)


def test_the_gates_start_in_the_ranges_of_mamba_2_and_follow_the_seed():
    asked = problem(heads=512, kv_heads=512)
    w, bias, a = ssd.parameters(asked, 0)
    dt = np.log1p(np.exp(bias.double().numpy()))
    assert dt.min() > 0.99e-3 and dt.max() < 0.101
    assert abs(np.log(dt).mean() - np.log(0.01)) < 0.2  # the middle of log-uniform
    assert -16 <= a.min() < -15.5 and -1.5 < a.max() <= -1
    assert w.shape == (512, 16) and 0.24 < float(w.abs().max()) <= 0.25
    assert not torch.equal(w, ssd.parameters(asked, 1)[0])
