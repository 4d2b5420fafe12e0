"""Scaling: time, memory, error and energy against the length, exact softmax and the rest apart.

Some lines are coloured and named at their ends, with the power of the length that they grow by; the
rest are thin. Where one leader overtakes another a bracket stands between two lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.answer.regimes import Power, frontier, power
from attnbench.core import format
from attnbench.core.format import positive
from attnbench.core.record import Record
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, Drawn, finish, sheet, shorten
from attnbench.report.figures.style import End, Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Point = tuple[float, float, float]


class Measure(NamedTuple):
    """One way to draw what records say."""

    name: str
    title: str
    say: Callable[[float], str]
    read: Callable[[Record, float | None], Point | None]
    """From a record and the baseline's median at its length."""
    unit: str = ""
    """For times: ms, tflops, share or baseline."""
    grows: bool = False


def median(record: Record) -> float | None:
    """A call's median, if it can be drawn."""
    return positive(record.time.median_s) if record.time else None


def taken(record: Record) -> Point | None:
    """A call's median and interval, in seconds."""
    value = median(record)
    if value is None or record.time is None:
        return None
    low, high = positive(record.time.low_s) or value, positive(record.time.high_s) or value
    return value, min(low, value), max(high, value)


def _per_second(record: Record, amount: float | None) -> Point | None:
    """An amount over the time and its interval."""
    point = taken(record)
    if amount is None or point is None:
        return None
    value, low, high = point
    return amount / value, amount / high, amount / low


def _tflops(record: Record, _: float | None) -> Point | None:
    return _per_second(record, positive(record.cost.flops / 1e12) if record.cost else None)


def _share(record: Record, _: float | None) -> Point | None:
    share, value = positive(record.share_of_ceiling), median(record)
    return _per_second(record, share * value if share and value else None)


def _of_baseline(record: Record, baseline: float | None) -> Point | None:
    point = taken(record)
    return (
        (point[0] / baseline, point[1] / baseline, point[2] / baseline)
        if point and baseline
        else None
    )


def peak(record: Record) -> float | None:
    """Bytes above the inputs at the worst moment."""
    return positive(record.memory.peak_bytes) if record.memory and record.time else None


def distance(record: Record) -> float | None:
    """The distance of the output from softmax attention: of an exact variant, its error."""
    if record.computes != "softmax":
        return positive(record.distance.relative) if record.distance else None
    forward = (record.error or {}).get("forward")
    return positive(forward.relative) if forward else None


def _error(record: Record) -> float | None:
    """The worst error of the output and the gradients, or the distance from softmax."""
    if record.time is None or record.computes != "softmax":
        return distance(record) if record.time else None
    errors = [value for e in (record.error or {}).values() if (value := positive(e.relative))]
    return max(errors, default=None)


def _energy(record: Record) -> float | None:
    return positive(record.energy.joules) if record.energy and record.time else None


def _exactly(read: Callable[[Record], float | None]) -> Callable[[Record, Any], Point | None]:
    """A value without an interval, as a point."""
    return lambda record, _: None if (value := read(record)) is None else (value, value, value)


def measures(kind: str, baseline: str) -> list[Measure]:
    """All measures, of exact softmax or of what is not."""
    error = "worst relative error" if kind == "exact" else "distance from softmax"
    multiple = f"time as a multiple of {shorten(baseline, 90, 9.5)}'s"
    return [
        Measure("time", "median time", format.seconds, lambda r, _: taken(r), "ms", grows=True),
        Measure("time", "TFLOP/s", format.three, _tflops, "tflops"),
        Measure("time", "share of the ceiling", format.percent, _share, "share"),
        Measure("time", multiple, format.times, _of_baseline, "baseline"),
        Measure("memory", "peak memory", format.nbytes, _exactly(peak), grows=True),
        Measure("error", error, format.three, _exactly(_error)),
        Measure("energy", "energy a call", format.joules, _exactly(_energy), grows=True),
    ]


