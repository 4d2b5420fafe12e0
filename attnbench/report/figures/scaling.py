"""Scaling: time, memory, error and energy against the length, exact softmax and the rest apart.

Some lines are coloured and named at their ends, with the power of the length that they grow by; the
rest are thin. Where one leader overtakes another a bracket stands between two lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.answer.regimes import Power, frontier, power
from attnbench.core import format
from attnbench.core.format import positive
from attnbench.core.record import Record
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, Drawn, finish, sheet, shorten
from attnbench.report.figures.style import WIDE, End, Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Point = tuple[float, float, float]
"""A value and its interval."""


class Measure(NamedTuple):
    """One way to draw what records say."""

    name: str
    title: str
    say: Callable[[float], str]
    value: Callable[[Record], float | None] | None = None
    """Of what has no interval; None of times."""
    grows: bool = False

    def read(self, record: Record) -> Point | None:
        """What a record says."""
        if self.value is not None:
            value = self.value(record)
            return None if value is None else (value, value, value)
        value = median(record)
        if value is None or record.time is None:
            return None
        low, high = positive(record.time.low_s) or value, positive(record.time.high_s) or value
        return value, min(low, value), max(high, value)


def median(record: Record) -> float | None:
    """A call's median, if it can be drawn."""
    return positive(record.time.median_s) if record.time else None


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


def measures(kind: str) -> list[Measure]:
    """All measures, of exact softmax or of what is not."""
    error = "worst relative error" if kind == "exact" else "distance from softmax"
    return [
        Measure("time", "median time", format.duration, grows=True),
        Measure("memory", "peak memory", format.size, peak, grows=True),
        Measure("error", error, format.three, _error),
        Measure("energy", "energy a call", format.joules, _energy, grows=True),
    ]


Series = Mapping[int, Point]
"""By length, the shortest first."""
KINDS = {"exact": "exact softmax", "others": "not exact softmax"}
TELLING = 10
SURE, HARDLY = 0.25, 1.0
"""A power whose interval is wider either way has fewer digits in a label, or no label."""


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
    powers: Mapping[str, Power]
    """The power of the length that a line grows by, where it is known at all."""
    brackets: Mapping[tuple[int, int], Sequence[tuple[str, str]]]
    """By two lengths, which leaders change places between them."""

    @property
    def name(self) -> str:
        """``r0-exact-time``"""
        return f"{self.scene.name}-{self.kind}-{self.measure.name}"

    def best(self, length: int) -> list[tuple[str, float]]:
        """The variants at a length with their values, the best first."""
        at = {name: s[length][0] for name, s in self.series.items() if length in s}
        return sorted(at.items(), key=lambda each: each[1])


def panels(scene: Scene, looks: Looks, baseline: str) -> Iterator[Panel]:
    """Every panel that has data, exact softmax first."""
    cells, records = scene.regime.cells, scene.regime.records
    for kind in KINDS:
        exact = kind == "exact"
        left_out = {name for others in scene.one_kernel.values() for name in others}
        names = dict.fromkeys(
            r.variant
            for r in records
            if (r.computes == "softmax") is exact and r.variant not in left_out
        )
        telling = _telling(scene, kind, list(names), baseline)
        for measure in measures(kind):

            def read(name: str, length: int, measure: Measure = measure) -> Point | None:
                record = cells[length].get(name)
                return measure.read(record) if record else None

            found = {
                name: {n: p for n in cells if n > 0 and (p := read(name, n))} for name in names
            }
            series = {name: some for name, some in found.items() if some}
            if not series:
                continue
            beside = not exact and measure.name != "error"
            winners = {s.length: s.answer.winner for s in scene.standings if s.answer and beside}
            reference = {n: p for n, name in winners.items() if n > 0 and (p := read(name, n))}
            shown = [name for name in telling if name in series]
            some = series.items() if measure.grows else ()
            fitted = {name: power({n: p[0] for n, p in line.items()}) for name, line in some}
            powers = {name: p for name, p in fitted.items() if p and p.error <= HARDLY}
            brackets: dict[tuple[int, int], list[tuple[str, str]]] = {}
            for c in scene.crossings if exact and measure.name == "time" else ():
                if c.before in series and c.after in series:
                    brackets.setdefault((c.low, c.high), []).append((c.before, c.after))
            first = dict(list(brackets.items())[:3])
            yield Panel(scene, looks, kind, measure, series, shown, reference, powers, first)


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


HIGH = 263.0
LEFT, RIGHT, ABOVE, BELOW = 44.0, 130.0, 47.5, 30.0
SIZE = 8.0
BRACKET = 11.0
PHASES = {
    "train": "Training",
    "forward": "Forward",
    "backward": "Backward",
    "decode": "Decoding",
}


