"""The delta rule against loops in NumPy, written from arXiv:2406.06484."""

import itertools

import numpy as np
import pytest
import torch

import impls
from attnbench.truth.inputs import make
from impls.linear import delta
from impls.masks import Mask
from impls.problem import Problem

CHUNKS = (1, 2, 7, 64, 1000)


def problem(**changes):
    given = {
        "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 75, "kv_len": 75, "head_dim": 16,
        "v_head_dim": 12, "mask": Mask.parse("causal"), "phase": "train", "dtype": "float64",
    }  # fmt: skip
    return Problem(**given | changes)


def shares(k, asked, seed=0):
    """b = sigmoid(k . w) of every token, from the same parameters."""
    w = delta.parameters(asked, seed).double().numpy()
    out = np.zeros(k.shape[:3])
    for b, c, t in itertools.product(*map(range, k.shape[:3])):
        out[b, c, t] = np.exp(-np.logaddexp(0, -k[b, c, t] @ w[c]))
    return out


def by_hand(q, k, v, share, scale):
    """S = (I - b k k^T) S + b k v^T and o = s q S, token by token."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        c = h // (q.shape[1] // k.shape[1])
        state = np.zeros((k.shape[-1], v.shape[-1]))
        for t in range(q.shape[2]):
            key = k[b, c, t] / np.sqrt(np.sum(k[b, c, t] ** 2) + 1e-6)
            query = q[b, h, t] / np.sqrt(np.sum(q[b, h, t] ** 2) + 1e-6)
            kept = np.eye(len(key)) - share[b, c, t] * np.outer(key, key)
            state = kept @ state + share[b, c, t] * np.outer(key, v[b, c, t])
            out[b, h, t] = scale * query @ state
    return out


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_gate_passes_it_on_every_kind_of_input(verdict, dtype, inputs):
    asked = problem(q_len=150, kv_len=150, dtype=dtype, inputs=inputs)
    assert verdict("delta", asked).reason is None


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
    row = impls.table().find("delta").with_options(given)
    assert verdict(row, problem(**{"dtype": "float32", **changes})).reason is None


@pytest.mark.parametrize("inputs", ["normal", "peaky", "equal_keys"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_and_the_definition_give_the_recurrence_of_the_paper(chunk, inputs):
    asked = problem(phase="forward", inputs=inputs)
    q, k, v = make(asked, 0)
    arrays = [x.numpy() for x in (q, k, v)]
    want = by_hand(*arrays, shares(arrays[1], asked), asked.scale)
    got = delta.build(asked, chunk=chunk, seed=0)(q, k, v)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)
    rows = torch.tensor([74, 0, 31, 31])
    some = delta.definition(asked, chunk=chunk, seed=0)(q, k, v, rows)
    np.testing.assert_allclose(some.numpy(), want[:, :, rows], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_have_the_gradients_of_the_recurrence(chunk):
    asked = problem()
    leaves = [x.requires_grad_() for x in make(asked, 0)]
    upstream = torch.randn(2, 4, 75, 12, dtype=torch.float64)
    out = delta.build(asked, chunk=chunk, seed=0)(*leaves)
    want = delta.definition(asked, chunk=chunk, seed=0)(*leaves, torch.arange(75))
    for got, right in zip(torch.autograd.grad(out, leaves, upstream),
                          torch.autograd.grad(want, leaves, upstream), strict=True):  # fmt: skip
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


def test_the_chain_of_states_has_the_gradients_of_finite_differences():
    added = torch.randn(1, 2, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    kept = torch.randn(1, 2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(delta._Chain.apply, (added, kept))


def wide_open(k, w):
    """b = 1: the old value goes, the new one stays."""
    return torch.ones_like(k[..., :1])


@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_orthogonal_keys_give_back_what_was_stored(monkeypatch, chunk):
    monkeypatch.setattr(delta, "gates", wide_open)
    asked = problem(heads=2, q_len=32, kv_len=32, phase="forward")
    keys = torch.linalg.qr(torch.randn(2, 2, 16, 16, dtype=torch.float64))[0] * 1e3
    q, k, v = make(asked, 0)
    k = torch.cat((keys, keys), 2)  # every key twice: the second value takes the first's place
    q = torch.cat((keys, keys.flip(2)), 2)
    out = delta.build(asked, chunk=chunk, seed=0)(q, k, v) / asked.scale
    want = v.clone()
    for t in range(16, 32):  # asks for the key of place 31 - t in its half
        asked_for = 31 - t
        want[:, :, t] = v[:, :, asked_for + 16 if asked_for + 16 <= t else asked_for]
    torch.testing.assert_close(out, want, rtol=1e-9, atol=1e-9)


def test_one_key_again_and_again_holds_the_last_value_alone(monkeypatch):
    monkeypatch.setattr(delta, "gates", wide_open)
    asked = problem(heads=2, dtype="float32", phase="forward")
    _, k, v = make(asked, 0)
    k = k[:, :, :1].expand_as(k).contiguous()
    out = delta.build(asked, chunk=64, seed=0)(k, k, v) / asked.scale
    torch.testing.assert_close(out, v, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", ["normal", "equal_keys", "outliers"])
@pytest.mark.parametrize("width", [1, 4, 16])
def test_chunks_end_where_their_rounding_would_be_more_than_the_recurrence_s(
    verdict, width, inputs
):
    row = impls.table().find("delta").with_options({"chunk": "1000"})
    asked = problem(head_dim=width, dtype="float32", inputs=inputs, q_len=300, kv_len=300)
    assert delta.build(asked, **row.chosen).note().startswith(f"chunks of {16 * width} tokens: the")
    assert verdict(row, asked).reason is None


def test_a_memory_and_steps_give_what_all_tokens_give_and_leave_the_memory():
    asked = problem(phase="decode", q_len=3)
    q, k, v = make(problem(), 0)
    attend = delta.build(asked, chunk=8, seed=0)
    memory = attend.remember(k[:, :, :72], v[:, :, :72])
    before = memory.clone()
    out, after = attend.step(q[:, :, 72:], k[:, :, 72:], v[:, :, 72:], memory)
    arrays = [x.numpy() for x in (q, k, v)]
    want = by_hand(*arrays, shares(arrays[1], asked), asked.scale)[:, :, 72:]
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-10, atol=1e-12)
    assert torch.equal(memory, before)
    torch.testing.assert_close(after, attend.remember(k, v), rtol=1e-10, atol=1e-12)


def test_the_gates_start_as_a_linear_layer_and_follow_the_seed():
    asked = problem(heads=64, kv_heads=64)
    w = delta.parameters(asked, 0)
    assert w.shape == (64, 16) and 0.24 < float(w.abs().max()) <= 0.25
    assert not torch.equal(w, delta.parameters(asked, 1))