Series = Mapping[int, Point]
"""By length, the shortest first."""
TELLING = 10
KINDS = {"exact": "exact softmax", "others": "not exact softmax"}


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
    """The fastest exact variant at each length, where others are drawn."""

    @property
    def name(self) -> str:
        """``r0-exact-time-ms``"""
        parts = (self.scene.name, self.kind, self.measure.name, self.measure.unit)
        return "-".join(filter(None, parts))

    @cached_property
    def powers(self) -> dict[str, Power]:
        """The power of the length that each line grows by, where it can be fitted."""
        some = self.series.items() if self.measure.grows else ()
        fitted = {name: power({n: p[0] for n, p in series.items()}) for name, series in some}
        return {name: p for name, p in fitted.items() if p}

    @cached_property
    def brackets(self) -> dict[tuple[int, int], list[tuple[str, str]]]:
        """By two lengths, which leaders change places between them."""
        found: dict[tuple[int, int], list[tuple[str, str]]] = {}
        timed = (self.kind, self.measure.name) == ("exact", "time")
        for c in self.scene.crossings if timed else ():
            if c.before in self.series and c.after in self.series:
                found.setdefault((c.low, c.high), []).append((c.before, c.after))
        return dict(list(found.items())[:3])

    def best(self, length: int) -> list[tuple[str, float]]:
        """The variants at a length with their values, the best first."""
        at = {name: s[length][0] for name, s in self.series.items() if length in s}
        up = -1 if self.measure.unit in ("tflops", "share") else 1
        return sorted(at.items(), key=lambda each: up * each[1])


def panels(scene: Scene, looks: Looks, baseline: str) -> Iterator[Panel]:
    """Every panel that has data, exact softmax first."""
    cells = scene.regime.cells
    for kind in KINDS:
        names = list(dict.fromkeys(r.variant for r in scene.regime.records if _kind(r) == kind))
        telling = _telling(scene, kind, names, baseline)
        for measure in measures(kind, baseline):

            def read(name: str, length: int, measure: Measure = measure) -> Point | None:
                base, record = cells[length].get(baseline), cells[length].get(name)
                return measure.read(record, median(base) if base else None) if record else None

            series = {
                name: {n: p for n in cells if n > 0 and (p := read(name, n))} for name in names
            }
            series = {name: some for name, some in series.items() if some}
            if not series:
                continue
            beside = kind == "others" and measure.name != "error"
            winners = {s.length: s.answer.winner for s in scene.standings if s.answer and beside}
            reference = {n: p for n, name in winners.items() if n > 0 and (p := read(name, n))}
            shown = [name for name in telling if name in series]
            yield Panel(scene, looks, kind, measure, series, shown, reference)


def _kind(record: Record) -> str:
    return "exact" if record.computes == "softmax" else "others"


