"""Ulysses: tokens for heads and back, and whole attention between."""

import pytest
import torch

import impls
from impls.parallel import ulysses
from tests.impls.parallel import in_threads

run, truth, off = in_threads.run, in_threads.truth, in_threads.off
problem = in_threads.problem


CELLS = [
    *((w, 1e-6, {"mask": m}) for w in (2, 4) for m in ("none", "window:3,2", "document:10,14")),
    (2, 1e-6, {"mask": "causal+alibi"}),
    (3, 1e-5, {"heads": 6, "kv_heads": 3}),
    (3, 1e-5, {"heads": 6, "kv_heads": 6, "batch": 2, "v_head_dim": 12}),
    (3, 1e-5, {"heads": 3, "kv_heads": 3, "inputs": "peaky"}),
    (3, 1e-5, {"heads": 3, "kv_heads": 3, "dtype": "float64", "mask": "padding:20"}),
]


@pytest.mark.parametrize(("world", "most", "more"), CELLS)
def test_output_and_gradients_are_those_of_the_oracle(world, most, more):
    p = problem(**more)
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
