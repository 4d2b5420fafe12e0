"""Scaling: every unit by hand, who is told, and where leaders change."""

import pytest

from attnbench.core.record import Energy
from attnbench.report.figures import scaling
from attnbench.report.figures.scaling import panels
from tests.report.page import runs
from tests.report.page.runs import other, rows, timed

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


def test_each_measure_is_what_it_says():
    records = line() + line("flash", 0.5) + line("linear", make=other, distance=0.25)
    records += line("counted", 9.0, energy=Energy(joules=0.5, method="rapl counter"))
    time, *rest = drawn(records, *(f"exact-{n}" for n in ("time", "memory", "error", "energy")))
    assert column(time, "flash")[1024] == pytest.approx(0.5e-8 * 1024**2 * 1e3, 1e-5)
    memory, error, energy = rest
    assert column(memory, "flash")[1024] == 1024 << 12
    assert column(error, "flash")[1024] == pytest.approx(2e-7)
    assert {row["variant"] for row in rows(energy)} == {"counted"}
    (row, *_) = rows(time)
    low, high = (1e-8 * 256**2 * 1e3 * t for t in (0.98, 1.02))
    assert (float(row["low"]), float(row["high"])) == (pytest.approx(low), pytest.approx(high))
    (others,) = drawn(records, "others-error")
    assert column(others, "linear")[256] == 0.25
    assert {r["variant"] for r in rows(others)} == {"linear"}
    assert "exact-energy" not in panels_of(line())


def test_a_crossing_is_a_bracket_between_two_lengths():
    crossing = line("naive", 1.0) + line("flash", 512**2 * 1.4 / 512, power=1)
    (ms,) = drawn(crossing, "exact-time")
    assert "flash overtakes naive between 512 and 1,024" in ms.description
    found = panels_of(crossing)
    assert [*found["exact-time"].brackets] == [(512, 1024)]
    assert not found["exact-memory"].brackets
    assert not panels_of(line("naive") + line("flash", 0.5))["exact-time"].brackets
