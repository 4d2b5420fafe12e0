"""The verdict: computed from figures and rules, in all cases that there are."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.features.claims.claim import (
    ClaimFigure,
    ClaimOutcome,
    ClaimRule,
    ClaimVerdict,
    InvalidClaim,
    PointStanding,
    held,
    judged,
)
from tests.claims.made import claim, point

NUMBERS = st.floats(-1e9, 1e9)
POINTS = st.builds(
    lambda rule, published, tolerance: point("one", rule, published, tolerance),
    st.sampled_from(ClaimRule),
    NUMBERS,
    st.floats(0, 10),
)
FIGURES = st.lists(NUMBERS, min_size=3, max_size=3).map(
    lambda some: ClaimFigure(sorted(some)[1], min(some), max(some))
)


def kept(point, value):
    """What a rule asks of a number, said anew."""
    published, share = point.published, point.tolerance * abs(point.published)
    return {
        ClaimRule.NEAR: published - share <= value <= published + share,
        ClaimRule.WITHIN: published - point.tolerance <= value <= published + point.tolerance,
        ClaimRule.AT_MOST: value <= published + share,
        ClaimRule.AT_LEAST: value >= published - share,
    }[point.rule]


@given(POINTS, NUMBERS)
def test_a_figure_without_an_interval_holds_or_it_does_not(one, value):
    assert held(one, ClaimFigure(value)) is (
        PointStanding.HOLDS if kept(one, value) else PointStanding.FAILS
    )


@given(POINTS, FIGURES)
def test_an_interval_holds_only_as_a_whole_and_fails_only_as_a_whole(one, figure):
    low, high = figure.interval
    ends = kept(one, low), kept(one, high)
    state = held(one, figure)
    if all(ends):
        assert state is PointStanding.HOLDS
    elif any(ends):
        assert state is PointStanding.CANT_TELL
    else:  # both ends are out: on one side of the region, or on either
        least, most = one.region
        assert state is (
            PointStanding.CANT_TELL if low < least and high > most else PointStanding.FAILS
        )


@given(POINTS, FIGURES, st.floats(0, 1e9))
def test_a_wider_interval_never_tells_more(one, figure, more):
    wider = ClaimFigure(figure.value, figure.low - more, figure.high + more)
    assert held(one, wider) in (held(one, figure), PointStanding.CANT_TELL)


@given(POINTS)
def test_what_was_published_always_holds(one):
    assert held(one, ClaimFigure(one.published)) is PointStanding.HOLDS


@pytest.mark.parametrize("rule", ClaimRule)
@pytest.mark.parametrize("value", [math.nan, None])
def test_what_is_no_number_never_holds(rule, value):
    assert held(point(rule=rule), ClaimFigure(value)) in (
        PointStanding.FAILS,
        PointStanding.NO_FIGURE,
    )
    assert held(point(rule=rule), None) is PointStanding.NO_FIGURE


def test_infinity_is_at_least_anything_and_at_most_nothing():
    assert held(point(rule=ClaimRule.AT_LEAST), ClaimFigure(math.inf)) is PointStanding.HOLDS
    assert held(point(rule=ClaimRule.AT_MOST), ClaimFigure(math.inf)) is PointStanding.FAILS
    assert (
        held(point(rule=ClaimRule.NEAR, tolerance=0.5), ClaimFigure(math.inf))
        is PointStanding.FAILS
    )


STATES = {
    PointStanding.HOLDS: ClaimFigure(0.5),
    PointStanding.FAILS: ClaimFigure(2.0),
    PointStanding.CANT_TELL: ClaimFigure(1.0, 0.5, 1.5),
    PointStanding.NO_FIGURE: ClaimFigure(None, why="it has its reason"),
}


@given(st.lists(st.sampled_from(PointStanding), min_size=1, max_size=5))
def test_a_claim_is_reproduced_only_where_every_point_holds(states):
    points = [point(str(n)) for n in range(len(states))]
    figures = {str(n): STATES[state] for n, state in enumerate(states)}
    verdict, reason = judged(claim(*points), figures)
    if PointStanding.FAILS in states:
        assert verdict is ClaimVerdict.NOT_REPRODUCED
    elif PointStanding.NO_FIGURE in states:
        assert verdict is ClaimVerdict.NOT_RUN
        assert "it has its reason" in reason
    elif PointStanding.CANT_TELL in states:
        assert verdict is ClaimVerdict.NOT_REPRODUCED
        assert "can't be told" in reason
    else:
        assert (verdict, reason) == (ClaimVerdict.REPRODUCED, "")
    assert bool(reason) == (verdict is not ClaimVerdict.REPRODUCED)


def test_the_reason_names_the_points():
    points = [point(name) for name in "abcde"]
    figures = {name: ClaimFigure(9.0) for name in "abcd"} | {"e": ClaimFigure(0.0)}
    _, reason = judged(claim(*points), figures)
    assert reason == "4 of 5 points do not hold: a, b, c and 1 more"


@pytest.mark.parametrize(
    "wrong",
    [
        {"published": math.nan},
        {"published": math.inf},
        {"tolerance": -0.1},
        {"tolerance": math.nan},
    ],
)
def test_a_point_whose_rule_is_none_can_not_be_written(wrong):
    with pytest.raises(InvalidClaim):
        point(**wrong)


def test_a_rule_that_nobody_knows_can_not_be_written():
    with pytest.raises(ValueError, match="about"):
        point(rule="about")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Made Up"},
        {"how": "os.system"},
        {"minutes": 0.0},
        {"minutes": 100.0},
    ],
)
def test_a_claim_that_can_not_be_tried_can_not_be_written(wrong):
    with pytest.raises(InvalidClaim):
        claim(**wrong)


def test_two_points_of_one_name_can_not_be_written():
    with pytest.raises(InvalidClaim, match="a name of its own"):
        claim(point(), point())


def test_an_outcome_is_plain_values_and_its_verdict_is_not_the_callers_to_choose():
    from attnbench.features.claims.claim import ClaimFindings

    one = ClaimOutcome.of(claim(point()), ClaimFindings({"one": ClaimFigure(math.inf)})).to_dict()
    assert one["verdict"] == "not reproduced"
    assert one["points"][0]["ours"]["value"] is None
    assert one["points"][0]["ours"]["why"] == "it is no finite number"
