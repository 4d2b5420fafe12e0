"""Ulysses: tokens for heads and back, and whole attention between."""

import pytest
import torch

import impls
from impls.parallel import ulysses
from tests.impls.parallel import in_threads

run, truth, off = in_threads.run, in_threads.truth, in_threads.off
problem = in_threads.problem


@pytest.mark.parametrize(
    "mask",
    ["none", "window:3,2", "document:10,14", "causal+alibi"],
)
@pytest.mark.parametrize("world", [2, 4])
def test_output_and_gradients_are_those_of_the_oracle(world, mask):
    p = problem(mask=mask)
    got, inputs, dout = run(impls.table().find(f"ulysses?world={world}"), p)
    assert all(far < 1e-6 for far in off(got, truth(p, inputs, dout)).values())


@pytest.mark.parametrize(
    "more",
    [
        {"heads": 6, "kv_heads": 3},
        {"heads": 6, "kv_heads": 6, "batch": 2, "v_head_dim": 12},
        {"heads": 3, "kv_heads": 3, "inputs": "peaky"},
        {"heads": 3, "kv_heads": 3, "dtype": "float64", "mask": "padding:20"},
    ],
)
def test_so_they_are_for_other_shapes_and_inputs(more):
    p = problem(**more)
    got, inputs, dout = run(impls.table().find("ulysses?world=3"), p)
    assert all(far < 1e-5 for far in off(got, truth(p, inputs, dout)).values())


class Alone:
    """One rank, to whom comes what it gave."""

    rank, world = 0, 3

    def all_to_all(self, x):
        return x


def test_the_way_back_is_the_inverse_of_the_way_there():
    x = torch.randn(2, 6, 12, 5)
    assert torch.equal(ulysses.to_tokens(ulysses.to_heads(x, Alone()), Alone()), x)
