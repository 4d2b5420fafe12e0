"""Medians' intervals by brute force and by simulation, the summary against NumPy, Student's t; the
least time of a call, and the words for the same bits."""

import itertools

import numpy as np
import pytest

from attnbench.core.record import Determinism, least_time
from attnbench.core.stats import median_interval, student, student_quantile, summary
from impls.cost import Cost


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


GIVEN = {"flops": {"float32": 1e9}, "copy": {"1000": 8e9, "100000": 4e9, "10000000": 1e9}}


@pytest.mark.parametrize(
    ("flops", "nbytes", "seconds"),
    [
        (10**9, 500, 1.0),
        (10, 10**7, 0.01),
        (0, 1000, 1000 / 8e9),  # the fastest copy that is as large
        (0, 1001, 1001 / 4e9),
        (0, 10**12, 1000.0),
    ],
)
def test_the_least_time_is_bound_by_the_product_or_by_the_copy(flops, nbytes, seconds):
    assert least_time(Cost(flops, nbytes), "float32", GIVEN) == pytest.approx(seconds)
    assert least_time(Cost(1, 1), "bfloat16", GIVEN) is None  # its product was not measured
    faster = {**GIVEN, "copy": {"1000": 1e9, "100000": 4e9}}
    assert least_time(Cost(0, 10), "float32", faster) == pytest.approx(10 / 4e9)


def test_a_few_words_for_a_table():
    for repeats, batch, place, why, words in (
        (True, True, True, "", "same bits"),
        (False, None, None, "", "not over repeats"),
        (True, False, True, "", "not across batches"),
        (True, False, False, "", "not across batches or places"),
        (True, None, None, "dear", "same bits over repeats; batch not tried: dear"),
        (None, None, None, "it was not asked for", "not tried: it was not asked for"),
    ):
        assert Determinism(repeats, batch, place, why=why).words() == words