def _telling(scene: Scene, kind: str, names: Sequence[str], baseline: str) -> list[str]:
    """The leaders at any length, the baseline, then the fastest at the longest length reached.

    Of those that are not exact, first those that nothing beats in both speed and distance.
    """
    reached: dict[str, tuple[int, float]] = {}
    for length, records in scene.regime.cells.items():
        for name in names:
            if name in records and (value := median(records[name])):
                reached[name] = (-length, value)
    if kind == "exact":
        first = [s.answer.winner for s in scene.standings if s.answer]
        first += [baseline] if baseline in reached else []
    else:
        cells = scene.regime.cells.get(scene.regime.longest() or 0, {})
        both = {n: (median(cells[n]), distance(cells[n])) for n in names if n in cells}
        first = frontier({n: (t, far) for n, (t, far) in both.items() if t and far})[: TELLING // 2]
    return list(dict.fromkeys([*first, *sorted(reached, key=lambda name: reached[name])]))[:TELLING]


WIDE, HIGH = style.WIDE, 263.0
LEFT, RIGHT, ABOVE, BELOW = 44.0, 130.0, 47.5, 30.0
SIZE = 8.0
BRACKET = 11.0
PHASES = {
    "train": "Training",
    "forward": "Forward",
    "backward": "Backward",
    "decode": "Decoding",
}
SURE, HARDLY = 0.25, 1.0
"""A power whose interval is wider either way has fewer digits in a label, or none at all."""


def draw(scene: Scene, looks: Looks, baseline: str) -> list[Drawn]:
    """Every figure that has data, exact softmax first."""
    return [figure(panel) for panel in panels(scene, looks, baseline)]


def figure(panel: Panel) -> Drawn:
    """The figure of one panel."""
    scene, measure = panel.scene, panel.measure
    title = f"{PHASES.get(scene.regime.phase, scene.regime.phase)}: {measure.title}"
    if (measure.name, panel.kind) != ("error", "others"):  # whose title says so
        title += f", {KINDS[panel.kind]}"
    lines = style.lines(style.of(panel.looks[n] for n in panel.telling), WIDE - 12)
    with sheet(WIDE / 72, HIGH / 72) as paper:
        under = ", ".join([*scene.regime.words()[1:], scene.run.machine])
        labels.heading(paper, title, under, finding(panel))
        style.put(paper, 6, 5, lines)
        bottom = BELOW + style.LINE * len(lines)
        top = HIGH - ABOVE - BRACKET * len(panel.brackets)
        axes = labels.add_axes(paper, (LEFT, bottom, WIDE - RIGHT, top))
        _scale(axes, panel)
        _draw_lines(axes, panel)
        _name_lines(paper, axes, panel, bottom, top)
        _draw_brackets(paper, axes, panel, top)
        return finish(
            paper,
            "scaling",
            panel.name,
            title,
            _describe(panel),
            _rows(panel),
            regime=scene.number,
            unit=measure.unit,
            with_png=measure.unit in ("", "ms"),
        )


def _scale(axes: Axes, panel: Panel) -> None:
    some = (*panel.series.values(), panel.reference)
    lengths = sorted({n for series in some for n in series})
    heights = style.limits(value for s in some for point in s.values() for value in point)
    base = 2 if panel.measure.name == "memory" else 10
    style.scale(axes, "y", heights, panel.measure.say, base)
    axes.set(xscale="log", xlim=style.limits(lengths, least=2.0, room=0.04))
    axes.minorticks_off()
    places = [labels.at(axes, n, heights[0])[0] for n in lengths]
    axes.set_xticks(lengths, style.fitting([format.tokens(n) for n in lengths], places, 8))
    axes.tick_params(length=2.5, pad=2)
    what = "tokens kept" if panel.scene.regime.phase == "decode" else "length, tokens"
    axes.set_xlabel(what, labelpad=1, fontsize=8)


def _draw_lines(axes: Axes, panel: Panel) -> None:
    if panel.measure.unit == "baseline":
        axes.axhline(1.0, color=FAINT, linewidth=0.8)
    if panel.reference:
        middle = [p[0] for p in panel.reference.values()]
        axes.plot(list(panel.reference), middle, **style.REFERENCE)
    order = [*(n for n in panel.series if n not in panel.telling), *reversed(panel.telling)]
    for name in order:
        series, look = panel.series[name], panel.looks[name]
        xs, (middle, low, high) = list(series), map(list, zip(*series.values(), strict=True))
        gid = look.gid(_words(panel, name))
        if name not in panel.telling:
            mark = "." if len(xs) == 1 else ""
            axes.plot(xs, middle, color=FAINT, linewidth=0.6, alpha=0.5, gid=gid, marker=mark)
            continue
        if any(top > 1.02 * bottom for top, bottom in zip(high, low, strict=True)):
            band: dict[str, Any] = {"color": look.colour, "alpha": 0.13, "linewidth": 0}
            axes.fill_between(xs, low, high, gid=look.gid(), **band)
        line: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.1, **look.marks(3.7)}
        axes.plot(xs, middle, clip_on=False, gid=gid, **line)


def _words(panel: Panel, name: str) -> str:
    length, (value, low, high) = list(panel.series[name].items())[-1]
    say = panel.measure.say
    interval = f" [{say(low)}, {say(high)}]" if high > low else ""
    growth = f", grows as {panel.powers[name]}" if name in panel.powers else ""
    return f"{name}: {length:,} tokens, {say(value)}{interval}{growth}"


