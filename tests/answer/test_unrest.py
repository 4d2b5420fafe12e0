"""Unrest: how far a canary scattered, and that no smaller lead counts."""

import random

import pytest

from attnbench.answer.ranking import LEAST_READINGS, MARGIN, margin_of, margin_reason, unrest
from tests.answer import lines


def records(readings, node=""):
    return [
        lines.timed(f"v{n}", 256, 1e-3, node=node).with_(canary_s=reading)
        for n, reading in enumerate(readings)
    ]


def test_it_is_two_deviations_of_the_readings():
    chance = random.Random(0)
    some = records([1e-3 * (1 + 0.07 * chance.gauss(0, 1)) for _ in range(400)])
    assert unrest(some) == pytest.approx(0.14, rel=0.1)


def test_one_odd_reading_is_none():
    assert unrest(records([1e-3] * 3 + [1e-3 * (1 + n * 1e-4) for n in range(8)] + [5e-3])) < 0.01


def test_a_reading_counts_once_however_many_cells_were_taken_after_it():
    some = [1.0, 1.0, 1.0, 1.0, 1.2, 0.8, 1.1, 0.9]
    assert unrest(records(some)) == unrest(records(sorted(set(some))))


def test_from_few_readings_and_without_any_nothing_is_said():
    assert unrest(records([1.0 + n for n in range(LEAST_READINGS - 1)])) == 0.0
    assert unrest(records([None] * 9)) == 0.0


def test_nodes_are_not_held_against_each_other():
    a = records([1.0 + n * 1e-3 for n in range(9)], "a")
    b = records([2.0 + n * 1e-3 for n in range(9)], "b")
    assert unrest([*a, *b]) == max(unrest(a), unrest(b)) < 0.01


def test_no_smaller_lead_counts_and_that_is_said():
    still = records([1.0 + n * 1e-4 for n in range(9)])
    assert (margin_of(still), margin_reason(still)) == (MARGIN, "")
    restless = records([0.8, 0.9, 1.0, 1.1, 1.2])
    assert margin_of(restless) == pytest.approx(0.2965, rel=1e-3)  # 2 · 1.4826 · 0.1
    assert "leads up to 30% are said to be none" in margin_reason(restless)
