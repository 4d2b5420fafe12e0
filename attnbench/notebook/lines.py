"""Lines over the length for a notebook: what the variants of one regime take.

Some lines are in colour, with their intervals, and are named at the right, the slowest first, as
they lie in the figure; the rest are thin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attnbench.core import format
from attnbench.core.format import positive
from attnbench.core.record import Record
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, Plot, finish, sheet
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import Scene

Point = tuple[float, float, float]
"""The low end of an interval, the value, and the high end."""
Lines = Mapping[str, Mapping[int, Point]]
"""Points by variant and by length, the shortest first."""
WIDE, HIGH = 440.0, 270.0
BOX = (46.0, 30.0, WIDE - style.NAMES - 8, HIGH - 44)
EXACT, OTHERS = 6, 4
"""Lines in colour."""


def _time(record: Record) -> Point | None:
    if record.time is None or (value := positive(record.time.median_s)) is None:
        return None
    return positive(record.time.low_s) or value, value, positive(record.time.high_s) or value


def _exactly(value: float | None) -> Point | None:
    value = positive(value)
    return (value, value, value) if value else None


class Measure(NamedTuple):
    """One quantity of a record."""

    title: str
    unit: Callable[[float], str]
    read: Callable[[Record], Point | None]
    base: int = 10


MEASURES = {
    "time": Measure("median time", format.duration, _time),
    "memory": Measure(
        "peak memory above the inputs",
        format.size,
        lambda record: _exactly(record.memory.peak_bytes) if record.memory else None,
        base=2,
    ),
    "energy": Measure(
        "energy a call",
        format.joules,
        lambda record: _exactly(record.energy.joules) if record.energy else None,
    ),
}


def draw(scene: Scene, looks: Looks, baseline: str, name: str) -> Plot | None:
    """The figure of a measure in a regime; None where it was not measured."""
    measure = MEASURES[name]
    hidden = {variant for same in scene.one_kernel.values() for variant in same}
    lines: dict[str, dict[int, Point]] = {}
    for length in sorted(scene.regime.lengths):
        for variant, record in scene.regime.timed(length).items():
            if variant not in hidden and (point := measure.read(record)):
                lines.setdefault(variant, {})[length] = point
    if not lines:
        return None
    from matplotlib.ticker import FuncFormatter, LogLocator

    title = f"{scene.regime.phase.capitalize()}: {measure.title}"
    under = ", ".join([*scene.regime.words()[1:], scene.run.machine])
    least = _least(lines, looks, measure)
    with sheet(WIDE / 72, HIGH / 72) as figure:
        labels.heading(figure, title, under, least)
        axes = labels.add_axes(figure, BOX)
        lengths = sorted({n for line in lines.values() for n in line})
        values = [value for line in lines.values() for point in line.values() for value in point]
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=measure.base)
        axes.set(xlim=style.limits(lengths, least=2.0, room=0.04), ylim=style.limits(values))
        axes.set_xlabel("keys kept" if scene.regime.phase == "decode" else "length, tokens")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: format.tokens(round(n))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: measure.unit(value)))
        if max(values) < 100 * min(values) and measure.base == 10:
            axes.yaxis.set_major_locator(LogLocator(10, (1.0, 2.0, 5.0)))
        axes.minorticks_off()
        coloured = _in_colour(scene, lines, looks, baseline)
        for variant in sorted(lines, key=lambda variant: variant in coloured):
            look, line = looks[variant], lines[variant]
            low, middle, high = zip(*line.values(), strict=True)
            if variant not in coloured:
                pale: dict[str, Any] = {"color": FAINT, "alpha": 0.4, "linewidth": 0.6}
                axes.plot([*line], middle, marker="." if len(line) == 1 else "", **pale)
                continue
            axes.fill_between([*line], low, high, color=look.colour, alpha=0.13, linewidth=0)
            marks: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.1, **look.marks(3.7)}
            axes.plot([*line], middle, clip_on=False, **marks)
        style.legend(figure, (looks[variant] for variant in coloured))
        return finish(figure, f"r{scene.number}-{name}", f"{title} ({scene.regime})", least)


def _least(lines: Lines, looks: Looks, measure: Measure) -> str:
    """Which exact variant needs least at the longest length that one reaches."""
    last = {variant: max(line) for variant, line in lines.items() if looks[variant].exact}
    if not last:
        return ""
    length = max(last.values())
    best = min((v for v in last if last[v] == length), key=lambda v: lines[v][length][1])
    value = measure.unit(lines[best][length][1])
    return f"Of what is exact, least at {length:,} tokens: {best}, {value}"


def _in_colour(scene: Scene, lines: Lines, looks: Looks, baseline: str) -> Sequence[str]:
    """The lines in colour, as they end from the top down.

    Exact ones: the winners, the baseline, then the fastest of the longest; and a few of the rest.
    """
    ranked = sorted(lines, key=lambda v: (-max(lines[v]), lines[v][max(lines[v])][1]))
    winners = [standing.answer.winner for standing in scene.standings if standing.answer]
    first = dict.fromkeys([*winners, baseline, *(v for v in ranked if looks[v].exact)])
    exact = [variant for variant in first if variant in lines][:EXACT]
    others = [variant for variant in ranked if not looks[variant].exact][:OTHERS]
    return sorted([*exact, *others], key=lambda v: -lines[v][max(lines[v])][1])
