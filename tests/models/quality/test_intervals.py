"""Medians and rank correlations: what they are, and how often their intervals hold the truth."""

import math

import numpy as np
import pandas as pd
import pytest

from attnbench.features.quality.words import (
    of_median,
    of_rank_correlation,
    rank_correlation,
    ranked,
)


def test_ranks_are_those_of_pandas_ties_included():
    chance = np.random.default_rng(0)
    for _ in range(20):
        values = chance.integers(6, size=15).tolist()
        assert ranked(values).tolist() == pd.Series(values).rank().tolist()


@pytest.mark.parametrize("ties", [False, True])
def test_a_rank_correlation_is_that_of_pandas(ties):
    chance = np.random.default_rng(1)
    for _ in range(10):
        a, b = chance.normal(size=(2, 20))
        if ties:
            a, b = a.round(), b.round()
        want = pd.DataFrame({"a": a, "b": b}).corr(method="spearman").loc["a", "b"]
        assert rank_correlation(a, b) == pytest.approx(want)


def test_any_growing_function_leaves_a_rank_correlation_at_one_and_a_falling_one_at_minus_one():
    a = [0.1, 0.5, 0.2, 0.9]
    assert rank_correlation(a, np.exp(a)) == pytest.approx(1.0)
    assert rank_correlation(a, [-x for x in a]) == pytest.approx(-1.0)


@pytest.mark.parametrize(("a", "b"), [([1, 2], [1, 2]), ([1, 1, 1, 1], [1, 2, 3, 4])])
def test_of_two_pairs_or_of_a_side_that_is_all_alike_no_correlation_is_said(a, b):
    assert of_rank_correlation(a, b) is None


def test_the_interval_of_a_median_holds_the_truth_as_often_as_it_says():
    chance, held = np.random.default_rng(2), 0
    for _ in range(400):
        found = of_median(chance.lognormal(size=16).tolist())
        held += found.low <= 1.0 <= found.high  # the median of this distribution
        assert found.low <= found.value <= found.high
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400) <= held / 400


def test_the_interval_of_a_rank_correlation_holds_the_truth_nearly_as_often_as_it_says():
    chance, held, rho = np.random.default_rng(3), 0, 0.7
    truth = 6 / math.pi * math.asin(rho / 2)  # of two normal variables
    for n in range(150):
        a, noise = chance.normal(size=(2, 48))
        found = of_rank_correlation(a, rho * a + math.sqrt(1 - rho**2) * noise, 200, n)
        held += found.low <= truth <= found.high
    assert held / 150 >= 0.88  # a percentile bootstrap of 48 pairs falls a little short


def test_of_no_values_there_is_no_median():
    assert of_median([]) is None
