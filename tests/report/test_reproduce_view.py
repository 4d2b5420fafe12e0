"""Claims in words and tables."""

import pytest

from attnbench.features.claims import view
from attnbench.features.claims.claim import (
    ClaimFigure,
    ClaimFindings,
    ClaimOutcome,
    ClaimRule,
    ClaimTable,
    ClaimVerdict,
)
from attnbench.features.claims.view import counts, points, theirs
from tests.claims.made import claim, point


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (
            point(rule=ClaimRule.NEAR, published=354.0, tolerance=0.1, unit="TFLOP/s"),
            "354 ± 10\N{NO-BREAK SPACE}% TFLOP/s",
        ),
        (point(rule=ClaimRule.WITHIN, published=0.5, tolerance=0.15, ours=True), "0.5 ± 0.15*"),
        (point(rule=ClaimRule.WITHIN, published=0.0, tolerance=0.01), "0, within 0.01"),
        (
            point(rule=ClaimRule.AT_MOST, published=0.00092, tolerance=9.0),
            "0.00092; at most 0.0092",
        ),
        (point(rule=ClaimRule.AT_MOST, published=0.01, ours=True), "at most 0.01*"),
        (point(rule=ClaimRule.AT_LEAST, published=20.0, tolerance=0.99), "20; at least 0.2"),
        (point(rule=ClaimRule.AT_LEAST, published=-2.0), "at least -2"),
    ],
)
def test_a_rule_is_said_with_what_was_published_and_where_the_limit_lies(one, said):
    assert theirs(one.to_dict()) == said


def tried(**figures):
    behind = ClaimTable("behind it", ["what", "much"], [["x", 0.5], ["y", None], ["z", 2048]])
    found = ClaimFindings(
        {name: ClaimFigure(*each) for name, each in figures.items()}, ["a note"], [behind]
    )
    return ClaimOutcome.of(claim(point("one"), point("two", ClaimRule.AT_LEAST)), found, 1.0)


def test_ours_stands_beside_theirs_with_its_interval():
    one, two = points(tried(one=(0.5, 0.4, 0.6), two=(None, None, None, "it was ended")).to_dict())
    assert (one.ours, one.interval, one.held) == ("0.5", "0.4 to 0.6", "holds")
    assert (two.ours, two.held, two.why) == ("–", "no figure", "it was ended")


def test_the_table_has_every_point_and_the_count(capsys):
    other = ClaimOutcome(claim(name="other"), ClaimVerdict.NOT_RUN, "it needs more", "get it")
    view.table([tried(one=(0.5,), two=(0.1,)).to_dict(), other.to_dict()])
    said = " ".join(capsys.readouterr().out.split())
    for word in (
        "what one says",
        "does not hold",
        "other not run it needs more; get it",
        "2 claims: 1 not reproduced, 1 not run",
    ):
        assert word in said


def test_details_have_the_figures_behind_the_points(capsys):
    view.details(tried(one=(0.5,), two=(0.1,)).to_dict())
    said = " ".join(capsys.readouterr().out.split())
    for word in (
        "a page: somebody",
        "a note",
        "behind it",
        "y –",
        "z 2,048",
        "attnbench reproduce made-up",
    ):
        assert word in said


def test_markup_in_a_reason_is_only_text(capsys):
    rows = [ClaimOutcome(claim(), ClaimVerdict.NOT_RUN, "[red]it[/] died", "[/bold]").to_dict()]
    view.table(rows)
    assert "[red]it[/] died; [/bold]" in " ".join(capsys.readouterr().out.split())


def test_a_line_says_the_verdict_and_why():
    one = tried(one=(0.5,), two=(0.1,))
    assert view.line(one) == ("made-up: not reproduced (1 of 2 points does not hold: two) [1 s]")


def test_counts_are_in_the_order_of_what_is_known():
    said = counts([{"verdict": v} for v in ("not run", "reproduced", "not run")])
    assert said == "1 reproduced, 2 not run"