def _name_lines(figure: Figure, axes: Axes, panel: Panel, bottom: float, top: float) -> None:
    """Names beside the ends of their lines, with the power that each grows by to the right.

    Below the names, what their powers are and how far the fit supports them.
    """
    right, ends = WIDE - RIGHT, []
    for name in panel.telling:
        length, point = list(panel.series[name].items())[-1]
        behind = growth(panel.powers[name]) if name in panel.powers else ""
        ends.append(End(panel.looks[name], labels.at(axes, length, point[0]), name, behind))
    if panel.reference:
        length, point = list(panel.reference.items())[-1]
        ends.append(End(None, labels.at(axes, length, point[0]), "fastest exact"))
    style.name_ends(figure, ends, right, bottom + 1, top - (5 if panel.brackets else 2))
    if powers := [panel.powers[name] for name in panel.telling if name in panel.powers]:
        rough = [f"~ beyond ±{SURE:g}"] * any(SURE < p.error <= HARDLY for p in powers)
        rough += [f"? beyond ±{HARDLY:g}"] * any(p.error > HARDLY for p in powers)
        most = max(len(power.lengths) for power in powers)
        for number, text in enumerate([f"n^p: growth over {most} lengths", ", ".join(rough)]):
            text = labels.shorten(text, RIGHT - 12, 6.8)
            labels.write(figure, right + 9, bottom - 15 - 9 * number, text, 6.8, color=FAINT)


def growth(of: Power) -> str:
    """``n^1.93``, with as many digits as the fit supports: ``~n^1.9``, ``n^?``."""
    if of.error <= SURE:
        return f"n^{of.power:.2f}"
    return f"~n^{of.power:.1f}" if of.error <= HARDLY else "n^?"


def finding(panel: Panel) -> str:
    """Which is best at the longest length that most reach; of exact times, with all that tie."""
    length = panel.scene.regime.longest()
    at = dict(panel.best(length)) if length else {}
    if not at:
        return ""
    best = next(iter(at.values()))
    names = [name for name, value in at.items() if value == best]
    timed = panel.measure.name == "time"
    if timed and panel.kind == "exact":
        leaders = next((s.leaders for s in panel.scene.standings if s.length == length), ())
        names = [name for name in leaders if name in at] or names
    say = panel.measure.say
    words = {"time": "Fastest", "error": "Nearest" if panel.kind == "others" else "Smallest"}
    tie = f" (a tie of {len(names)})" * (timed and len(names) > 1)
    grows = None if tie else panel.powers.get(names[0])
    how = f", growing as n^{grows.power:.1f}" if grows and grows.error <= SURE else ""
    ends = f"{tie}, {say(best)}{how}"
    start = f"{words.get(panel.measure.name, 'Least')} at {length:,} tokens: "
    room = labels.FITS * (WIDE - 10) - labels.width(start + ends, SIZE)
    return start + labels.listed(names, room, SIZE) + ends


def _draw_brackets(figure: Figure, axes: Axes, panel: Panel, top: float) -> None:
    for number, ((low, high), pairs) in enumerate(panel.brackets.items()):
        axes.axvspan(low, high, color=GRID, alpha=0.35, linewidth=0, zorder=0.5)
        x0, x1 = (labels.at(axes, n, axes.get_ylim()[0])[0] for n in (low, high))
        y = top + 6 + BRACKET * number
        labels.line(figure, [x0, x0, x1, x1], [y - 2.5, y, y, y - 2.5], color=FAINT, linewidth=0.8)
        text = " → ".join(labels.shorten(name, 80, 7) for name in pairs[0])
        text = labels.shorten(text + f" and {len(pairs) - 1} more" * (len(pairs) > 1), WIDE - 12, 7)
        wide = labels.width(text, 7)
        beside = x1 + 5 if x1 + 5 + wide <= WIDE - 4 else max(4.0, x0 - 5 - wide)
        labels.write(figure, beside, y - 3.5, text, 7)


def _describe(panel: Panel) -> str:
    lengths = {n for series in (*panel.series.values(), panel.reference) for n in series}
    best = [f"{n} {panel.measure.say(v)}" for n, v in panel.best(max(lengths))[:3]]
    most = "Most" if panel.measure.unit in ("tflops", "share") else "Least"
    parts = [f"{len(panel.series)} lines over {len(lengths)} lengths"]
    parts += [f"{most} at {max(lengths):,} tokens: {', '.join(best)}"] if best else []
    return ". ".join([*parts, *(map(str, panel.scene.crossings) if panel.brackets else ())])


def _rows(panel: Panel) -> Iterator[Sequence[object]]:
    yield "variant", "computes", "length", panel.measure.unit or panel.measure.name, "low", "high"
    scale = 1e3 if panel.measure.unit == "ms" else 1.0
    for name, series in panel.series.items():
        for length, point in series.items():
            numbers = (style.number(value * scale) for value in point)
            yield name, panel.looks[name].computes, length, *numbers
