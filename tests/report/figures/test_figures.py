"""All figures: words that can be read whatever the records hold, and nothing drawn of nothing."""

import math

import pytest

from attnbench.report.figures import closeness, memory, roofline, scaling, tradeoffs, winner_map
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


@pytest.mark.parametrize("section", SECTIONS)
def test_no_word_lies_on_another_or_is_cut_off_and_markup_is_text(section, kept):
    made = draw(section, *crowd(45, (512, 1024, 4096)), machine={"name": "m" * 300})
    for drawn in made:
        assert "<img" not in drawn.svg and len(drawn.inline) < 100_000
        assert (drawn.section, drawn.svg.count("<svg")) == (section, 1)
        assert 'class="v v' in drawn.svg and "var(--ink)" in drawn.inline
    assert made
    for figure in kept:
        assert_words_are_readable(figure)


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_measured_draws_nothing_and_one_length_of_one_variant_what_can_be(section):
    assert draw(section, runs.untimed("a", "failed")) == []
    made = draw(section, timed("only", 1e-3, 4096))
    assert made == draw(section, timed("only", 1e-3, 4096))  # to the byte
    assert bool(made) == (section != "closeness")


def test_what_is_no_number_is_left_out():
    fast, nan = timed("a", 1e-3, 256), math.nan
    broken = timed("broken", 1.0, 256)
    broken = broken.with_(time=broken.time.with_(low_s=nan, high_s=nan))
    (time, *_) = draw("scaling", fast, timed("a", 2e-3, 512), broken)
    (row,) = (r for r in rows(time) if r["variant"] == "broken")
    assert row["low"] == row["high"] == "1000"
    distant = draw("tradeoffs", fast, other("far", 1e-3, 256, distance=nan))
    assert "far" not in {row["variant"] for row in rows(distant[0])}
    broken = broken.with_(time=broken.time.with_(median_s=nan))
    for section in ("scaling", "roofline", "tradeoffs"):
        assert "broken" not in {row["variant"] for row in rows(draw(section, fast, broken)[0])}


def test_a_crowd_is_drawn_as_far_as_it_can_be_told_apart_and_the_rest_is_counted(monkeypatch):
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
    monkeypatch.setattr(winner_map, "MOST_ROWS", 4)
    heads = [timed("a", 1e-3, at(256, heads=n, kv_heads=n)) for n in range(1, 10)]
    (drawn,) = draw("map", *heads, *(timed("a", 1e-3, at(64 * k)) for k in range(1, 20)))
    (said,) = (word for word in words(drawn) if word.startswith("Not drawn"))
    assert said == "Not drawn: 5 more regimes and 7 shorter lengths; the table has all."
