"""The answer as cards: who leads, how sure that is, and what is beside it."""

from pathlib import Path

import pytest

from attnbench.features.report.table import NAMED, PageCell, cards
from attnbench.report.figures.style import looks
from attnbench.report.scenes import ReportRun, scenes
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
timed, at = runs.timed, runs.at


@pytest.fixture
def rows():
    """The rows of the one card of these records."""

    def made(*records):
        run = ReportRun(0, Path("box/run"), runs.HEADER, records, range(1, len(records) + 1))
        found, look = scenes([run]), looks(records)
        cells = [
            PageCell(n, r, run, n + 1, None, look[r.variant], None, None)
            for n, r in enumerate(records)
        ]
        (card,) = cards(found, look, cells)
        return card.rows

    return made


def inexact(variant, median, skill, **more):
    distance = None if skill is None else runs.far(skill)
    return timed(variant, median, computes="approximates softmax", distance=distance, **more)


def test_the_longest_lengths_come_first_and_alike_ones_are_one_row(rows):
    found = rows(
        timed("sdpa", 1e-3, at(64)),
        timed("matmul", 2e-3, at(64)),
        timed("sdpa", 2e-3, at(128)),
        timed("matmul", 4e-3, at(128)),
        timed("sdpa", 9e-3, at(256)),
        timed("matmul", 4e-3, at(256)),
    )
    assert [row.stretch.span for row in found] == ["256", "64 to 128"]
    assert [row.winner.variant for row in found] == ["matmul", "sdpa"]
    assert [row.badges for row in found] == [[("clear", "clear")]] * 2
    assert found[0].lead == "2.25× [2.16, 2.34] faster than sdpa"


def test_of_many_that_tie_some_are_named_and_the_rest_is_counted(rows):
    (row,) = rows(*(timed(f"v{n}", 1e-3) for n in range(NAMED + 3)))
    assert row.winner.variant == "v0"
    assert [cell.record.variant for cell in row.tied] == [f"v{n + 1}" for n in range(NAMED)]
    assert row.more == 2
    assert row.badges == [("tie", f"a tie of {NAMED + 3}")]
    assert row.lead == "none that is exact is slower for sure"


def test_one_doubtful_length_makes_its_stretch_doubtful(rows):
    busy = ["contended"]
    (row,) = rows(
        timed("sdpa", 1e-3, at(64), flags=busy),
        timed("matmul", 2e-3, at(64), flags=busy),
        timed("sdpa", 2e-3, at(128)),
        timed("matmul", 4e-3, at(128)),
    )
    assert row.badges == [("doubt", "in doubt")]
    assert "sdpa" in row.doubted


def test_a_tie_that_is_in_doubt_is_called_both(rows):
    (row,) = rows(timed("sdpa", 1e-3, flags=["drifted: much"]), timed("matmul", 1e-3))
    assert row.badges == [("tie", "a tie of 2"), ("doubt", "in doubt")]


def test_doubts_beyond_a_few_are_counted(rows, monkeypatch):
    (row,) = rows(timed("sdpa", 1e-3))
    monkeypatch.setattr(type(row), "doubts", ["a", "b", "c", "d", "e"])
    assert row.doubted == "a; b; c; 2 more"


def test_what_is_faster_and_keeps_enough_is_named_with_what_it_keeps(rows):
    (row,) = rows(timed("sdpa", 4e-3), inexact("near", 2e-3, 0.7), inexact("poor", 1e-3, 0.1))
    assert row.beside.before == "Faster, but not exact:" and row.other.variant == "near"
    assert row.beside.after == "2.00× as fast, keeps 70\u00a0% (approximates softmax)"


def test_where_nothing_faster_keeps_enough_the_nearest_is_named(rows):
    (row,) = rows(timed("sdpa", 4e-3), inexact("poor", 1e-3, 0.1), inexact("worse", 1e-3, -9.0))
    assert "keeps half" in row.beside.before and row.other.variant == "poor"
    assert row.beside.after == "4.00× as fast, keeps 10\u00a0%"


def test_what_is_faster_by_nobody_knows_what_loss_is_named_so(rows):
    (row,) = rows(timed("sdpa", 4e-3), inexact("unknown", 1e-3, None))
    assert "not measured" in row.beside.before and row.other.variant == "unknown"


def test_where_nothing_is_faster_that_is_said(rows):
    (row,) = rows(timed("sdpa", 1e-3), inexact("slow", 2e-3, 0.9))
    assert row.other is None and "is faster" in row.beside.before
    assert row.badges == [("only", "the only one")]
    assert row.lead == "nothing exact beside it"


def test_without_anything_exact_nothing_is_ranked(rows):
    (row,) = rows(inexact("near", 2e-3, 0.7))
    assert (row.winner, row.badges, row.lead, row.memory) == (None, (), "", "")
    assert row.beside is None


def test_what_needs_far_less_memory_is_named(rows):
    large = timed("matmul", 1e-3).memory
    small = type(large)(peak_bytes=1 << 20, saved_bytes=0, expected_bytes=None, method="m")
    large = type(large)(peak_bytes=8 << 20, saved_bytes=0, expected_bytes=None, method="m")
    (row,) = rows(timed("matmul", 1e-3, memory=large), timed("sdpa", 2e-3, memory=small))
    assert row.memory == "8 MiB (sdpa: 1 MiB at 2.00× the time)"
