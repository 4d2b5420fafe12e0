"""Retention against loops and the parallel form in NumPy, written from arXiv:2307.08621."""

import itertools

import numpy as np
import pytest
import torch

import impls
from attnbench.truth.inputs import make
from impls.linear import decay, retention, unrolled
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Unsupported

CHUNKS = (1, 2, 7, 64, 1000)


def problem(**changes):
    given = {
        "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 75, "kv_len": 75, "head_dim": 16,
        "v_head_dim": 12, "mask": Mask.parse("causal"), "phase": "train", "dtype": "float64",
    }  # fmt: skip
    return Problem(**given | changes)


def by_hand(q, k, v, scale):
    """S = g S + k v^T and o = s q S, token by token."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        served = h // (q.shape[1] // k.shape[1])
        state = np.zeros((k.shape[-1], v.shape[-1]))
        for t in range(q.shape[2]):
            state = (1 - 2.0 ** (-5 - served)) * state + np.outer(k[b, served, t], v[b, served, t])
            out[b, h, t] = scale * q[b, h, t] @ state
    return out


def parallel(q, k, v, scale):
    """s (q k^T . D) v with D_nm = g^(n-m) below the diagonal, for one query head a key head."""
    n = np.arange(q.shape[2])
    decay_hnm = np.array([np.tril((1 - 2.0 ** (-5 - h)) ** (n[:, None] - n).clip(0))
                          for h in range(q.shape[1])])  # fmt: skip
    return scale * (q @ k.swapaxes(-1, -2) * decay_hnm) @ v


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_gate_passes_it_on_every_kind_of_input(verdict, dtype, inputs):
    asked = problem(q_len=150, kv_len=150, dtype=dtype, inputs=inputs)
    assert verdict("retention", asked).reason is None


@pytest.mark.parametrize("changes", [
    {"q_len": 1, "kv_len": 1}, {"q_len": 2, "kv_len": 2}, {"q_len": 65, "kv_len": 65},
    {"batch": 1, "heads": 1, "kv_heads": 1}, {"heads": 2}, {"heads": 6, "kv_heads": 1},
    {"v_head_dim": 16}, {"head_dim": 1, "v_head_dim": 1}, {"phase": "forward"},
    {"phase": "backward"}, {"phase": "decode", "q_len": 1}, {"phase": "decode", "q_len": 5},
    {"phase": "decode", "q_len": 1, "kv_len": 1}, {"phase": "decode"},
])  # fmt: skip
@pytest.mark.parametrize("chunk", [7, 64])
def test_the_gate_passes_it_in_every_shape_and_phase(verdict, changes, chunk):
    asked = problem(dtype="float32", **changes)
    assert verdict_of(verdict, f"retention?chunk={chunk}", asked).reason is None


def verdict_of(verdict, label, asked):
    name, _, option = label.partition("?")
    given = dict([option.split("=")])
    return verdict(impls.table().find(name).with_options(given), asked)


def test_the_definition_is_the_recurrence_of_the_paper():
    asked = problem()
    q, k, v = make(asked, 0)
    rows = torch.tensor([74, 0, 31, 31])
    got = retention.definition(asked, chunk=64)(q, k, v, rows)
    want = by_hand(*(x.numpy() for x in (q, k, v)), asked.scale)
    np.testing.assert_allclose(got.numpy(), want[:, :, rows], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_give_the_parallel_form(chunk):
    asked = problem(kv_heads=4, phase="forward")
    q, k, v = make(asked, 0)
    want = parallel(*(x.numpy() for x in (q, k, v)), asked.scale)
    got = retention.build(asked, chunk=chunk)(q, k, v)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_have_the_gradients_of_the_recurrence(chunk):
    asked = problem()
    leaves = [x.requires_grad_() for x in make(asked, 0)]
    upstream = torch.randn(2, 4, 75, 12, dtype=torch.float64)
    every = torch.arange(75)
    out = retention.build(asked, chunk=chunk)(*leaves)
    want = retention.definition(asked, chunk=chunk)(*leaves, every)
    for got, right in zip(torch.autograd.grad(out, leaves, upstream),
                          torch.autograd.grad(want, leaves, upstream), strict=True):  # fmt: skip
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


def test_without_a_decay_it_is_bare_linear_attention(monkeypatch):
    monkeypatch.setattr(retention, "log_rates", lambda heads: torch.zeros(heads).double())
    asked = problem(kv_heads=4, phase="forward")
    q, k, v = (x.numpy() for x in make(asked, 0))
    want = asked.scale * np.tril(q @ k.swapaxes(-1, -2)) @ v
    got = retention.build(asked, chunk=16)(*make(asked, 0))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


def test_a_memory_and_steps_give_what_all_tokens_give_and_leave_the_memory():
    asked = problem(phase="decode", q_len=3)
    q, k, v = make(problem(), 0)
    attend = retention.build(asked, chunk=8)
    memory = attend.remember(k[:, :, :72], v[:, :, :72])
    before = memory.clone()
    out, after = attend.step(q[:, :, 72:], k[:, :, 72:], v[:, :, 72:], memory)
    want = by_hand(*(x.numpy() for x in (q, k, v)), asked.scale)[:, :, 72:]
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-10, atol=1e-12)
    assert torch.equal(memory, before)
    torch.testing.assert_close(after, attend.remember(k, v), rtol=1e-10, atol=1e-12)


def test_the_first_head_keeps_31_of_32_parts():
    rates = retention.log_rates(3).exp()
    np.testing.assert_allclose(rates, [31 / 32, 63 / 64, 127 / 128], rtol=1e-14)


@pytest.mark.parametrize("name", ["retention", "gla", "delta", "ssd"])
@pytest.mark.parametrize("changes, word", [
    ({"q_len": 5}, "one query to each token"),
    ({"phase": "decode", "q_len": 76}, "at most kv_len"),
    ({"phase": "decode", "q_len": 2, "mask": Mask.parse("causal@upper-left")}, "upper-left"),
])  # fmt: skip
def test_shapes_that_no_recurrence_serves_are_refused(name, changes, word):
    build = impls.outside.load_function(impls.table().find(name).build)
    with pytest.raises(Unsupported, match=word):
        build(problem(**changes), **impls.table().find(name).chosen)


@pytest.mark.parametrize("name", ["retention", "gla", "delta", "ssd"])
@pytest.mark.parametrize("chunk", [0, -3])
def test_a_chunk_of_nothing_is_refused_by_build_alone(name, chunk):
    row = impls.table().find(name).with_options({"chunk": str(chunk)})
    with pytest.raises(Unsupported, match=f"chunk={chunk} must be 1 or more"):
        impls.outside.load_function(row.build)(problem(), **row.chosen)
    define = impls.outside.load_function(row.definition)(problem(), **row.chosen)
    assert define(*make(problem(), 0), torch.tensor([3])).isfinite().all()
    assert impls.outside.load_function(row.cost)(problem(), **row.chosen).flops > 0


@pytest.mark.parametrize("name", ["retention", "gla", "delta", "ssd"])
def test_a_chunk_longer_than_all_tokens_is_said_in_the_note(name):
    row = impls.table().find(name).with_options({"chunk": "100"})
    build = impls.outside.load_function(row.build)
    assert "all there are, below chunk=100" in build(problem(), **row.chosen).note()
    assert "chunk=" not in build(problem(q_len=200, kv_len=200), **row.chosen).note()


@pytest.mark.parametrize("name", ["retention", "gla", "delta", "ssd"])
def test_what_backward_keeps_grows_as_the_length(name):
    row = impls.table().find(name)
    build = impls.outside.load_function(row.build)

    def kept_bytes(length):
        asked = problem(q_len=length, kv_len=length, dtype="float32")
        attend, kept = build(asked, **row.chosen), {}

        def keep(x):
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage()  # alive: no address twice
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            attend(*(x.requires_grad_() for x in make(asked, 0)))
        return sum(storage.nbytes() for storage in kept.values())

    assert kept_bytes(4096) < 2.05 * kept_bytes(2048)


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


@pytest.mark.parametrize("name, written, gate", [
    ("retention", 2, 0), ("gla", 2, 64 * 16), ("ssd", 2, 2 * 16), ("delta", 4, 2 * 16),
])  # fmt: skip
def test_the_cost_is_that_of_the_recurrence(name, written, gate):
    row = impls.table().find(name)
    cost = impls.outside.load_function(row.cost)
    keys, queries, numbers = 2 * 2 * 75, 2 * 4 * 75, 16 * 12  # batch, heads, tokens; d e
    forward = keys * (written * numbers + gate) + queries * 2 * numbers
    assert cost(problem(phase="forward"), **row.chosen).flops == forward
    assert cost(problem(phase="train"), **row.chosen).flops == 3 * forward
    step = cost(problem(phase="decode", q_len=1), **row.chosen)
    assert step.flops * 75 == forward
    assert step == cost(problem(phase="decode", q_len=1, kv_len=5000), **row.chosen)
