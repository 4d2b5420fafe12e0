"""What one figure of scaling shows: which lines, which of them are told, and against what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnbench.answer.pareto import frontier
from attnbench.answer.powers import Power, power
from attnbench.record import Record
from attnbench.report.figures.looks import Looks
from attnbench.report.figures.measures import Measure, Series, distance, measures, median
from attnbench.report.scenes import Scene

TELLING = 10
"""Lines that can still be told apart."""
KINDS = ("exact", "others")


@dataclass(frozen=True)
class Panel:
    """One figure's data."""

    scene: Scene
    looks: Looks
    kind: str
    measure: Measure
    series: Mapping[str, Series]
    telling: Sequence[str]
    reference: Series
    """Of the fastest exact one at each length, where others are drawn."""

    @property
    def name(self) -> str:
        """``r0-exact-time-ms``"""
        parts = (self.scene.name, self.kind, self.measure.name, self.measure.unit)
        return "-".join(filter(None, parts))

    @property
    def powers(self) -> dict[str, Power]:
        """How each of the lines grows, where that can be said."""
        if not self.measure.grows:
            return {}
        found = {name: power({n: p[0] for n, p in s.items()}) for name, s in self.series.items()}
        return {name: p for name, p in found.items() if p}

    @property
    def lengths(self) -> list[int]:
        """All that something is drawn at."""
        return sorted({n for some in (*self.series.values(), self.reference) for n in some})


def panels(scene: Scene, looks: Looks, baseline: str) -> Iterator[Panel]:
    """Every one that there is something for, exact softmax first."""
    for kind in KINDS:
        names = _named(scene, kind)
        telling = _telling(scene, kind, names, baseline)
        for measure in measures(kind, baseline):
            series = {name: _series(scene, name, measure, baseline) for name in names}
            series = {name: some for name, some in series.items() if some}
            if series:
                shown = [name for name in telling if name in series]
                reference = _reference(scene, measure, baseline) if kind == "others" else {}
                yield Panel(scene, looks, kind, measure, series, shown, reference)


def _named(scene: Scene, kind: str) -> list[str]:
    names = dict.fromkeys(
        r.variant for r in scene.regime.records if (r.computes == "softmax") == (kind == "exact")
    )
    return list(names)


def _series(scene: Scene, name: str, measure: Measure, baseline: str) -> Series:
    found = {}
    for length, records in scene.regime.cells.items():
        base = records.get(baseline)
        point = (
            measure.read(records[name], median(base) if base else None) if name in records else None
        )
        if point and length > 0:
            found[length] = point
    return found


def _reference(scene: Scene, measure: Measure, baseline: str) -> Series:
    if measure.name == "error":
        return {}
    found = {}
    for standing in scene.standings:
        if standing.answer:
            winner = _series(scene, standing.answer.winner, measure, baseline)
            if standing.length in winner:
                found[standing.length] = winner[standing.length]
    return found


def _telling(scene: Scene, kind: str, names: Sequence[str], baseline: str) -> list[str]:
    """Who leads anywhere, the baseline, and the fastest at the longest length they reached.

    Of what is not exact, first those that nothing beats in both speed and likeness to softmax.
    """
    reached: dict[str, tuple[int, float]] = {}
    for length, records in scene.regime.cells.items():
        for name in names:
            if name in records and (value := median(records[name])):
                reached[name] = (-length, value)
    fastest = sorted(reached, key=lambda name: reached[name])
    if kind == "exact":
        first = [s.answer.winner for s in scene.standings if s.answer]
        first += [baseline] if baseline in reached else []
    else:
        cells = scene.regime.cells.get(scene.regime.longest() or 0, {})
        first = frontier(_likeness(cells, names))[: TELLING // 2]
    return list(dict.fromkeys([*first, *fastest]))[:TELLING]


def _likeness(cells: Mapping[str, Record], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    some = {name: (median(cells[name]), distance(cells[name])) for name in names if name in cells}
    return {name: (time, far) for name, (time, far) in some.items() if time and far}
