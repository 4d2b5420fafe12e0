"""The figures: words that can be read whatever the records hold, and what each shows, by hand."""

import pytest

from attnbench.core.record import Energy, Ranks
from attnbench.report.figures import closeness, memory, roofline, scaling, tradeoffs, winner_map
from attnbench.report.figures.scaling import panels
from attnbench.report.scenes import ReportRun
from tests.report.page import runs
from tests.report.page.runs import at, crowd, error, other, rows, timed, untimed, words

SCALED = ("r0-exact-time", "r0-others-error")
OF_A_RUN = {"map": winner_map, "closeness": closeness}
OF_A_SCENE = {"tradeoffs": tradeoffs, "roofline": roofline, "memory": memory}
SECTIONS = (*OF_A_RUN, "scaling", *OF_A_SCENE)


def draw(section, *records, **header):
    """The figures of a section, of scaling a few."""
    found, looks = runs.staged(*records, **header)
    if section == "scaling":
        some = (panel for panel in panels(found[0], looks, "variant.0?features=128"))
        return [scaling.figure(panel) for panel in some if panel.name in SCALED]
    given = (found[0].run, found) if section in OF_A_RUN else found[:1]
    drawn = (OF_A_RUN | OF_A_SCENE)[section].draw(*given, looks)
    return drawn if isinstance(drawn, list) else [drawn] if drawn else []


def one(section, *records, **header):
    (drawn,) = draw(section, *records, **header)
    return drawn


@pytest.mark.parametrize("section", SECTIONS)
def test_no_word_lies_on_another_or_is_cut_off_and_markup_is_text(section, kept):
    made = draw(section, *crowd(30, (512, 1024, 4096)), machine={"name": "m" * 300})
    for drawn in made:
        assert "<img" not in drawn.svg and len(drawn.inline) < 100_000
        assert (drawn.section, drawn.svg.count("<svg")) == (section, 1)
        assert "var(--ink)" in drawn.inline and "var(" not in drawn.svg
    assert made
    for figure in kept:
        runs.assert_words_are_readable(figure)


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_measured_draws_nothing_and_one_length_of_one_variant_what_can_be(section):
    assert draw(section, untimed("a", "failed")) == []
    assert bool(draw(section, timed("only", 1e-3, 4096))) == (section != "closeness")


CEILINGS = {"flops": {"float32": 1e11}, "copy": {"1024": 4e10, "4096": 8e10, "65536": 2e10}}


def test_a_point_lies_at_its_work_over_its_bytes_and_over_its_time():
    for median, flops, wanted in (
        (2e-3, 10**8, [100, 5e10, 0.5]),  # below the product
        (1e-3, 10**6, [1, 1e9, 1e9 / 8e10]),  # below the corner, the fastest copy
    ):
        record = timed("a", median, cost=runs.Work(flops=flops, bytes=10**6))
        (row,) = rows(one("roofline", record, ceilings=CEILINGS))
        found = [float(row[name]) for name in ("flop_per_byte", "flop_per_s", "share_of_roof")]
        assert found == pytest.approx(wanted)


def test_the_roof_is_of_the_kind_of_machine_that_measured_and_of_all_its_processes():
    def roof(**more):
        slow = {"slow": {"ceilings": {"flops": {"float32": 1e9}, "copy": {"8": 1e9}}}}
        (scene,), _ = runs.staged(timed("a", **more), ceilings=CEILINGS, nodes=slow)
        return roofline.roof(scene)

    four = Ranks(world=4, time_s=[], peak_bytes=[], sent_bytes=[], backend="gloo")
    assert roof() == roofline.Roof(flops=1e11, memory=2e10, cache=8e10)
    assert (roof(node="slow").flops, roof(node="other").flops) == (1e9, 1e11)
    assert roof(ranks=four) == roofline.Roof(4e11, 8e10, 3.2e11)


def test_each_kind_has_a_frontier_of_its_own():
    def best(*records):
        drawn = sorted(draw("tradeoffs", *records), key=lambda each: each.name)
        return [{r["variant"] for r in rows(d) if r["frontier"] == "yes"} for d in drawn]

    exact = (("fast", 1.0, 100, 3e-7), ("lean", 2.0, 10, 3e-7), ("poor", 3.0, 200, 4e-7))
    others = (("near", 0.5, 50, 0.1), ("rough", 0.1, 40, 0.9), ("worse", 0.6, 60, 0.95))
    some = [timed(v, s, memory=runs.memory(m), error=error(e)) for v, s, m, e in exact]
    some += [other(v, s, memory=runs.memory(m), distance=d) for v, s, m, d in others]
    assert best(*some) == [{"fast", "near", "rough"}, {"fast", "lean", "rough"}]  # error, memory
    twins = [timed(name, 1.0, memory=runs.memory(100)) for name in ("one", "two")]
    assert best(*twins)[-1] == {"one", "two"}


