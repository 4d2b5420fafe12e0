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

SCALED = ("r0-exact-time-ms", "r0-others-time-share", "r0-exact-memory", "r0-others-error")
SECTIONS = ("map", "closeness", "scaling", "tradeoffs", "roofline", "memory")


def draw(section, *records, **header):
    """The figures of a section, of scaling a few."""
    found, looks = runs.staged(*records, **header)
    if section == "scaling":
        some = (panel for panel in panels(found[0], looks, "variant.0?features=128"))
        return [scaling.figure(panel) for panel in some if panel.name in SCALED]
    if section in ("map", "closeness"):
        module = winner_map if section == "map" else closeness
        drawn = module.draw(runs.ran(records, **header), found, looks)
    else:
        module = {"tradeoffs": tradeoffs, "roofline": roofline, "memory": memory}[section]
        drawn = module.draw(found[0], looks)
    return drawn if isinstance(drawn, list) else [drawn] if drawn else []


@pytest.mark.parametrize(
    ("section", "count"), [*((section, 45) for section in SECTIONS), ("scaling", 2), ("memory", 2)]
)
def test_no_word_lies_on_another_or_is_cut_off_and_markup_is_text(section, count, kept):
    lengths = (512, 1024, 4096) if count == 45 else (512, 1024, 2048, 4096)
    made = draw(section, *crowd(count, lengths), machine={"name": "m" * 300})
    for drawn in made:
        assert "<img" not in drawn.svg and len(drawn.inline) < 100_000
        assert (drawn.section, drawn.svg.count("<svg")) == (section, 1)
        assert 'class="v v' in drawn.svg and "var(--ink)" in drawn.inline
    assert made
    for figure in kept:
        assert_words_are_readable(figure)


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_measured_draws_nothing_and_one_length_of_one_variant_what_can_be(section, kept):
    assert draw(section, runs.untimed("a", "failed")) == []
    for drawn in (made := draw(section, timed("only", 1e-3, 4096))):
        assert "only" in words(drawn) or "tokens" in drawn.title
    assert bool(made) == (section != "closeness")
    for figure in kept:
        assert_words_are_readable(figure)


@pytest.mark.parametrize("section", ["map", "closeness", "roofline"])
def test_the_same_records_are_the_same_bytes(section):
    assert draw(section, *crowd(2)) == draw(section, *crowd(2))


@pytest.mark.parametrize("section", ["closeness", "memory", "roofline", "tradeoffs"])
def test_a_figure_of_one_length_has_a_row_a_variant_of_the_longest_that_most_reach(section):
    names = ("a", "b", "c")
    records = [timed(name, n * 1e-5 * k, n) for k, name in enumerate(names, 1) for n in (64, 128)]
    for drawn in draw(section, *records, timed("a", 1e-3, 256)):
        assert {row["variant"] for row in rows(drawn)} == set(names)
        assert "256 tokens" not in drawn.title


@pytest.mark.parametrize("bad", [math.nan, None])
def test_what_is_no_number_is_left_out(bad):
    whole = timed("broken", 1.0, 256)
    broken = whole.with_(time=whole.time.with_(low_s=bad, high_s=bad))
    (time, *_) = draw("scaling", timed("a", 1e-3, 256), timed("a", 2e-3, 512), broken)
    (row,) = (r for r in rows(time) if r["variant"] == "broken")
    assert row["low"] == row["high"] == "1000"
    if bad is not None:
        distant = [timed("a", 1e-3, 256), other("far", 1e-3, 256, distance=bad)]
        assert not any("others-error" in drawn.name for drawn in draw("scaling", *distant))
        assert "far" not in {row["variant"] for row in rows(draw("tradeoffs", *distant)[0])}
        broken = broken.with_(time=broken.time.with_(median_s=bad))
        for section in ("scaling", "roofline", "tradeoffs"):
            drawn = draw(section, timed("a", 1e-3, 256), broken)[0]
            assert "broken" not in {row["variant"] for row in rows(drawn)}


def test_a_crowd_is_drawn_as_far_as_it_can_be_told_apart_and_the_rest_is_counted(kept, monkeypatch):
    for module in (memory, closeness, roofline):
        monkeypatch.setattr(module, "MOST", 10)

    def spread(n):
        work = runs.Work(flops=10**6 * (1 + n), bytes=10**4)
        return {"memory": runs.memory((40 - n) << 20), "cost": work}

    records = [timed(f"v{n}", (1 + n / 50) * 1e-3, **spread(n)) for n in range(17)]
    for section in ("memory", "closeness", "roofline"):
        (drawn,) = draw(section, *records)
        assert any("7 more in the CSV" in word for word in words(drawn)), section
        assert len(rows(drawn)) == 17
        assert_words_are_readable(kept[-1])
    monkeypatch.setattr(winner_map, "MOST_ROWS", 4)
    heads = [timed("a", 1e-3, at(256, heads=n, kv_heads=n)) for n in range(1, 10)]
    (drawn,) = draw("map", *heads, *(timed("a", 1e-3, at(64 * k)) for k in range(1, 20)))
    (said,) = (word for word in words(drawn) if word.startswith("Not drawn"))
    assert said == "Not drawn: 5 more regimes and 7 shorter lengths; the table has all."
    assert_words_are_readable(kept[-1])
