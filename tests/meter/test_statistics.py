"""Medians' intervals by brute force and by simulation, the summary against NumPy, Student's t."""

import itertools

import numpy as np
import pytest

from attnbench.core.stats import median_interval, student, student_quantile, summary


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (9, 2, 8), (20, 6, 15), (50, 18, 33)])
def test_the_ranks_are_those_of_the_textbook(n, low, high):
    assert median_interval(np.random.default_rng(0).permutation(n) + 1.0) == (low, high)


@pytest.mark.parametrize("n", [6, 7, 10, 13])
def test_it_is_the_narrowest_pair_of_ranks_that_holds_the_median_in_95_of_100_worlds(n):
    """Every sample lies below or above the median by a fair coin: try all the coins."""
    low, high = (int(rank) for rank in median_interval(np.arange(1.0, n + 1)))
    assert low + high == n + 1

    def share(rank):  # of worlds in which that many of each end lie on their own sides
        below = [sum(coins) for coins in itertools.product((0, 1), repeat=n)]
        return sum(rank <= b <= n - rank for b in below) / 2**n

    assert share(low) >= 0.95
    assert share(low + 1) < 0.95


@pytest.mark.parametrize("n", [1, 2, 7, 8, 33])
def test_the_summary_is_numpys(n):
    samples = list(np.random.default_rng(n).lognormal(size=n))
    got = summary(samples)
    assert got.median == pytest.approx(np.median(samples))
    assert (got.q25, got.q75) == pytest.approx(tuple(np.percentile(samples, [25, 75])))
    assert got.least == min(samples)
    assert (got.low, got.high) == median_interval(samples)
    assert got.low <= got.median <= got.high


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 63.657), (3, 5.8409), (4, 4.6041), (7, 3.4995), (15, 2.9467)]
)
def test_students_quantiles_are_the_books(freedom, quantile):
    assert student_quantile(0.995, freedom) == pytest.approx(quantile, rel=1e-4)
    assert student(0.0, freedom) == pytest.approx(0.5)
    assert student(-quantile, freedom) == pytest.approx(0.005, rel=1e-3)
