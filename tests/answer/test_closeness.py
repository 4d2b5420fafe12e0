"""How near to the best over all problems, with the problems counted by hand."""

from pathlib import Path

import pytest

from attnbench.answer.ranking import closeness
from attnbench.answer.regimes import regimes
from impls.loading import load_file

made = load_file(Path(__file__).with_name("lines.py"))
line, timed, untimed = made.line, made.timed, made.untimed


def of(*records):
    return {c.variant: c for c in closeness(regimes(records))}


def test_shares_are_counted_over_all_problems():
    found = of(
        *line("a", {128: 1.0, 256: 1.0, 512: 3.0, 1024: 1.0}),
        *line("b", {128: 1.1, 256: 2.0, 512: 1.0, 1024: 4.0}),
    )
    assert list(found) == ["a", "b"]
    assert found["a"].ratios == (1.0, 1.0, 1.0, 3.0)
    assert [found["b"].share(f) for f in (1.0, 1.5, 2.0, 3.9, 4.0)] == [0.25, 0.5, 0.75, 0.75, 1.0]


def test_a_problem_that_it_has_no_time_on_counts_against_it():
    found = of(
        *line("a", {128: 2.0, 256: 2.0}),
        timed("b", 128, 1.0),
        untimed("b", 256),
        *line("c", {128: 3.0, 256: 3.0}),
    )
    assert (found["b"].problems, found["b"].share(100.0)) == (2, 0.5)
    assert found["a"].share(2.0) == 1.0


def test_a_problem_with_one_exact_variant_compares_nothing():
    found = of(
        *line("a", {128: 1.0, 256: 1.0}),
        timed("b", 128, 2.0),
        timed("x", 256, 0.1, computes="its own operator"),
    )
    assert {v: c.problems for v, c in found.items()} == {"a": 1, "b": 1}


def test_with_none_to_compare_there_is_nothing():
    assert closeness(regimes(line("a", {128: 1.0, 256: 1.0}))) == []
    assert closeness([]) == []


def test_a_problem_that_lies_on_two_lines_counts_once():
    places = [(1, 256), (1, 512), (1, 1024), (4, 256)]
    records = [timed(v, n, t, batch=b) for b, n in places for v, t in (("a", 1.0), ("b", 2.0))]
    assert len(regimes(records)) == 2
    found = closeness(regimes(records))
    assert [(c.problems, len(c.ratios)) for c in found] == [(4, 4)] * 2


@pytest.mark.parametrize("median", [None, float("nan"), float("inf")])
def test_a_time_that_is_no_number_is_none(median):
    found = of(
        *line("a", {128: 1.0, 256: 1.0}), *line("b", {128: 2.0, 256: 2.0}), timed("c", 128, median)
    )
    assert set(found) == {"a", "b"}
