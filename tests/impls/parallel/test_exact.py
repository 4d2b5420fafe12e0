"""Ring and Ulysses: that all ranks together are exact attention, and what each sees of another."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import impls
from impls.parallel import shares, ulysses
from impls.parallel.ring import Ring
from tests.impls.parallel import in_threads

run, truth, off = in_threads.run, in_threads.truth, in_threads.off
problem = partial(in_threads.problem, heads=2)


def ring(world, block=512):
    return impls.table().find(f"ring?world={world}&block={block}")


CELLS = [
    (2, 5, 1e-6, {"mask": "none"}),
    (3, 512, 1e-6, {"mask": "none"}),
    (2, 512, 1e-6, {}),
    (3, 4, 1e-6, {}),
    (4, 5, 1e-6, {}),
    (3, 3, 2e-4, {"heads": 6, "kv_heads": 2}),
    (3, 3, 2e-4, {"heads": 4, "kv_heads": 1, "batch": 2}),
    (3, 3, 2e-4, {"v_head_dim": 12}),
    (3, 3, 2e-4, {"inputs": "peaky"}),  # log-sums of hundreds: their neighbours are 1e-5 away
    (3, 3, 2e-4, {"dtype": "float64"}),
]


@pytest.mark.parametrize(("world", "block", "most", "more"), CELLS)
def test_a_ring_has_the_output_and_gradients_of_the_oracle(world, block, most, more):
    p = problem(**more)
    got, inputs, dout = run(ring(world, block), p)
    assert all(far < most for far in off(got, truth(p, inputs, dout)).values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_merging_in_float32_is_no_worse_than_one_call_in_half_precision(dtype):
    p = problem(48, dtype=dtype, heads=4, kv_heads=4, head_dim=32, v_head_dim=32)
    got, inputs, dout = run(ring(4), p)
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True)
    names = ("out", "dq", "dk", "dv")
    plain = dict(zip(names, (out, *torch.autograd.grad(out, leaves, dout)), strict=True))
    want = truth(p, inputs, dout)
    ours, torchs = off(got, want), off(plain, want)
    assert all(ours[name] < 2.5 * torchs[name] for name in names), (ours, torchs)


@settings(max_examples=40)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 9))
def test_every_visible_pair_is_in_one_tile_and_no_hidden_one_is_open(world, size, block):
    p = problem(2 * world * size)
    places, seen = shares.ring(p, world), torch.zeros(p.q_len, p.q_len, dtype=torch.int)
    each = [_look(p, world, rank, block, places, seen) for rank in range(world)]
    assert torch.equal(seen, torch.ones_like(seen).tril())
    assert len(set(each)) == 1  # the computed pairs, so the work, of each rank


def _look(p, world, rank, block, places, seen):
    """Mark the pairs that a rank's tiles leave open, by their places; how many it computes."""
    made = Ring(p, in_threads.Ranks(rank, world, None), block)
    computed = 0
    for source in range(world):
        for tile in made.tiles(source):
            rows = torch.tensor(places[rank])[tile.rows]
            keys = torch.tensor(places[source])[tile.keys]
            open_now = torch.ones(len(rows), len(keys), dtype=torch.int)
            if tile.hidden is not None:
                open_now = (tile.hidden == 0).int()
            seen[rows[:, None], keys] += open_now
            computed += open_now.numel()
    return computed


# ---- Ulysses: tokens for heads and back, and whole attention between ----

SPREAD = [
    *((w, 1e-6, {"mask": m}) for w in (2, 4) for m in ("none", "window:3,2", "document:10,14")),
    (2, 1e-6, {"mask": "causal+alibi"}),
    (3, 1e-5, {"heads": 6, "kv_heads": 3}),
    (3, 1e-5, {"heads": 6, "kv_heads": 6, "batch": 2, "v_head_dim": 12}),
    (3, 1e-5, {"heads": 3, "kv_heads": 3, "inputs": "peaky"}),
    (3, 1e-5, {"heads": 3, "kv_heads": 3, "dtype": "float64", "mask": "padding:20"}),
]


@pytest.mark.parametrize(("world", "most", "more"), SPREAD)
def test_ulysses_has_the_output_and_gradients_of_the_oracle(world, most, more):
    p = in_threads.problem(**more)
    got, inputs, dout = run(impls.table().find(f"ulysses?world={world}"), p)
    assert all(far < most for far in off(got, truth(p, inputs, dout)).values())


class Alone:
    """One rank, to whom comes what it gave."""

    rank, world = 0, 3

    def all_to_all(self, x):
        return x


def test_the_way_back_is_the_inverse_of_the_way_there():
    x = torch.randn(2, 6, 12, 5)
    assert torch.equal(ulysses.to_tokens(ulysses.to_heads(x, Alone()), Alone()), x)