def draw(scene: Scene, looks: Looks, baseline: str, measures: Collection[str] = ()) -> list[Drawn]:
    """Every figure that has data, exact softmax first; of some measures alone, if any are named."""
    found = panels(scene, looks, baseline)
    return [figure(each) for each in found if not measures or each.measure.name in measures]


def figure(panel: Panel) -> Drawn:
    """The figure of one panel: lines over the lengths, or bars where there is one."""
    scene, measure = panel.scene, panel.measure
    if len({n for line in panel.series.values() for n in line}) == 1:
        return _bars(panel)
    title = f"{PHASES.get(scene.regime.phase, scene.regime.phase)}: {measure.title}"
    if (measure.name, panel.kind) != ("error", "others"):  # whose title says so
        title += f", {KINDS[panel.kind]}"
    key = style.lines(style.of(panel.looks[n] for n in panel.telling), WIDE - 12)
    with sheet(WIDE / 72, HIGH / 72) as paper:
        under = ", ".join([*scene.regime.words()[1:], scene.run.machine])
        labels.heading(paper, title, under, finding(panel))
        style.put(paper, 6, 5, key)
        bottom = BELOW + style.LINE * len(key)
        top = HIGH - ABOVE - BRACKET * len(panel.brackets)
        axes = labels.add_axes(paper, (LEFT, bottom, WIDE - RIGHT, top))
        lines = (*panel.series.values(), panel.reference)
        lengths = sorted({n for line in lines for n in line})
        heights = style.limits(
            value for line in lines for point in line.values() for value in point
        )
        style.scale(axes, "y", heights, measure.say, 2 if measure.name == "memory" else 10)
        axes.set(xscale="log", xlim=style.limits(lengths, least=2.0, room=0.04))
        axes.minorticks_off()
        places = [labels.at(axes, n, heights[0])[0] for n in lengths]
        axes.set_xticks(lengths, style.fitting([format.tokens(n) for n in lengths], places, 8))
        axes.tick_params(length=2.5, pad=2)
        what = "tokens kept" if scene.regime.phase == "decode" else "length, tokens"
        axes.set_xlabel(what, labelpad=1, fontsize=8)
        _draw_lines(axes, panel)
        _name_lines(paper, axes, panel, bottom, top)
        _draw_brackets(paper, axes, panel, top)
        best = [f"{n} {measure.say(v)}" for n, v in panel.best(lengths[-1])[:3]]
        told = [f"{len(panel.series)} lines over {len(lengths)} lengths"]
        told += [f"Least at {lengths[-1]:,} tokens: {', '.join(best)}"] if best else []
        told += map(str, scene.crossings) if panel.brackets else ()
        return finish(paper, "scaling", panel.name, title, ". ".join(told), _rows(panel))


ROW, BARS, BESIDE = 12.5, 14, 96.0


def _bars(panel: Panel) -> Drawn:
    """Bars from zero, the best first; those that are told apart, then the best of the rest."""
    scene, measure = panel.scene, panel.measure
    (length,) = {n for line in panel.series.values() for n in line}
    order = [name for name, _ in panel.best(length)]
    rest = [name for name in order if name not in panel.telling]
    shown = {*panel.telling, *rest[: max(0, BARS - len(panel.telling))]}
    bars = [name for name in order if name in shown]
    title = f"{PHASES.get(scene.regime.phase, scene.regime.phase)}: {measure.title}"
    if (measure.name, panel.kind) != ("error", "others"):
        title += f", {KINDS[panel.kind]}"
    what = "tokens kept" if scene.regime.phase == "decode" else "tokens"
    with sheet(WIDE / 72, (ABOVE + ROW * len(bars) + 12) / 72) as paper:
        under = ", ".join([*scene.regime.words()[1:], scene.run.machine])
        labels.heading(paper, title, under, f"One length was measured. {finding(panel)}")
        axes = labels.add_axes(paper, (BESIDE, 8, WIDE - 60, 8 + ROW * len(bars)))
        axes.set(ylim=(len(bars) - 0.5, -0.5), yticks=[], xticks=[])
        axes.spines["bottom"].set_visible(False)
        sides: dict[str, Any] = {"va": "center_baseline", "fontsize": 7.5}
        for row, name in enumerate(bars):
            (value, low, high), look = panel.series[name][length], panel.looks[name]
            axes.barh(row, value, height=0.62, color=look.colour, alpha=0.55)
            if high > 1.02 * low:
                axes.plot([low, high], [row, row], color=labels.INK, linewidth=0.9)
            place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), **sides}
            axes.plot([-0.035], [row], clip_on=False, transform=axes.get_yaxis_transform(),
                      **look.marks(3.7))  # fmt: skip
            axes.text(-0.075, row, labels.shorten(name, 80, 7.5), ha="right", **place)
            axes.text(max(value, high), row, f" {measure.say(value)}", **sides)
        told = f"{len(panel.series)} bars at {length:,} {what}"
        return finish(paper, "scaling", panel.name, title, told, _rows(panel))


