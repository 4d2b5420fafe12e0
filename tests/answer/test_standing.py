"""How variants stand length by length: leaders, ties, stretches, and what is faster not exactly."""

import math
from pathlib import Path

import pytest

from attnbench.answer.ranking import standings, stretches
from attnbench.answer.regimes import regimes
from impls.loading import load_file

made = load_file(Path(__file__).with_name("lines.py"))
timed, line, untimed = made.timed, made.line, made.untimed


def of(*records):
    (regime,) = regimes(records)
    return standings(regime)


def test_one_that_leads_by_more_than_the_margin_is_clear():
    (found,) = of(timed("a", 128, 1.0), timed("b", 128, 1.3))
    assert (found.leaders, found.sure, found.timed) == (("a",), "clear", 2)


def test_a_lead_within_the_margin_is_a_tie():
    (found,) = of(timed("a", 128, 1.0), timed("b", 128, 1.05), timed("c", 128, 2.0))
    assert (found.leaders, found.sure) == (("a", "b"), "a tie of 2")


def test_alone_it_is_the_only_one_measured():
    (found,) = of(timed("a", 128, 1.0), untimed("b", 128), timed("x", 128, 2.0, computes="other"))
    assert (found.leaders, found.sure) == (("a",), "the only one measured")
    assert found.timed == 2


def test_a_flagged_leader_is_in_doubt():
    (found,) = of(timed("a", 128, 1.0, flags=["contended: by another"]), timed("b", 128, 2.0))
    assert found.sure == "in doubt"


def test_where_nothing_exact_has_a_time_that_is_said():
    (found,) = of(timed("x", 128, 1.0, computes="its own operator", skill=0.9), untimed("a", 128))
    assert (found.answer, found.leaders, found.sure) == (None, (), "nothing exact was measured")
    assert found.faster == ()


@pytest.mark.parametrize("median", [None, math.nan, math.inf])
def test_a_time_that_is_no_number_leads_nowhere(median):
    (found,) = of(timed("a", 128, median), timed("b", 128, 1.0))
    assert (found.leaders, found.timed) == (("b",), 1)


def test_lengths_at_which_the_same_lead_are_one_stretch():
    times = {128: 1.0, 1024: 2.0, 2048: 3.0, 4096: 4.0}
    slower = {128: 0.5, 1024: 3.0, 2048: 4.0, 4096: 5.0}
    found = stretches(of(*line("a", times), *line("b", slower)))
    assert [(s.span, s.last.leaders) for s in found] == [
        ("128", ("b",)),
        ("1,024 to 4,096", ("a",)),
    ]
    assert found[1].last.length == 4096


def test_a_tie_stays_one_stretch_whoever_of_it_is_first():
    found = stretches(of(*line("a", {128: 1.0, 256: 2.02}), *line("b", {128: 1.01, 256: 2.0})))
    assert [s.span for s in found] == ["128 to 256"]
    assert set(found[0].last.leaders) == {"a", "b"}


def test_a_stretch_ends_where_others_join_the_lead():
    found = stretches(of(*line("a", {128: 1.0, 256: 2.0}), *line("b", {128: 1.5, 256: 2.01})))
    assert [s.last.sure for s in found] == ["clear", "a tie of 2"]


def faster(*others):
    (found,) = of(timed("a", 128, 1.0), *others)
    return found


def other(variant, median, skill, computes="its own operator"):
    return timed(variant, 128, median, computes=computes, skill=skill)


def test_what_is_faster_and_not_exact_is_named_with_what_it_loses():
    found = faster(other("x", 0.25, 0.1), other("y", 0.5, 0.6), other("z", 0.8, 0.9))
    assert [(f.variant, f.speedup) for f in found.faster] == [("x", 4.0), ("y", 2.0), ("z", 1.25)]
    assert (found.substitute.variant, found.substitute.distance) == ("y", pytest.approx(0.4))


def test_what_does_less_than_half_of_softmax_is_no_substitute_but_the_nearest_is_known():
    found = faster(other("x", 0.25, 0.1), other("y", 0.5, 0.4), other("z", 0.6, None))
    assert found.substitute is None
    assert found.nearest.variant == "y"


def test_what_is_not_faster_by_more_than_the_margin_is_not_named():
    found = faster(other("x", 0.97, 0.9), other("y", 2.0, 0.9))
    assert found.faster == ()
    assert found.substitute is found.nearest is None


def test_in_a_series_of_as_many_tokens_each_length_has_its_own_answer():
    records = [
        timed(v, 1024 // b, t * b, batch=b) for b in (4, 2, 1) for v, t in (("a", 1.0), ("b", 2.0))
    ]
    assert [(s.length, s.leaders) for s in of(*records)] == [
        (256, ("a",)),
        (512, ("a",)),
        (1024, ("a",)),
    ]
