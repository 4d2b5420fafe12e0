"""The frontier, against trying every pair."""

import math
import random

import pytest

from attnbench.answer.regimes import frontier


def by_pairs(points):
    def beaten(p, q):  # no worse in both, and better in one
        return q[0] <= p[0] and q[1] <= p[1] and q != p

    return {name for name, p in points.items() if not any(beaten(p, q) for q in points.values())}


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_no_other_beats(seed):
    chance = random.Random(seed)
    points = {f"v{n}": (chance.randint(1, 9), chance.randint(1, 9)) for n in range(25)}
    found = frontier(points)
    assert set(found) == by_pairs(points)
    assert [points[name][0] for name in found] == sorted(points[name][0] for name in found)


def test_points_that_lie_on_each_other_are_kept_together():
    points = {"b": (1.0, 2.0), "a": (1.0, 2.0), "c": (2.0, 1.0), "slow": (2.0, 2.0)}
    assert frontier(points) == ["a", "b", "c"]


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_no_number_stands_nowhere(odd):
    points = {"a": (1.0, 2.0), "x": (odd, 0.0), "y": (0.0, odd), "b": (2.0, 1.0)}
    assert frontier(points) == ["a", "b"]


def test_of_nothing_there_is_no_frontier():
    assert frontier({}) == []
    assert frontier({"only": (1.0, 1.0)}) == ["only"]
