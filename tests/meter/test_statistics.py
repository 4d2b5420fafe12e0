"""Medians' intervals by brute force and by simulation, the summary against NumPy, Student's t."""

import itertools
from math import comb

import numpy as np
import pytest

from attnbench.core.stats import median_interval, student, student_quantile, summary


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [
        (6, 1, 6),
        (7, 1, 7),
        (8, 1, 8),
        (9, 2, 8),
        (10, 2, 9),
        (20, 6, 15),
        (50, 18, 33),
    ],
)
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


@pytest.mark.parametrize("n", [20, 64, 101, 400])
def test_longer_samples_follow_the_binomial(n):
    low, high = (int(rank) for rank in median_interval(np.arange(1.0, n + 1)))
    inside = [sum(comb(n, b) for b in range(r, n - r + 1)) / 2**n for r in (low, low + 1)]
    assert inside[0] >= 0.95 > inside[1]
    assert high == n + 1 - low


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.99])
def test_another_confidence_is_kept_too(confidence):
    n = 40
    low, _ = (int(rank) for rank in median_interval(np.arange(1.0, n + 1), confidence))
    inside = [sum(comb(n, b) for b in range(r, n - r + 1)) / 2**n for r in (low, low + 1)]
    assert inside[0] >= confidence > inside[1]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_below_six_samples_it_is_the_whole_range(n):
    samples = list(np.random.default_rng(n).random(n))
    assert median_interval(samples) == (min(samples), max(samples))


@pytest.mark.parametrize("n", [7, 20, 50])
@pytest.mark.parametrize("draw", ["lognormal", "uniform", "exponential"])
def test_it_covers_the_true_median_in_simulation(n, draw):
    rng = np.random.default_rng(n)
    drawn = {
        "lognormal": rng.lognormal(0.0, 1.5, (2000, n)),
        "uniform": rng.random((2000, n)) + 0.5,
        "exponential": rng.exponential(1 / np.log(2), (2000, n)),
    }[draw]
    held = [low <= 1.0 <= high for low, high in map(median_interval, drawn)]
    assert np.mean(held) >= 0.94


@pytest.mark.parametrize("n", [1, 2, 7, 8, 33])
def test_the_summary_is_numpys(n):
    samples = list(np.random.default_rng(n).lognormal(size=n))
    got = summary(samples)
    assert got.median == pytest.approx(np.median(samples))
    assert (got.q25, got.q75) == pytest.approx(tuple(np.percentile(samples, [25, 75])))
    assert got.least == min(samples)
    assert (got.low, got.high) == median_interval(samples)
    assert got.low <= got.median <= got.high


def test_the_order_of_the_samples_does_not_matter_and_they_are_left_alone():
    samples = [3.0, 1.0, 2.0, 9.0, 4.0, 8.0, 7.0, 5.0]
    given = list(samples)
    assert summary(given) == summary(sorted(samples))
    assert given == samples


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 63.657), (3, 5.8409), (4, 4.6041), (7, 3.4995), (15, 2.9467)]
)
def test_students_quantiles_are_the_books(freedom, quantile):
    assert student_quantile(0.995, freedom) == pytest.approx(quantile, rel=1e-4)
    assert student(0.0, freedom) == pytest.approx(0.5)
    assert student(-quantile, freedom) == pytest.approx(0.005, rel=1e-3)
