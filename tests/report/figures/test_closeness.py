"""The performance profile: its stairs by hand, one run alone, and that it can be read."""

from pathlib import Path

import pytest

from attnbench.answer.ranking import Closeness
from attnbench.report.figures import closeness
from attnbench.report.figures.style import looks
from attnbench.report.scenes import scenes
from impls.loading import load_file

made = load_file(Path(__file__).with_name("drawn.py"))
timed, table = made.timed, made.table


def draw(*records):
    run = made.ran(records)
    return closeness.draw(run, scenes([run]), looks(records))


def test_the_stairs_rise_where_a_problem_is_reached():
    of = Closeness("a", (1.0, 1.5, 3.0, 9.0), 5)
    xs, ys = closeness._steps(of, 8.0)
    assert list(zip(xs, ys, strict=True)) == [
        (1.0, 0.2),
        (1.5, 0.2),
        (1.5, 0.4),
        (3.0, 0.4),
        (3.0, pytest.approx(0.6)),
        (8.0, pytest.approx(0.6)),
    ]


def test_the_table_beside_it_counts_the_same():
    drawn = draw(
        timed("a", 128, 1.0), timed("b", 128, 1.2), timed("a", 256, 8.0), timed("b", 256, 2.0)
    )
    rows = {row["variant"]: row for row in table(drawn)}
    assert [float(rows["a"][f"within_{f}"]) for f in ("1", "2", "4", "8")] == [0.5, 0.5, 1, 1]
    assert [float(rows["b"][f"within_{f}"]) for f in ("1", "1.1", "1.25")] == [0.5, 0.5, 1]
    assert float(rows["a"]["geometric_mean_ratio"]) == pytest.approx(2.0)
    assert drawn.description.startswith(
        "b takes no more than 1.1 times the best on 50% of the problems"
    )


def test_what_it_shows_is_said_with_counts_and_not_rounded():
    lengths = [128 << k for k in range(10)]
    best = [timed("best", n) for n in lengths]
    even = [timed("even", n, 1.24e-3) for n in lengths]
    words = made.words_of(draw(*best, *even))
    assert "best is within 1.05× of the fastest on 10 of 10 problems" in words
    odd = [timed("odd", n, 0.5e-3 if n == 128 else 9e-3) for n in lengths]
    words = made.words_of(draw(*best, *odd))
    assert "best is within 1.05× of the fastest on 9 of 10 problems" in words
    often = [timed("often", n, 0.81e-3 if n < 512 else 9e-3) for n in lengths]
    words = made.words_of(draw(*best, *often))
    assert "best is within 1.25× of the fastest on 10 of 10 problems" in words


def test_named_lines_differ_in_marker_or_dash(monkeypatch):
    kept = made.watch(monkeypatch, closeness)
    draw(*(timed(f"v{n}", 128 << k, 1e-3 * (1 + (n * k) % 7)) for n in range(45) for k in range(4)))
    pieces = [
        (line.get_marker(), line._unscaled_dash_pattern)
        for line in kept[0].artists
        if line.get_marker() not in ("None", None)
    ]
    assert len(set(pieces)) == len(pieces) == closeness.NAMED


def test_only_the_run_it_is_of_counts():
    one, other = [timed("a"), timed("b", median=2e-3)], [timed("a", median=9e-3), timed("b")]
    runs = [made.ran(one), made.ran(other, number=1)]
    found = [closeness.draw(run, scenes(runs), looks(one)) for run in runs]
    assert [d.description.split()[0] for d in found] == ["a", "b"]
    assert [d.name for d in found] == ["closeness-0", "closeness-1"]


def test_with_nothing_to_compare_there_is_none():
    assert draw(timed("a"), timed("x", computes="its own operator")) is None
    assert draw(timed("a"), timed("b", median=None)) is None
    assert draw() is None


@pytest.mark.parametrize(("worst", "end"), [(1.3, 2.0), (3.9, 4.0), (4.1, 8.0), (60.0, 8.0)])
def test_the_axis_goes_as_far_as_the_worst_and_no_further_than_eight_times(monkeypatch, worst, end):
    kept = made.watch(monkeypatch, closeness)
    draw(timed("a"), timed("b", median=worst * 1e-3))
    assert kept[0].axes[0].get_xlim()[1] == end


@pytest.mark.parametrize("count", [2, 8, 45])
def test_its_words_can_be_read(monkeypatch, count):
    kept = made.watch(monkeypatch, closeness)
    records = [
        timed(f"v{n}" if n % 4 else made.NASTY + str(n), 128 << k, 1e-3 * (1 + (n * k) % 7))
        for n in range(count)
        for k in range(4)
    ]
    drawn = draw(*records)
    made.assert_words_are_readable(kept[0])
    assert "<script" not in drawn.svg and 'class="v v1"' in drawn.svg


def test_of_very_many_the_nearest_are_drawn_and_the_rest_is_counted():
    drawn = draw(*(timed(f"v{n}", median=(1 + n / 50) * 1e-3) for n in range(200)))
    assert len(drawn.inline) < 40_000
    assert len(table(drawn)) == 200
    assert any("140 more in the CSV" in words for words in made.words_of(drawn))


def test_the_same_records_give_the_same_bytes():
    records = made.many(20)
    assert draw(*records) == draw(*records)
