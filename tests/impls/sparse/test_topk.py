"""The k largest scores of each row, against a loop that sorts them."""

import numpy as np
import pytest
import torch

from impls.sparse import cost as costs
from impls.sparse.topk import build, definition
from tests.impls.small import problem as problem_of

MASKS = {
    "none": [],
    "causal": [("causal", ())],
    "padding": [("padding", (0, 25))],
    "alibi": [("causal", ()), ("alibi", ())],
    "dense": [("dense", np.random.default_rng(0).random((4, 37, 37)) < 0.2)],
    "bias": [("bias", np.random.default_rng(1).choice([-np.inf, 0.5, -2.0], (37, 37)))],
}


def whole_numbers(problem, seed=0):
    """Inputs whose scores are exact in every dtype, and many of them equal."""
    drawn = np.random.default_rng(seed)
    ends = (
        (problem.heads, problem.q_len, problem.head_dim),
        (problem.kv_heads, problem.kv_len, problem.head_dim),
        (problem.kv_heads, problem.kv_len, problem.v_head_dim),
    )
    draws = (drawn.integers(-2, 3, (problem.batch, *end)) for end in ends)
    return [torch.from_numpy(x).to(getattr(torch, problem.dtype)) for x in draws]


def sorted_loop(q, k, v, seen, bias, scale, count):
    """Row by row: sort by score, then by place; softmax over the first ones."""
    q, k, v = (x.double().numpy() for x in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    group = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(q.shape[:3]):
        scores = k[b, h // group] @ q[b, h, i] * scale + bias[b, h, i]
        order = sorted(np.flatnonzero(seen[b, h, i]), key=lambda j: (-scores[j], j))[:count]
        if order:
            weights = np.exp(scores[order] - scores[order].max())
            out[b, h, i] = weights @ v[b, h // group, order] / weights.sum()
    return out


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("count", [1, 4])
def test_it_is_the_softmax_over_the_first_when_sorted_by_score_then_place(brute, name, count):
    # scale 1/2 and halves in the bias: every score is exact, so equal ones are truly equal
    bare = problem_of(brute.text(MASKS[name]), 37, head_dim=4)
    inputs = whole_numbers(bare)
    shape = (2, 4, 37, 37)
    seen, bias = brute.visible(MASKS[name], shape), brute.bias(MASKS[name], shape)
    bias = np.where(seen, bias, 0.0)
    want = sorted_loop(*inputs, seen, bias, bare.scale, count)
    got = build(bare, k=count)(*inputs)
    assert np.abs(got.numpy() - want).max() < 1e-12
    rows = torch.tensor([36, 0, 5])
    plain = definition(bare, k=count)(*inputs, rows)
    assert np.abs(plain.numpy() - want[:, :, rows]).max() < 1e-12


def test_blocks_of_queries_do_not_change_what_is_chosen(monkeypatch):
    problem = problem_of("causal+document:20,17", 37)
    inputs = [x + 0.1 * torch.randn(x.shape, dtype=x.dtype) for x in whole_numbers(problem)]
    whole = build(problem, k=5)(*inputs)
    monkeypatch.setattr("impls.sparse.topk.HELD", 2 * 4 * 37 * 3)  # three rows
    assert torch.allclose(build(problem, k=5)(*inputs), whole, rtol=0, atol=1e-14)


def test_the_cost_is_that_of_softmax_forward_with_all_keys_and_less_with_few():
    problem = problem_of("causal", 37, head_dim=8, v_head_dim=8, dtype="float32")
    assert costs.topk(problem, 37) == costs.window(problem)
    assert costs.topk(problem, 4).bytes == costs.window(problem).bytes
    step = problem.with_(q_len=1, phase="decode")
    ends, keys, values = 2 * 4 * 16, 2 * 2 * 37 * 8, 2 * 2 * 4 * 8
    assert costs.topk(step, 4).bytes == 4 * (ends + keys + values)
    pairs = 37 * 38 // 2 * 8
    few = sum(min(i + 1, 4) for i in range(37)) * 8
    assert costs.topk(problem, 4).flops == 2 * 8 * (pairs + few)
    assert costs.topk(problem.with_(phase="train"), 4).flops == 2 * 8 * (pairs + few) + 64 * few
