"""The winner map: who wins and by how much, ties as ties, and a reason wherever nobody does."""

import math
import re

import pytest

from attnbench.report.figures import winner_map
from attnbench.report.figures.sheet import DEEPEST
from attnbench.report.scenes import ReportRun, scenes
from tests.report.page import runs
from tests.report.page.runs import at, other, rows, timed, untimed, words


def draw(*records):
    found, looks = runs.staged(*records)
    return winner_map.draw(found[0].run, found, looks)


def test_a_winner_is_named_with_its_lead_its_time_and_a_sentence_for_a_pointer():
    drawn = draw(timed("a", 0.010, 256), timed("b", 0.0131, 256), other("c", 1e-3, 256))
    assert {"a", "1.31×", "10 ms", "256"} <= set(words(drawn)) and "b" not in words(drawn)
    sentence = "256 tokens: a is the fastest exact variant, at 10 [9.8, 10.2] ms"
    assert any(word.startswith(sentence) for word in words(drawn))
    assert [row["winner"] for row in rows(drawn)] == ["a"]
    assert {"a", "only one"} <= set(words(draw(timed("a"))))
    said = words(draw(timed("a", 1.0, flags=["contended"]), timed("b", 2.0)))
    assert "2× ?" in said and any("?: in doubt" in word for word in said)


def test_a_tie_is_said_and_hatched_and_a_winner_is_not(monkeypatch):
    monkeypatch.setattr(ReportRun, "margin", 0.123)
    tie = draw(timed("a", 1.0), timed("b", 1.01), timed("c", 2.0))
    assert {"tie of 2", "a, b"} <= set(words(tie))
    assert "<pattern" in tie.svg and re.search(r"fill:url\(#map-0-\d+\)", tie.svg)
    assert (rows(tie)[0]["tied with"], rows(tie)[0]["next"]) == ("b", "c")
    assert any("a tie, within 12.3\xa0%" in word for word in words(tie))
    assert "<pattern" not in draw(timed("a", 1.0), timed("b", 2.0)).svg


def test_who_leads_most_often_is_said():
    records = [timed("a", 1.0, n) for n in (256, 512, 1024)]
    records += [timed("b", 2.0, 256), timed("b", 1.0, 512), timed("b", 0.5, 1024)]
    assert "a is the fastest or ties with it on 2 of 3, alone on 1" in words(draw(*records))


def test_a_length_that_nobody_won_says_why_and_what_was_tried_goes_before_what_never_runs():
    for status, why in (("timed_out", "timed out"), ("unavailable", "not available")):
        drawn = draw(timed("a", 1.0, 256), untimed("a", status, problem=512))
        assert why in words(drawn) and rows(drawn)[1]["why none"] == why
    never = [untimed(f"n{k}", "unavailable", problem=512) for k in range(5)]
    full = untimed("a", "out_of_memory", problem=512)
    assert "out of memory" in words(draw(timed("a", 1.0, 256), *never, full))
    decode = timed("a", 1.0, at(512, phase="decode").with_(q_len=1))
    said = words(draw(timed("a", 1.0, 256), decode))
    assert said.count("not run") == 2 and {"forward", "decode"} <= set(said)
    others = words(draw(timed("a", 1.0, 256), other("b", 1.0, 512)))
    assert {"nothing exact", "others timed"} <= set(others)


def test_the_colour_is_deeper_the_further_ahead_and_never_too_deep():
    depths = [winner_map.depth(lead) for lead in (None, 1.0, 1.05, 1.31, 2.0, 3.0, 100.0)]
    assert depths == sorted(depths)
    assert depths[2] < depths[3] < depths[4] < depths[5] == depths[6] == pytest.approx(DEEPEST)
    assert winner_map.depth(math.nan) == winner_map.depth(None)


def test_only_the_runs_own_regimes_are_drawn_and_nothing_exact_draws_nothing():
    ran = [runs.ran([timed(name)], number) for number, name in enumerate("ab")]
    looks = runs.looks([timed("a"), timed("b")])
    drawn = winner_map.draw(ran[1], scenes(ran), looks)
    assert {row["winner"] for row in rows(drawn)} == {"b"} and drawn.name == "map-1"
    assert draw(other("a")) is None
