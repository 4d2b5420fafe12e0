"""Scaling: every unit by hand, who is told, where leaders change, and words that can be read."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from attnbench.core.record import Energy
from attnbench.report.figures import scaling
from attnbench.report.figures.scaling import TELLING, panels
from impls.loading import load_file

staged = load_file(Path(__file__).with_name("staged.py"))
made = load_file(Path(__file__).with_name("drawn.py"))
exact, other, rows, said = staged.exact, staged.other, staged.rows, staged.said


def draw(records, baseline="sdpa", **more):
    """The figures by their names, each drawn when it is looked at."""
    _, (scene, *_), looks = staged.staged(records, **more)
    return OnDemand({panel.name: panel for panel in panels(scene, looks, baseline)})


class OnDemand(Mapping):
    def __init__(self, some):
        self.some = some

    def __getitem__(self, name):
        return scaling.figure(self.some[name])

    def __iter__(self):
        return iter(self.some)

    def __len__(self):
        return len(self.some)


def line(name="sdpa", scale=1.0, power=2, make=exact, lengths=staged.LENGTHS, **more):
    return [make(name, n, scale * 1e-8 * n**power, **more) for n in lengths]


def column(drawn, name, unit):
    return {int(r["length"]): float(r[unit]) for r in rows(drawn) if r["variant"] == name}


def test_each_unit_is_what_it_says():
    records = line() + line("flash", 0.5, share_of_ceiling=0.4)
    found = draw(records)
    median = 0.5 * 1e-8 * 1024**2
    assert column(found["r0-exact-time-ms"], "flash", "ms")[1024] == pytest.approx(
        median * 1e3, 1e-5
    )
    flops = column(found["r0-exact-time-tflops"], "flash", "tflops")[1024]
    assert flops == pytest.approx(4 * 1024**2 / median / 1e12, 1e-5)
    assert column(found["r0-exact-time-share"], "flash", "share")[1024] == pytest.approx(0.4)
    times = column(found["r0-exact-time-baseline"], "flash", "baseline")
    assert times == {n: pytest.approx(0.5) for n in staged.LENGTHS}
    assert column(found["r0-exact-memory"], "flash", "memory")[1024] == 1024 * 1024
    assert column(found["r0-exact-error"], "flash", "error")[1024] == pytest.approx(2e-7)


def test_intervals_turn_over_where_much_is_good():
    found = draw(line())
    (row, *_) = rows(found["r0-exact-time-tflops"])
    low, high = (4 * 256**2 / (1e-8 * 256**2 * t) / 1e12 for t in (1.02, 0.98))
    assert (float(row["low"]), float(row["high"])) == (pytest.approx(low), pytest.approx(high))


def test_figures_have_names_and_units_for_the_page():
    _, (scene, *_), looks = staged.staged(line() + line("linear", make=other))
    found = {drawn.name: drawn for drawn in scaling.draw(scene, looks, "sdpa")}
    assert list(found) == [
        f"r0-{kind}-{what}"
        for kind in ("exact", "others")
        for what in ("time-ms", "time-tflops", "time-share", "time-baseline", "memory", "error")
    ]
    drawn = found["r0-others-time-share"]
    assert (drawn.section, drawn.regime, drawn.unit) == ("scaling", 0, "share")
    assert found["r0-others-memory"].unit == ""
    assert [name for name, d in found.items() if not d.png] == [
        f"r0-{kind}-time-{unit}"
        for kind in ("exact", "others")
        for unit in ("tflops", "share", "baseline")
    ]


def test_others_are_drawn_by_their_distance_beside_the_fastest_exact():
    found = draw(line() + line("flash", 0.5) + line("linear", make=other, distance=0.25))
    assert column(found["r0-others-error"], "linear", "error")[256] == 0.25
    assert "fastest exact" in said(found["r0-others-time-ms"])
    assert "fastest exact" not in said(found["r0-others-error"])
    assert "fastest exact" not in said(found["r0-exact-time-ms"])
    assert {r["variant"] for r in rows(found["r0-others-time-ms"])} == {"linear"}
    assert {r["variant"] for r in rows(found["r0-exact-time-ms"])} == {"sdpa", "flash"}


def test_an_exact_power_stands_behind_the_name():
    found = draw(line() + line("linear", power=1, make=other))
    assert "n^2.00" in said(found["r0-exact-time-ms"])
    assert "n^1.00" in said(found["r0-others-time-ms"])
    assert "n^1.00" in said(found["r0-exact-memory"])
    assert not [w for w in said(found["r0-exact-time-share"]) if w.startswith("n^")]


def test_a_power_has_the_digits_that_it_is_sure_of_and_says_so():
    wild, rough = (1, 9, 2, 20, 5), (1, 3.2, 18, 56, 280)
    records = [exact("wild", n, t) for n, t in zip(staged.LENGTHS, wild, strict=True)]
    records += [exact("rough", n, t) for n, t in zip(staged.LENGTHS, rough, strict=True)]
    words = said(draw(records + line())["r0-exact-time-ms"])
    assert {"n^2.00", "~n^2.1", "n^?", "n^p: growth over 4 lengths"} <= set(words)
    assert "~ beyond ±0.25, ? beyond ±1" in words
    assert not any("beyond" in word for word in said(draw(line())["r0-exact-time-ms"]))


def test_every_named_line_with_three_lengths_has_a_power_and_none_with_two():
    words = said(draw(staged.crowd(9))["r0-exact-time-ms"])
    names = [word for word in words if word.startswith("variant.")]
    assert len([w for w in words if re.fullmatch(r"~?n\^([\d.]+|\?)", w)]) == len(names) > 3
    assert not any("n^" in w for w in said(draw(line(lengths=(64, 128)))["r0-exact-time-ms"]))


def test_what_the_figure_shows_is_said_below_its_title():
    found = draw(line() + line("flash", 0.5) + line("linear", 0.1, 1, make=other))
    assert "Fastest at 4,096 tokens: flash, 83.9 ms, growing as n^2.0" in said(
        found["r0-exact-time-ms"]
    )
    assert "Fastest at 4,096 tokens: linear, 4.1 µs, growing as n^1.0" in said(
        found["r0-others-time-ms"]
    )
    assert "Least at 4,096 tokens: sdpa, flash, 4 MiB, growing as n^1.0" in said(
        found["r0-exact-memory"]
    )
    assert "Nearest at 4,096 tokens: linear, 0.5" in said(found["r0-others-error"])


def test_a_tie_names_all_of_it():
    words = said(draw(line("a", 1.0) + line("b", 1.01) + line("c", 3.0))["r0-exact-time-tflops"])
    assert any(w.startswith("Fastest at 4,096 tokens: a, b (a tie of 2), ") for w in words)


def test_of_a_tie_of_many_names_are_counted_and_the_time_stays():
    names = [f"matmul.prescale.{k}" for k in range(6)]
    words = said(draw([r for n in names for r in line(n)])["r0-exact-time-ms"])
    (told,) = (word for word in words if word.startswith("Fastest"))
    assert told.endswith("+5 (a tie of 6), 168 ms")


def test_named_lines_differ_in_marker_or_dash_and_a_piece_of_each_stands_by_its_name(monkeypatch):
    kept = made.watch(monkeypatch, scaling)
    for panel in draw(staged.crowd(45)).some.values():
        scaling.figure(panel)
        marked = [a for a in kept[-1].artists if a.get_marker() not in ("None", None)]
        pieces = [
            (a.get_marker(), a._unscaled_dash_pattern) for a in marked if len(a.get_xdata()) == 3
        ]
        assert len(set(pieces)) == len(pieces) == len(panel.telling)
        assert [p[0] for p in pieces] == [panel.looks[name].marker for name in panel.telling]


def test_a_crossing_is_a_bracket_between_two_lengths():
    crossing = line("naive", 1.0) + line("flash", 512**2 * 1.4 / 512, power=1)
    for unit in ("ms", "tflops"):
        drawn = draw(crossing)[f"r0-exact-time-{unit}"]
        assert "naive → flash" in said(drawn)
        assert "flash overtakes naive between 512 and 1,024" in drawn.description
    assert "naive → flash" not in said(draw(crossing)["r0-exact-memory"])
    assert "naive → flash" not in said(draw(line("naive") + line("flash", 0.5))["r0-exact-time-ms"])


def test_at_most_ten_are_told_and_who_leads_anywhere_is_among_them():
    records = [r for k in range(20) for r in line(f"v{k}", 1 + k / 10)]
    records += [exact("early", 256, 1e-5), exact("early", 4096, 90.0), *line("sdpa", 50)]
    drawn = draw(records)["r0-exact-time-ms"]
    told = {w for w in said(drawn) if w in {r.variant for r in records}}
    assert len(told) == TELLING
    assert {"early", "sdpa", "v0"} <= told
    assert "v19" not in told
    assert {r["variant"] for r in rows(drawn)} == {r.variant for r in records}  # drawn all the same


def test_of_the_others_those_nearest_to_softmax_are_told_too():
    records = line() + [
        r for k in range(15) for r in line(f"o{k}", 1 + k, make=other, distance=5.0)
    ]
    records += line("slow.and.near", 40.0, make=other, distance=0.01)
    assert "slow.and.near" in said(draw(records)["r0-others-time-ms"])
    assert "o14" not in said(draw(records)["r0-others-time-ms"])


def test_energy_is_drawn_where_there_is_any():
    joules = Energy(joules=0.5, method="rapl counter")
    found = draw(line() + line("counted", energy=joules))
    assert {r["variant"] for r in rows(found["r0-exact-energy"])} == {"counted"}
    assert "r0-exact-energy" not in draw(line())


def test_a_baseline_that_was_not_measured_draws_no_multiples():
    assert "r0-exact-time-baseline" not in draw(line(), baseline="nobody")
    assert "r0-exact-time-baseline" not in draw(line(), baseline="")


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, None])
def test_what_is_no_number_is_left_out(bad):
    whole = exact("broken", 256, 1.0)
    broken = whole.with_(time=whole.time.with_(low_s=bad, high_s=bad))
    good = draw([*line(), broken])["r0-exact-time-ms"]
    (row,) = (r for r in rows(good) if r["variant"] == "broken")
    assert row["low"] == row["high"] == "1000"
    far = other("far", 256, 1.0, distance=bad)
    assert "r0-others-error" not in draw([*line(), far])
    if bad is not None:
        broken = broken.with_(time=broken.time.with_(median_s=bad))
        assert "broken" not in {
            r["variant"] for r in rows(draw([*line(), broken])["r0-exact-time-ms"])
        }


def test_nothing_measured_draws_nothing():
    assert not draw([staged.untimed("a", "failed", staged.at(256))])


@pytest.mark.parametrize("lengths", [(4096,), (1000, 1001), (1, 2)])
def test_few_lengths_and_one_variant_are_drawn(lengths):
    for drawn in draw(line(lengths=lengths)).values():
        assert staged.untidy(drawn) == []
        assert "sdpa" in said(drawn)


@pytest.mark.parametrize("count", [1, 45])
def test_no_word_lies_on_another_or_is_cut_off(count):
    records = staged.crowd(count, (128, 256, 512, 1024, 2048, 4096, 8192, 16384))
    for name, drawn in draw(records + line()).items():
        assert staged.untidy(drawn) == [], name
        assert len(drawn.inline) < 40_000


def test_long_names_and_markup_are_shortened_and_stay_text():
    name = "<b>&" + "x" * 80
    drawn = draw(line(name, family="<i>" * 40), baseline=name, machine="m" * 300)[
        "r0-exact-time-baseline"
    ]
    assert staged.untidy(drawn) == []
    assert any(word.startswith("<b>&xxx") and word.endswith("…") for word in said(drawn))
    assert rows(drawn)[0]["variant"] == name


def test_every_line_can_be_found_by_its_variant():
    records = staged.crowd(45)
    _, (scene, *_), looks = staged.staged(records)
    drawn = scaling.figure(next(panels(scene, looks, "sdpa")))
    classes = {g.get("class") for g in staged.tree(drawn).iter() if g.get("class")}
    names = {r["variant"] for r in rows(drawn)}
    assert classes == {f"v {looks[name].name}" for name in names}
    titles = [t.text for t in staged.tree(drawn).iter(f"{staged.SVG}title")]
    assert sorted(t.partition(":")[0] for t in titles) == sorted(names)


def test_decoding_says_how_many_tokens_are_kept():
    decode = [
        exact("sdpa", n, 1e-5, staged.at(n).with_(phase="decode", q_len=1)) for n in (256, 512)
    ]
    drawn = draw(decode)["r0-exact-time-ms"]
    assert "tokens kept" in said(drawn)
    assert drawn.title.startswith("Decoding: ")


def test_the_same_records_give_the_same_figures():
    name = "r0-others-time-ms"
    assert draw(staged.crowd(9))[name] == draw(staged.crowd(9))[name]