def _draw_lines(axes: Axes, panel: Panel) -> None:
    from matplotlib.collections import LineCollection

    if panel.reference:
        middle = [p[0] for p in panel.reference.values()]
        axes.plot(list(panel.reference), middle, **style.REFERENCE)
    pale = [
        [(length, middle) for length, (middle, *_) in series.items()]
        for name, series in panel.series.items()
        if name not in panel.telling
    ]
    faint: dict[str, Any] = {"color": FAINT, "alpha": 0.5}
    axes.add_collection(LineCollection(pale, linewidth=0.6, **faint))
    if alone := [line[0] for line in pale if len(line) == 1]:
        axes.plot(*zip(*alone, strict=True), marker=".", linestyle="none", **faint)
    for name in reversed(panel.telling):
        series, look = panel.series[name], panel.looks[name]
        xs, (middle, low, high) = list(series), map(list, zip(*series.values(), strict=True))
        if any(top > 1.02 * bottom for top, bottom in zip(high, low, strict=True)):
            band: dict[str, Any] = {"color": look.colour, "alpha": 0.13, "linewidth": 0}
            axes.fill_between(xs, low, high, **band)
        line: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.1, **look.marks(3.7)}
        axes.plot(xs, middle, clip_on=False, **line)


def _name_lines(figure: Figure, axes: Axes, panel: Panel, bottom: float, top: float) -> None:
    """Names beside the ends of their lines, with the power that each grows by to the right.

    A power has as many digits as its fit supports: ``n^1.93`` or ``~n^1.9``. What that means is
    said below.
    """
    right, ends = WIDE - RIGHT, []
    for name in panel.telling:
        length, point = list(panel.series[name].items())[-1]
        p = panel.powers.get(name)
        behind = (f"n^{p.power:.2f}" if p.error <= SURE else f"~n^{p.power:.1f}") if p else ""
        ends.append(End(panel.looks[name], labels.at(axes, length, point[0]), name, behind))
    if panel.reference:
        length, point = list(panel.reference.items())[-1]
        ends.append(End(None, labels.at(axes, length, point[0]), "fastest exact"))
    style.name_ends(figure, ends, right, bottom + 1, top - (5 if panel.brackets else 2))
    if powers := [panel.powers[name] for name in panel.telling if name in panel.powers]:
        notes = [f"n^p: growth over {max(len(p.lengths) for p in powers)} lengths"]
        notes += [f"~ beyond ±{SURE:g}"] * any(p.error > SURE for p in powers)
        for number, text in enumerate(notes):
            text = shorten(text, RIGHT - 12, 6.8)
            labels.write(figure, right + 9, bottom - 15 - 9 * number, text, 6.8, color=FAINT)


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
    words = {"time": "Fastest", "error": "Nearest" if panel.kind == "others" else "Smallest"}
    tie = f" (a tie of {len(names)})" * (timed and len(names) > 1)
    grows = None if tie else panel.powers.get(names[0])
    how = f", growing as n^{grows.power:.1f}" if grows and grows.error <= SURE else ""
    ends = f"{tie}, {panel.measure.say(best)}{how}"
    start = f"{words.get(panel.measure.name, 'Least')} at {length:,} tokens: "
    room = labels.FITS * (WIDE - 10) - labels.width(start + ends, SIZE)
    return start + labels.listed(names, room, SIZE) + ends


def _draw_brackets(figure: Figure, axes: Axes, panel: Panel, top: float) -> None:
    for number, ((low, high), pairs) in enumerate(panel.brackets.items()):
        axes.axvspan(low, high, color=GRID, alpha=0.35, linewidth=0, zorder=0.5)
        x0, x1 = (labels.at(axes, n, axes.get_ylim()[0])[0] for n in (low, high))
        y = top + 6 + BRACKET * number
        labels.line(figure, [x0, x0, x1, x1], [y - 2.5, y, y, y - 2.5], color=FAINT, linewidth=0.8)
        text = " → ".join(shorten(name, 80, 7) for name in pairs[0])
        text = shorten(text + f" and {len(pairs) - 1} more" * (len(pairs) > 1), WIDE - 12, 7)
        wide = labels.width(text, 7)
        beside = x1 + 5 if x1 + 5 + wide <= WIDE - 4 else max(4.0, x0 - 5 - wide)
        labels.write(figure, beside, y - 3.5, text, 7)


def _rows(panel: Panel) -> Iterator[Sequence[object]]:
    timed = panel.measure.name == "time"
    unit, scale = ("ms", 1e3) if timed else (panel.measure.name, 1.0)
    yield "variant", "computes", "length", unit, "low", "high"
    for name, series in panel.series.items():
        for length, point in series.items():
            numbers = (style.number(value * scale) for value in point)
            yield name, panel.looks[name].computes, length, *numbers
