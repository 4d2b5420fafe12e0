"""Scaling: every unit by hand, who is told, and where leaders change."""

import pytest

from attnbench.core.record import Energy
from attnbench.report.figures import scaling
from attnbench.report.figures.scaling import TELLING, panels
from tests.report.page import runs
from tests.report.page.runs import other, rows, timed, words

LENGTHS = (256, 512, 1024, 2048, 4096)


def panels_of(records, baseline="sdpa"):
    """By their names, without ``r0-``."""
    (scene, *_), looks = runs.staged(*records)
    return {panel.name.removeprefix("r0-"): panel for panel in panels(scene, looks, baseline)}


def drawn(records, *names):
    some = panels_of(records)
    return [scaling.figure(some[name]) for name in names]


def line(name="sdpa", scale=1.0, power=2, make=timed, lengths=LENGTHS, **more):
    return [make(name, scale * 1e-8 * n**power, n, **more) for n in lengths]


def column(figure, name):
    """A variant's values by their length."""
    (unit,) = rows(figure)[0].keys() - {"variant", "computes", "length", "low", "high"}
    return {int(r["length"]): float(r[unit]) for r in rows(figure) if r["variant"] == name}


def test_each_unit_is_what_it_says_and_intervals_turn_over_where_much_is_good():
    records = line() + line("flash", 0.5, share_of_ceiling=0.4)
    names = ("time-ms", "time-tflops", "time-share", "time-baseline", "memory", "error")
    ms, tflops, share, times, memory, error = drawn(records, *(f"exact-{n}" for n in names))
    median = 0.5e-8 * 1024**2
    assert column(ms, "flash")[1024] == pytest.approx(median * 1e3, 1e-5)
    assert column(tflops, "flash")[1024] == pytest.approx(512 * 1024**2 / median / 1e12, 1e-5)
    assert column(share, "flash")[1024] == pytest.approx(0.4)
    assert column(times, "flash") == {n: pytest.approx(0.5) for n in LENGTHS}
    assert column(memory, "flash")[1024] == 1024 << 12
    assert column(error, "flash")[1024] == pytest.approx(2e-7)
    (row, *_) = rows(tflops)
    low, high = (512 / (1e-8 * t) / 1e12 for t in (1.02, 0.98))
    assert (float(row["low"]), float(row["high"])) == (pytest.approx(low), pytest.approx(high))


def test_others_are_drawn_by_their_distance_beside_the_fastest_exact():
    records = line() + line("flash", 0.5) + line("linear", make=other, distance=0.25)
    error, others = drawn(records, "others-error", "others-time-ms")
    assert column(error, "linear")[256] == 0.25
    assert ["fastest exact" in words(f) for f in (error, others)] == [False, True]
    assert {r["variant"] for r in rows(others)} == {"linear"}
    assert panels_of(records)["exact-time-ms"].series.keys() == {"sdpa", "flash"}


def test_a_power_has_the_digits_that_it_is_sure_of_and_says_so():
    wild, rough = (1, 9, 2, 20, 5), (1, 3.2, 18, 56, 280)
    records = [timed("wild", t, n) for n, t in zip(LENGTHS, wild, strict=True)]
    records += [timed("rough", t, n) for n, t in zip(LENGTHS, rough, strict=True)]
    said = words(drawn(records + line(), "exact-time-ms")[0])
    assert {"n^2.00", "~n^2.1", "n^p: growth over 4 lengths", "~ beyond ±0.25"} <= set(said)
    assert not any("n^" in word for word in said if word.startswith("wild"))
    found = panels_of(line())
    powers = [found[name].powers for name in ("exact-memory", "exact-time-share")]
    assert (powers[0]["sdpa"].power, powers[1]) == (pytest.approx(1.0), {})
    (two,) = drawn(line(lengths=(64, 128)), "exact-time-ms")
    assert not any("n^" in word or "beyond" in word for word in words(two))


def test_what_the_figure_shows_is_said_below_its_title():
    records = line() + line("flash", 0.5) + line("linear", 0.1, 1, make=other)
    names = [f"matmul.prescale.{k}" for k in range(6)]
    ties = line("a") + line("b", 1.01) + line("c", 3.0)
    for some, name, sentence in (
        (records, "exact-time-ms", "tokens: flash, 83.9 ms, growing as n^2.0"),
        (records, "others-time-ms", "tokens: linear, 4.1 µs, growing as n^1.0"),
        (records, "exact-memory", "Least at 4,096 tokens: sdpa, flash, 16 MiB, growing as n^1.0"),
        (records, "others-error", "Nearest at 4,096 tokens: linear, 0.5"),
        (ties, "exact-time-ms", "Fastest at 4,096 tokens: a, b (a tie of 2), 168 ms"),
        ([r for n in names for r in line(n)], "exact-time-ms", "+5 (a tie of 6), 168 ms"),
    ):
        assert scaling.finding(panels_of(some)[name]).endswith(sentence)


def test_a_crossing_is_a_bracket_between_two_lengths():
    crossing = line("naive", 1.0) + line("flash", 512**2 * 1.4 / 512, power=1)
    (ms,) = drawn(crossing, "exact-time-ms")
    assert "naive → flash" in words(ms)
    assert "flash overtakes naive between 512 and 1,024" in ms.description
    found = panels_of(crossing)
    assert [*found["exact-time-tflops"].brackets] == [(512, 1024)]
    assert not found["exact-memory"].brackets
    assert not panels_of(line("naive") + line("flash", 0.5))["exact-time-ms"].brackets


def test_who_leads_anywhere_is_told_and_of_the_others_those_nearest_to_softmax():
    records = [r for k in range(20) for r in line(f"v{k}", 1 + k / 10)]
    records += [timed("early", 1e-5, 256), timed("early", 90.0, 4096), *line("sdpa", 50)]
    records += [r for k in range(15) for r in line(f"o{k}", 1 + k, make=other, distance=5.0)]
    records += line("slow.and.near", 40.0, make=other, distance=0.01)
    found = panels_of(records)
    told = found["exact-time-ms"].telling
    assert len(told) == TELLING and {"early", "sdpa", "v0"} <= set(told) and "v19" not in told
    assert len(found["exact-time-ms"].series) == 22  # drawn all the same
    others = found["others-time-ms"].telling
    assert "slow.and.near" in others and "o14" not in others


def test_energy_and_multiples_are_drawn_where_there_are_any():
    counted = line("counted", energy=Energy(joules=0.5, method="rapl counter"))
    assert panels_of(line() + counted)["exact-energy"].series.keys() == {"counted"}
    assert "exact-energy" not in panels_of(line())
    assert "exact-time-baseline" not in panels_of(line(), "nobody")
