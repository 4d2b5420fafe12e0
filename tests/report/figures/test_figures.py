"""All figures: words that can be read whatever the records hold, and nothing drawn of nothing."""

import math

import pytest

from attnbench.report.figures import (
    closeness,
    memory,
    roofline,
    scaling,
    tradeoffs,
    winner_map,
)
from attnbench.report.figures.scaling import panels
from tests.report.page import runs
from tests.report.page.runs import assert_words_are_readable, at, crowd, other, rows, timed, words


def of_scene(module):
    def draw(*records, **header):
        (scene, *_), looks = runs.staged(*records, **header)
        drawn = module.draw(scene, looks)
        return drawn if isinstance(drawn, list) else [drawn] if drawn else []

    return draw


def of_run(module):
    def draw(*records, **header):
        found, looks = runs.staged(*records, **header)
        drawn = module.draw(runs.ran(records, **header), found, looks)
        return [drawn] if drawn else []

    return draw


def scaled(*records, **header):
    (scene, *_), looks = runs.staged(*records, **header)
    wanted = ("r0-exact-time-ms", "r0-others-time-share", "r0-exact-memory", "r0-others-error")
    some = (panel for panel in panels(scene, looks, "variant.0?features=128"))
    return [scaling.figure(panel) for panel in some if panel.name in wanted]


DRAW = {
    "map": of_run(winner_map),
    "closeness": of_run(closeness),
    "scaling": scaled,
    "tradeoffs": of_scene(tradeoffs),
    "roofline": of_scene(roofline),
    "memory": of_scene(memory),
}


@pytest.mark.parametrize("count", [2, 45])
@pytest.mark.parametrize("section", DRAW)
def test_no_word_lies_on_another_or_is_cut_off_and_markup_is_text(section, count, kept):
    for drawn in (made := DRAW[section](*crowd(count), machine={"name": "m" * 300})):
        assert "<img" not in drawn.svg and len(drawn.inline) < 100_000
        assert (drawn.section, drawn.svg.count("<svg")) == (section, 1)
        assert 'class="v v' in drawn.svg and "var(--ink)" in drawn.inline
    assert made
    for figure in kept:
        assert_words_are_readable(figure)


@pytest.mark.parametrize("section", ["scaling", "tradeoffs", "memory", "map"])
def test_one_length_of_one_variant_is_a_figure(section, kept):
    for drawn in DRAW[section](timed("only", 1e-3, 4096)):
        assert "only" in words(drawn) or "tokens" in drawn.title
    for figure in kept:
        assert_words_are_readable(figure)


@pytest.mark.parametrize("section", DRAW)
def test_nothing_measured_draws_nothing_and_the_same_records_the_same_bytes(section):
    assert DRAW[section](runs.untimed("a", "failed")) == []
    assert DRAW[section](*crowd(5)) == DRAW[section](*crowd(5))


@pytest.mark.parametrize("section", ["closeness", "memory", "roofline", "tradeoffs"])
def test_a_figure_of_one_length_has_a_row_a_variant_of_the_longest_that_most_reach(section):
    names = ("a", "b", "c")
    records = [timed(name, n * 1e-5 * k, n) for k, name in enumerate(names, 1) for n in (64, 128)]
    for drawn in DRAW[section](*records, timed("a", 1e-3, 256)):
        assert {row["variant"] for row in rows(drawn)} == set(names)
        assert "256 tokens" not in drawn.title


@pytest.mark.parametrize("bad", [math.nan, -1.0, None])
def test_what_is_no_number_is_left_out(bad):
    whole = timed("broken", 1.0, 256)
    broken = whole.with_(time=whole.time.with_(low_s=bad, high_s=bad))
    (time, *_) = scaled(timed("a", 1e-3, 256), timed("a", 2e-3, 512), broken)
    (row,) = (r for r in rows(time) if r["variant"] == "broken")
    assert row["low"] == row["high"] == "1000"
    if bad is not None:
        distant = [timed("a", 1e-3, 256), other("far", 1e-3, 256, distance=bad)]
        assert not any("others-error" in drawn.name for drawn in scaled(*distant))
        assert "far" not in {row["variant"] for row in rows(DRAW["tradeoffs"](*distant)[0])}
        broken = broken.with_(time=broken.time.with_(median_s=bad))
        for section in ("scaling", "roofline", "tradeoffs"):
            drawn = DRAW[section](timed("a", 1e-3, 256), broken)[0]
            assert "broken" not in {row["variant"] for row in rows(drawn)}


def test_a_crowd_is_drawn_as_far_as_it_can_be_told_apart_and_the_rest_is_counted(kept):
    def spread(n):
        return {
            "memory": runs.memory((40 - n % 40) << 20),
            "cost": runs.Work(flops=10**6 * (1 + n), bytes=10**4),
        }

    records = [timed(f"v{n}", (1 + n / 50) * 1e-3, **spread(n)) for n in range(70)]
    counts = {"memory": 46, "closeness": 10, "roofline": 10}
    for section, count in counts.items():
        (drawn,) = DRAW[section](*records)
        assert any(f"{count} more in the CSV" in word for word in words(drawn)), section
        assert len(rows(drawn)) == 70 and len(drawn.inline) < 60_000
        assert_words_are_readable(kept[-1])
    heads = [timed("a", 1e-3, at(256, heads=n, kv_heads=n)) for n in range(1, 46)]
    (drawn,) = DRAW["map"](*heads, *(timed("a", 1e-3, at(64 * k)) for k in range(1, 20)))
    (said,) = (word for word in words(drawn) if word.startswith("Not drawn"))
    assert said == "Not drawn: 5 more regimes and 7 shorter lengths; the table has all."
    assert_words_are_readable(kept[-1])