def test_a_winner_has_its_lead_and_its_time_and_a_tie_is_no_winner(monkeypatch):
    drawn = one("map", timed("a", 0.010, 256), timed("b", 0.0131, 256), other("c", 1e-3, 256))
    assert {"a", "1.31×", "10 ms", "256"} <= set(words(drawn)) and "b" not in words(drawn)
    assert [row["winner"] for row in rows(drawn)] == ["a"] and "<pattern" not in drawn.svg
    monkeypatch.setattr(ReportRun, "margin", 0.123)
    tie = one("map", timed("a", 1.0), timed("b", 1.01), timed("c", 2.0))
    assert {"tie of 2", "a, b"} <= set(words(tie)) and "<pattern" in tie.svg
    assert (rows(tie)[0]["tied with"], rows(tie)[0]["next"]) == ("b", "c")
    doubted = one("map", timed("a", 1.0, flags=["contended"]), timed("b", 2.0))
    assert "2.00× ?" in words(doubted) and draw("map", other("a")) == []


def test_a_length_that_nobody_won_says_why_and_what_was_tried_goes_before_what_never_runs():
    never = [untimed(f"n{k}", "unavailable", problem=512) for k in range(5)]
    full = untimed("a", "out_of_memory", problem=512)
    for ended, why in (
        (never, "not available"),
        ([*never, full], "out of memory"),
        ([other("b", 1.0, 512)], "nothing exact"),
        ([timed("a", 1.0, at(512, phase="decode").with_(q_len=1))], "not run"),
    ):
        assert why in words(one("map", timed("a", 1.0, 256), *ended))


def panels_of(records):
    """By their names, without ``r0-``."""
    (scene, *_), looks = runs.staged(*records)
    return {panel.name.removeprefix("r0-"): panel for panel in panels(scene, looks, "sdpa")}


def line(name="sdpa", scale=1.0, power=2, make=timed, **more):
    return [make(name, scale * 1e-8 * n**power, n, **more) for n in (256, 512, 1024, 2048, 4096)]


def column(figure, name):
    (unit,) = rows(figure)[0].keys() - {"variant", "computes", "length", "low", "high"}
    return {int(r["length"]): float(r[unit]) for r in rows(figure) if r["variant"] == name}


def test_each_measure_is_what_it_says():
    records = line() + line("flash", 0.5) + line("linear", make=other, distance=0.25)
    records += line("counted", 9.0, energy=Energy(joules=0.5, method="rapl counter"))
    found = {name: scaling.figure(panel) for name, panel in panels_of(records).items()}
    time, memory, off = (column(found[f"exact-{n}"], "flash") for n in ("time", "memory", "error"))
    assert time[1024] == pytest.approx(0.5e-8 * 1024**2 * 1e3, 1e-5)
    assert (memory[1024], off[1024]) == (1024 << 12, pytest.approx(2e-7))
    assert {row["variant"] for row in rows(found["exact-energy"])} == {"counted"}
    (row, *_) = rows(found["exact-time"])
    low, high = (1e-8 * 256**2 * 1e3 * t for t in (0.98, 1.02))
    assert (float(row["low"]), float(row["high"])) == (pytest.approx(low), pytest.approx(high))
    others = found["others-error"]
    assert column(others, "linear")[256] == 0.25
    assert {r["variant"] for r in rows(others)} == {"linear"}
    assert "exact-energy" not in panels_of(line())


def test_a_crossing_is_a_bracket_between_two_lengths():
    found = panels_of(line("naive") + line("flash", 512**2 * 1.4 / 512, power=1))
    said = scaling.figure(found["exact-time"]).description
    assert "flash overtakes naive between 512 and 1,024" in said
    assert [*found["exact-time"].brackets] == [(512, 1024)]
    assert not found["exact-memory"].brackets
    assert not panels_of(line("naive") + line("flash", 0.5))["exact-time"].brackets
