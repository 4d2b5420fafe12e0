"""Masks, slopes and biases against examples worked out by hand."""

import math

import numpy as np
import pytest

from impls.masks import Mask, Shape, alibi_slopes


def _drawn(text, q_len, kv_len):
    seen = Mask.parse(text).visible(Shape(1, 1, q_len, kv_len))[0, 0]
    return ["".join("x" if s else "." for s in row) for row in seen]


@pytest.mark.parametrize(
    ("text", "q_len", "kv_len", "picture"),
    [
        ("causal", 2, 4, ["xxx.", "xxxx"]),
        ("causal@upper-left", 2, 4, ["x...", "xx.."]),
        ("window:1,0", 3, 3, ["x..", "xx.", ".xx"]),
        ("window:1,1", 2, 4, [".xxx", "..xx"]),
        ("window:0,0@upper-left", 3, 2, ["x.", ".x", ".."]),
        ("prefix:2", 4, 4, ["xx..", "xx..", "xxx.", "xxxx"]),
        ("causal+document:1,2", 3, 3, ["x..", ".x.", ".xx"]),
        ("causal+prefix:2", 3, 3, ["x..", "xx.", "xxx"]),
        ("padding:2", 2, 3, ["xx.", "xx."]),
        ("causal+padding:0", 2, 2, ["..", ".."]),
    ],
)
def test_a_mask_looks_as_drawn(text, q_len, kv_len, picture):
    assert _drawn(text, q_len, kv_len) == picture


BY_HEAD = np.array(
    [
        [[True, False, False], [False, False, False]],
        [[False, False, False], [False, True, False]],
    ]
)  # two heads of two queries and three keys


@pytest.mark.parametrize("kind", ["dense", "bias"])
def test_a_file_may_differ_by_head(brute, kind):
    table = BY_HEAD if kind == "dense" else np.where(BY_HEAD, 0.5, -np.inf)
    mask, shape = Mask.parse(brute.text([(kind, table)])), Shape(5, 2, 2, 3)
    assert mask.pairs(shape) == 5 * 2
    assert mask.keys_seen(shape) == 5 * 2
    assert mask.blind_rows(shape).tolist() == [[[False, True], [True, False]]]
    assert mask.sees(shape, 1).tolist() == [[[False, False], [False, True]]]
    assert not mask.sees(shape, 2).any()


def test_counting_at_a_million_tokens_needs_no_square():
    n = 10**6
    shape = Shape(2, 3, n, n)
    assert Mask.parse("causal").pairs(shape) == 6 * n * (n + 1) // 2
    assert Mask.parse("causal+window:99,5").pairs(shape) == 6 * (100 * n - 99 * 100 // 2)
    assert Mask.parse("padding:0,7").keys_seen(shape) == 7
    assert Mask.parse("causal").visible(shape, np.array([n - 1])).shape == (1, 1, 1, n)


SLOPES = {
    1: [2**-8.0],
    2: [2**-4.0, 2**-8.0],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [
        *[1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
        *[1 / math.sqrt(2), 1 / math.sqrt(8), 1 / math.sqrt(32), 1 / math.sqrt(128)],
    ],
}


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_slopes_follow_the_rule_of_the_paper(heads):
    np.testing.assert_allclose(alibi_slopes(heads), SLOPES[heads], rtol=1e-15)


def test_a_bias_file_and_alibi_are_added_together(brute):
    table = np.array([[0.5, -np.inf], [2.0, 0.0]])
    added = Mask.parse(brute.text([("alibi", ()), ("bias", table)])).bias(Shape(1, 2, 2, 2))
    slope = 1 / 16  # 2^(-8/2)
    np.testing.assert_allclose(added[0, 0], [[0.5, -np.inf], [2.0 - slope, 0.0]])


def test_a_bias_file_of_whole_numbers_is_taken_as_numbers(brute):
    mask = Mask.parse(brute.text([("bias", np.array([[1, -2]]))]))
    assert mask.wrong_for(Shape(1, 1, 2, 2)) is None
    np.testing.assert_array_equal(mask.bias(Shape(1, 1, 2, 2))[0, 0], [[1.0, -2.0]] * 2)
