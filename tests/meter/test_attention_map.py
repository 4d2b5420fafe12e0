"""The attention map of a variant: with V the identity, its output is its weights."""

import numpy as np
import pytest

import impls
from attnbench.meter.probe import attention_map
from impls.masks import Mask
from impls.problem import Problem

TABLE = impls.table()


@pytest.mark.parametrize("name", ["einsum", "sdpa.flash", "chunked?block=4"])
@pytest.mark.parametrize(("words", "width"), [(5, 8), (8, 8), (11, 4)])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_the_map_is_the_softmax_of_the_scaled_products(name, words, width, mask):
    x = np.random.default_rng(0).standard_normal((words, width))
    problem = Problem(
        heads=1,
        kv_heads=1,
        q_len=words,
        kv_len=words,
        head_dim=width,
        v_head_dim=width,
        mask=Mask.parse(mask),
    )
    got = np.array(attention_map(TABLE.find(name), problem, x.tolist()))
    scores = x @ x.T / np.sqrt(width)
    if mask == "causal":
        scores[np.triu_indices(words, 1)] = -np.inf
    want = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_weight_that_is_not_finite_is_said_as_none():
    problem = Problem(heads=1, kv_heads=1, q_len=3, kv_len=3, head_dim=2, v_head_dim=2)
    naive = TABLE.find("exp.naive")
    weights = attention_map(naive, problem, [[30.0, 0.0], [0.0, 0.1], [0.1, 0.0]])
    assert weights[0][0] is None
    assert sum(weights[1]) == pytest.approx(1.0, abs=1e-6)
