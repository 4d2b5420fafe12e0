"""The delta rule: what a memory by keys must give back, and how long a chunk may be."""

from pathlib import Path

import pytest
import torch

import impls
from attnbench.gate.inputs import make
from impls.linear import delta
from impls.loading import load_file

papers = load_file(Path(__file__).with_name("papers.py"))
problem = papers.problem


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


def test_the_gates_start_as_a_linear_layer_and_follow_the_seed():
    asked = problem(heads=64, kv_heads=64)
    w = delta.parameters(asked, 0)
    assert w.shape == (64, 16) and 0.24 < float(w.abs().max()) <= 0.25
    assert not torch.equal(w, delta.parameters(asked, 1))
