"""How sure the answers are, and the one variant that may be taken everywhere: all is counted."""

from pathlib import Path

import pytest

from attnbench.features.report.contents import how_sure, margins, only
from attnbench.report.scenes import ReportRun, scenes
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
timed, at = runs.timed, runs.at


def ran(*records):
    return ReportRun(0, Path("box/run"), runs.HEADER, records, range(1, len(records) + 1))


def told_only(*records):
    run = ran(*records)
    return only(run, scenes([run]))


def test_answers_are_counted_by_how_sure_they_are():
    flags = ["drifted: much"]
    run = ran(
        timed("a", 1e-3, at(64)),
        timed("b", 2e-3, at(64)),
        timed("a", 1e-3, at(128)),
        timed("b", 1e-3, at(128)),
        timed("a", 1e-3, at(256)),
        timed("b", 1e-3, at(256), flags=flags),
        timed("a", 1e-3, at(512), flags=flags),
        timed("b", 2e-3, at(512)),
        timed("a", 1e-3, at(1024)),
        timed("near", 1e-3, at(1024), computes="its own operator"),
    )
    assert how_sure(scenes([run])) == (
        "of 5 answers 1 is clear, 1 is a tie, 2 are in doubt, 1 had nothing exact beside it; "
        "9 samples a time at the median; something was amiss while 2 of 10 times were taken"
    )


def test_where_nothing_was_amiss_that_is_said():
    run = ran(timed("a", 1e-3), timed("b", 2e-3))
    assert how_sure(scenes([run])) == (
        "of 1 answer 1 is clear; 9 samples a time at the median; nothing was amiss while times "
        "were taken"
    )


def test_without_an_answer_nothing_is_said_of_how_sure_it_is():
    assert how_sure(scenes([ran(runs.untimed("a", "failed"))])) == ""
    assert how_sure(scenes([ran(timed("w", 1e-3, computes="its own operator"))])) == ""


def races(*ratios, beside=1.0):
    """A problem for each: how many times the best ``a`` took there."""
    for n, ratio in enumerate(ratios, 1):
        yield timed("a", 1e-3 * ratio, at(64 * n))
        yield timed("best" if ratio > 1 else "slow", 1e-3 if ratio > 1 else 9e-3, at(64 * n))


@pytest.mark.parametrize(
    ("ratios", "near"),
    [
        ((1, 1, 1), "within 1.05× of the best on 3 of 3 problems"),
        (
            (1, 1, 1.04),
            "within 1.05× of the best on 3 of 3 problems, at worst 1.04× (forward, 192 to",
        ),
        (
            (1,) * 9 + (2.13,),
            "within 1.05× of the best on 9 of 10 problems, at worst 2.13× (forward,",
        ),
        (
            (1,) * 8 + (1.2, 2.13),
            "within 1.25× of the best on 9 of 10 problems, at worst 2.13× (forw",
        ),
        (
            (1, 1, 1, 4, 1, 5),
            "within 2× of the best on 4 of 6 problems, at worst 5.00× (forward, 384",
        ),
    ],
)
def test_the_smallest_factor_that_covers_nine_in_ten_is_said(ratios, near):
    found = told_only(*races(*ratios))
    assert found.variant == "a"
    assert found.near.startswith(near)
    assert str(found) == f"a, {found.near}."


def test_where_it_has_no_time_is_said_too():
    records = [*races(1, 1, 1, 1, 1), timed("x", 1e-3, at(999)), timed("y", 1e-3, at(999))]
    assert told_only(*records).near == "within 2× of the best on 5 of 6 problems; no time on 1"


def test_of_few_problems_nothing_is_recommended():
    assert told_only(*races(1, 1)) is None
    assert told_only(timed("a", 1e-3)) is None


def test_a_decode_is_told_in_keys_and_a_regime_by_what_tells_it_apart():
    records = [*races(1, 1)]
    for name, median in (("a", 2e-3), ("best", 1e-3)):
        records.append(timed(name, median, at(64).with_(phase="decode", q_len=1, kv_len=4096)))
    assert told_only(*records).near.endswith("at worst 2.00× (decode, 4,096 keys)")


def test_the_margin_is_the_runs_own(monkeypatch):
    shares = iter([0.05, 0.0723, 0.05])
    monkeypatch.setattr(ReportRun, "margin", property(lambda _: next(shares)))
    assert margins([ran()]) == "5\u00a0%"
    assert margins([ran(), ran()]) == "5\u00a0% to 7.2\u00a0%"
