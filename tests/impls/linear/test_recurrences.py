"""Retention, gated linear attention, the delta rule and state spaces: what holds for all four."""

from pathlib import Path

import numpy as np
import pytest
import torch

import impls
from attnbench.gate.inputs import make
from impls.loading import load_file, load_function
from impls.masks import Mask
from impls.spec import Unsupported

papers = load_file(Path(__file__).with_name("papers.py"))
CHUNKS, PAPERS, problem = papers.CHUNKS, papers.PAPERS, papers.problem
CLOSE = {"rtol": 1e-10, "atol": 1e-11}
each = pytest.mark.parametrize("name", PAPERS)


def made(name, asked, part="build", **options):
    """The variant's ``build`` or ``definition`` for a problem."""
    row = impls.table().find(name).with_options({k: str(v) for k, v in options.items()})
    return load_function(getattr(row, part))(asked, **row.chosen)


def by_hand(name, leaves, asked):
    return PAPERS[name](*(x.numpy() for x in leaves), asked)


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@each
def test_the_gate_passes_it_on_every_kind_of_input(verdict, name, dtype, inputs):
    asked = problem(q_len=150, kv_len=150, dtype=dtype, inputs=inputs)
    assert verdict(name, asked).reason is None


@pytest.mark.parametrize(
    "changes",
    [
        {"q_len": 1, "kv_len": 1},
        {"q_len": 2, "kv_len": 2},
        {"q_len": 65, "kv_len": 65},
        {"batch": 1, "heads": 1, "kv_heads": 1},
        {"heads": 2},
        {"heads": 6, "kv_heads": 1},
        {"v_head_dim": 16},
        {"head_dim": 1, "v_head_dim": 1},
        {"phase": "forward"},
        {"phase": "backward"},
        {"phase": "decode"},
        {"phase": "decode", "q_len": 1},
        {"phase": "decode", "q_len": 5},
        {"phase": "decode", "q_len": 1, "kv_len": 1},
        {"phase": "decode", "q_len": 1, "inputs": "peaky", "dtype": "bfloat16"},
    ],
)
@pytest.mark.parametrize("given", [{"chunk": "7", "seed": "3"}, {"chunk": "32"}])
@each
def test_the_gate_passes_it_in_every_shape_and_phase(verdict, name, changes, given):
    row = impls.table().find(name)
    row = row.with_options({k: v for k, v in given.items() if k in row.options})
    assert verdict(row, problem(**{"dtype": "float32", **changes})).reason is None


@pytest.mark.parametrize("inputs", ["normal", "peaky", "equal_keys"])
@pytest.mark.parametrize("chunk", CHUNKS)
@each
def test_chunks_of_any_size_and_the_definition_give_the_recurrence_of_the_paper(
    name, chunk, inputs
):
    asked = problem(phase="forward", inputs=inputs)
    leaves = make(asked, 0)
    want = by_hand(name, leaves, asked)
    got = made(name, asked, chunk=chunk)(*leaves)
    np.testing.assert_allclose(got.numpy(), want, **CLOSE)
    rows = torch.tensor([74, 0, 31, 31])
    some = made(name, asked, "definition", chunk=chunk)(*leaves, rows)
    np.testing.assert_allclose(some.numpy(), want[:, :, rows], **CLOSE)


@pytest.mark.parametrize("inputs", ["normal", "peaky"])
@pytest.mark.parametrize("chunk", CHUNKS)
@each
def test_chunks_of_any_size_have_the_gradients_of_the_recurrence(name, chunk, inputs):
    asked = problem(inputs=inputs)
    leaves = [x.requires_grad_() for x in make(asked, 0)]
    upstream = torch.randn(2, 4, 75, 12, dtype=torch.float64)
    out = made(name, asked, chunk=chunk)(*leaves)
    want = made(name, asked, "definition", chunk=chunk)(*leaves, torch.arange(75))
    for got, right in zip(
        torch.autograd.grad(out, leaves, upstream),
        torch.autograd.grad(want, leaves, upstream),
        strict=True,
    ):
        torch.testing.assert_close(got, right, **CLOSE)


@each
def test_a_memory_and_steps_give_what_all_tokens_give_and_leave_the_memory(name):
    asked = problem(phase="decode", q_len=3)
    q, k, v = make(problem(), 0)
    attend = made(name, asked, chunk=8)
    memory = attend.remember(k[:, :, :72], v[:, :, :72])
    before = memory.clone()
    out, after = attend.step(q[:, :, 72:], k[:, :, 72:], v[:, :, 72:], memory)
    np.testing.assert_allclose(out.numpy(), by_hand(name, (q, k, v), asked)[:, :, 72:], **CLOSE)
    assert torch.equal(memory, before)
    torch.testing.assert_close(after, attend.remember(k, v), **CLOSE)


@each
@pytest.mark.parametrize(
    "changes, word",
    [
        ({"q_len": 5}, "one query to each token"),
        ({"phase": "decode", "q_len": 76}, "at most kv_len"),
        ({"phase": "decode", "q_len": 2, "mask": Mask.parse("causal@upper-left")}, "upper-left"),
    ],
)
def test_shapes_that_no_recurrence_serves_are_refused(name, changes, word):
    build = load_function(impls.table().find(name).build)
    with pytest.raises(Unsupported, match=word):
        build(problem(**changes), **impls.table().find(name).chosen)


@each
@pytest.mark.parametrize("chunk", [0, -3])
def test_a_chunk_of_nothing_is_refused_by_build_alone(name, chunk):
    row = impls.table().find(name).with_options({"chunk": str(chunk)})
    with pytest.raises(Unsupported, match=f"chunk={chunk} must be 1 or more"):
        load_function(row.build)(problem(), **row.chosen)
    define = load_function(row.definition)(problem(), **row.chosen)
    assert define(*make(problem(), 0), torch.tensor([3])).isfinite().all()
    assert load_function(row.cost)(problem(), **row.chosen).flops > 0


@each
def test_a_chunk_longer_than_all_tokens_is_said_in_the_note(name):
    row = impls.table().find(name).with_options({"chunk": "100"})
    build = load_function(row.build)
    assert "all there are, below chunk=100" in build(problem(), **row.chosen).note()
    assert "chunk=" not in build(problem(q_len=200, kv_len=200), **row.chosen).note()


@each
def test_what_backward_keeps_grows_as_the_length(name):
    row = impls.table().find(name)
    build = load_function(row.build)

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


@pytest.mark.parametrize(
    "name, written, gate",
    [
        ("retention", 2, 0),
        ("gla", 2, 64 * 16),
        ("ssd", 2, 2 * 16),
        ("delta", 4, 2 * 16),
    ],
)
def test_the_cost_is_that_of_the_recurrence(name, written, gate):
    row = impls.table().find(name)
    cost = load_function(row.cost)
    keys, queries, numbers = 2 * 2 * 75, 2 * 4 * 75, 16 * 12  # batch, heads, tokens; d e
    forward = keys * (written * numbers + gate) + queries * 2 * numbers
    assert cost(problem(phase="forward"), **row.chosen).flops == forward
    assert cost(problem(phase="train"), **row.chosen).flops == 3 * forward
    step = cost(problem(phase="decode", q_len=1), **row.chosen)
    assert step.flops * 75 == forward
    assert step == cost(problem(phase="decode", q_len=1, kv_len=5000), **row.chosen)
