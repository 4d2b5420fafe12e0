"""Memory taken apart: bars by hand, which are left out, and that they can be read."""

from pathlib import Path

import pytest

from attnbench.report.figures import memory
from impls.loading import load_file

made = load_file(Path(__file__).with_name("drawn.py"))
timed, shown, table = made.timed, made.shown, made.table
MIB = 2**20


def draw(*records):
    (scene,), looks = shown(*records)
    return memory.draw(scene, looks)


def rectangles(figure, name):
    """Of a variant: where each of its pieces begins and ends."""
    pieces = [p for p in figure.axes[0].patches if str(p.get_gid()).split("|")[0] == name]
    return [(p.get_x(), p.get_x() + p.get_width()) for p in pieces]


def test_a_bar_is_what_is_saved_and_then_what_is_needed_besides(monkeypatch):
    kept = made.watch(monkeypatch, memory)
    draw(timed("a", peak=10 * MIB, saved=4 * MIB, expected=11 * MIB), timed("b", peak=6 * MIB))
    assert rectangles(kept[0], "v0") == [(0, 4 * MIB), (4 * MIB, 10 * MIB)]
    assert rectangles(kept[0], "v1") == [(0, 6 * MIB)]
    (tick,) = [x for x in kept[0].axes[0].lines if list(x.get_xdata()) == [11 * MIB] * 2]
    assert tick.get_ydata()[0] < 1 < tick.get_ydata()[1]  # in the second row: the least is first


def test_the_least_is_first_and_the_table_has_them_all():
    drawn = draw(*(timed(f"v{n}", peak=(40 - n) * MIB) for n in range(40)))
    rows = table(drawn)
    assert [int(row["peak_bytes"]) // MIB for row in rows] == list(range(1, 41))
    assert "16 more in the CSV" in made.words_of(drawn)


def test_where_there_is_no_room_for_all_exact_ones_stay(monkeypatch):
    kept = made.watch(monkeypatch, memory)
    exact = [timed(f"e{n}", peak=(1 + n) * 20 * MIB) for n in range(10)]
    others = [timed(f"x{n}", peak=(1 + n) * MIB, computes="its own operator") for n in range(30)]
    draw(*exact, *others)
    words = {text.get_text() for text in kept[0].axes[0].texts}
    assert {f"e{n}" for n in range(10)} <= words
    assert {f"x{n}" for n in range(14)} <= words and "x14" not in words


def test_on_a_logarithmic_scale_no_length_stands_for_an_amount(monkeypatch):
    kept = made.watch(monkeypatch, memory)
    drawn = draw(timed("a", peak=MIB, saved=MIB // 2), timed("b", peak=50 * MIB, expected=60 * MIB))
    axes = kept[0].axes[0]
    assert not axes.patches
    lines = [(list(line.get_xdata()), line.get_gid()) for line in axes.lines]
    assert ([MIB // 2, MIB], "v0") in lines
    dots = [xs for xs, gid in lines if "peak" in str(gid)]
    assert dots == [[MIB], [50 * MIB]]
    words = made.words_of(drawn)
    key = "dot: the peak, line: from what is saved for backward; |: expected by its formula"
    assert key in words


def test_who_needs_least_of_what_is_exact_is_said():
    words = made.words_of(
        draw(
            timed("a", peak=MIB),
            timed("b", peak=MIB),
            timed("c", peak=9 * MIB),
            timed("x", peak=10, computes="its own operator"),
        )
    )
    assert "Exact: least a and b, 1 MiB; most c, 9 MiB" in words


@pytest.mark.parametrize(("most", "scale"), [(30, "linear"), (50, "log")])
def test_the_scale_is_logarithmic_where_the_least_would_be_a_point(monkeypatch, most, scale):
    kept = made.watch(monkeypatch, memory)
    drawn = draw(timed("a", peak=MIB), timed("b", peak=most * MIB))
    assert kept[0].axes[0].get_xscale() == scale
    assert ("logarithmic scale" in made.words_of(drawn)) == (scale == "log")


def test_it_is_of_the_longest_length_that_most_reach():
    drawn = draw(
        timed("a"),
        timed("b"),
        timed("c"),
        timed("a", 256, peak=5 * MIB),
        timed("b", 256, peak=7 * MIB),
        timed("c", 512),
    )
    assert {row["length"] for row in table(drawn)} == {"256"}
    assert drawn.description == "Of what is exact, a needs least, 5 MiB, and b most, 7 MiB"


def test_without_memory_or_times_there_is_none():
    assert draw(timed(peak=None)) is None
    assert draw(timed(peak=0)) is None
    assert draw(timed(median=None)) is None


def test_more_saved_than_the_peak_is_drawn_as_the_peak(monkeypatch):
    kept = made.watch(monkeypatch, memory)
    draw(timed("a", peak=MIB, saved=2 * MIB))
    assert rectangles(kept[0], "v0") == [(0, MIB)]


@pytest.mark.parametrize("count", [1, 3, 24, 45])
def test_its_words_can_be_read(monkeypatch, count):
    kept = made.watch(monkeypatch, memory)
    drawn = draw(*made.many(count))
    made.assert_words_are_readable(kept[0])
    assert "<script" not in drawn.svg


@pytest.mark.parametrize("peak", [900, 5 * 2**10, 3 * 2**30, 2**41])
def test_any_size_has_ticks_that_can_be_read(monkeypatch, peak):
    kept = made.watch(monkeypatch, memory)
    draw(timed("a", peak=peak), timed("b", peak=peak // 3))
    made.assert_words_are_readable(kept[0])
    assert 2 <= len(kept[0].axes[0].get_xticks()) <= 6
