"""The winner map: who wins and by how much, ties as ties, and a reason wherever nobody does."""

import math

import pytest

from attnbench.report.figures import winner_map
from attnbench.report.figures.sheet import DEEPEST
from attnbench.report.scenes import ReportRun
from tests.report.page import runs
from tests.report.page.runs import at, other, rows, timed, untimed, words


def draw(*records):
    found, looks = runs.staged(*records)
    return winner_map.draw(found[0].run, found, looks)


def test_a_winner_has_its_lead_and_its_time_and_a_tie_is_no_winner(monkeypatch):
    drawn = draw(timed("a", 0.010, 256), timed("b", 0.0131, 256), other("c", 1e-3, 256))
    assert {"a", "1.31×", "10 ms", "256"} <= set(words(drawn)) and "b" not in words(drawn)
    assert [row["winner"] for row in rows(drawn)] == ["a"] and "<pattern" not in drawn.svg
    monkeypatch.setattr(ReportRun, "margin", 0.123)
    tie = draw(timed("a", 1.0), timed("b", 1.01), timed("c", 2.0))
    assert {"tie of 2", "a, b"} <= set(words(tie)) and "<pattern" in tie.svg
    assert (rows(tie)[0]["tied with"], rows(tie)[0]["next"]) == ("b", "c")
    assert "2× ?" in words(draw(timed("a", 1.0, flags=["contended"]), timed("b", 2.0)))
    assert draw(other("a")) is None


def test_a_length_that_nobody_won_says_why_and_what_was_tried_goes_before_what_never_runs():
    never = [untimed(f"n{k}", "unavailable", problem=512) for k in range(5)]
    full = untimed("a", "out_of_memory", problem=512)
    for ended, why in (
        (never, "not available"),
        ([*never, full], "out of memory"),
        ([other("b", 1.0, 512)], "nothing exact"),
        ([timed("a", 1.0, at(512, phase="decode").with_(q_len=1))], "not run"),
    ):
        assert why in words(draw(timed("a", 1.0, 256), *ended))


def test_the_colour_is_deeper_the_further_ahead_and_never_too_deep():
    depths = [winner_map.depth(lead) for lead in (None, 1.0, 1.05, 1.31, 2.0, 3.0, 100.0)]
    assert depths == sorted(depths)
    assert depths[2] < depths[3] < depths[4] < depths[5] == depths[6] == pytest.approx(DEEPEST)
    assert winner_map.depth(math.nan) == winner_map.depth(None)
