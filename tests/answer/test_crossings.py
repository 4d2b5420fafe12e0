"""Brackets between which one overtakes another, against powers whose crossing is known."""

from pathlib import Path

import pytest

from attnbench.answer.ranking import crossings, standings
from attnbench.answer.regimes import regimes
from impls.loading import load_file

made = load_file(Path(__file__).with_name("lines.py"))
line, timed, untimed = made.line, made.timed, made.untimed
LENGTHS = (128, 256, 512, 1024, 2048)


def of(*records):
    (regime,) = regimes(records)
    return crossings(regime, standings(regime))


def power(factor, exponent):
    return {n: factor * n**exponent for n in LENGTHS}


def test_two_powers_cross_where_they_are_equal():
    where = 700.0  # a·n² = b·n
    (found,) = of(*line("square", power(1e-6, 2)), *line("linear", power(where * 1e-6, 1)))
    assert (found.before, found.after) == ("square", "linear")
    assert (found.low, found.high) == (512, 1024)
    assert found.estimate == pytest.approx(where)
    assert str(found) == "linear overtakes square between 512 and 1,024 (about 700)"


def test_lengths_at_which_they_are_tied_lie_within_the_bracket():
    times = {128: 1.0, 256: 1.0, 512: 1.0, 1024: 1.0}
    other = {128: 2.0, 256: 1.02, 512: 0.99, 1024: 0.5}
    (found,) = of(*line("a", times), *line("b", other))
    assert (found.low, found.high) == (128, 1024)
    assert 256 < found.estimate < 512


def test_a_lead_within_the_margin_overtakes_nobody():
    assert of(*line("a", {128: 1.0, 256: 1.04}), *line("b", {128: 1.04, 256: 1.0})) == []


def test_one_that_always_leads_is_overtaken_by_nobody():
    assert of(*line("a", power(1e-6, 1)), *line("b", power(2e-6, 1))) == []


def test_they_may_change_places_twice():
    other = {128: 2.0, 256: 0.5, 512: 2.0}
    found = of(*line("a", {128: 1.0, 256: 1.0, 512: 1.0}), *line("b", other))
    said = [(c.before, c.after, c.low, c.high) for c in found]
    assert said == [("a", "b", 128, 256), ("b", "a", 256, 512)]


def test_where_one_was_not_measured_the_bracket_is_wider():
    records = [
        *line("a", {128: 1.0, 512: 4.0}),
        untimed("a", 256),
        timed("a", 1024, None),
        *line("b", {128: 2.0, 256: 2.0, 512: 2.0, 1024: 2.0}),
    ]
    (found,) = of(*records)
    assert (found.low, found.high) == (128, 512)


def test_where_all_three_lead_somewhere_each_pair_has_its_bracket():
    found = of(
        *line("cube", power(1e-9, 3)),
        *line("square", power(2e-7, 2)),
        *line("linear", power(2e-4, 1)),
    )
    assert [(c.before, c.after) for c in found] == [
        ("cube", "square"),
        ("cube", "linear"),
        ("square", "linear"),
    ]
    assert [c.estimate for c in found] == pytest.approx([200, 447.2, 1000], rel=1e-3)


def test_what_is_not_exact_is_in_no_bracket():
    assert of(*line("a", power(1e-6, 2)), *line("x", power(1e-4, 1), computes="other")) == []


def test_a_length_at_which_something_was_amiss_decides_nothing():
    times = {128: 1.0, 256: 4.0, 512: 16.0}
    linear = {128: 2.0, 256: 2.0, 512: 2.0}
    doubted = [timed("a", 256, 4.0, flags=["drifted"])]
    some = [r for r in line("a", times) if r.problem.kv_len != 256]
    (found,) = of(*some, *doubted, *line("b", linear))
    assert (found.low, found.high) == (128, 512)
    assert of(*line("a", times, flags=["drifting: a little"]), *line("b", linear)) == []
