"""Scaling: time, memory, error and energy against the length, exact softmax and the rest apart.

The most telling lines are coloured and named at their ends, with the power of the length that they
grow by; the rest are thin. Where one leader overtakes another a bracket stands between two lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.answer.regimes import Power, frontier, power
from attnbench.core import format
from attnbench.core.format import positive
from attnbench.core.record import Record
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, Drawn, finish, sheet, shorten
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Point = tuple[float, float, float]
"""A value and its interval."""
Read = Callable[[Record, "float | None"], "Point | None"]
"""From a record and the baseline's median at its length."""


@dataclass(frozen=True)
class Measure:
    """One way to draw what records say."""

    name: str
    """time, memory, error or energy"""
    title: str
    read: Read
    say: Callable[[float], str]
    at: Callable[[float, float], Sequence[float]] = style.decimal
    unit: str = ""
    """Of times: ms, tflops, share or baseline."""
    grows: bool = True
    """Whether it grows as a power of the length."""


def median(record: Record) -> float | None:
    """A call's median, where there is one to draw."""
    return positive(record.time.median_s) if record.time else None


def taken(record: Record) -> Point | None:
    """A call's median and interval, in seconds."""
    value = median(record)
    if value is None or record.time is None:
        return None
    low, high = positive(record.time.low_s) or value, positive(record.time.high_s) or value
    return value, min(low, value), max(high, value)


def _over(amount: float | None, point: Point | None) -> Point | None:
    """What is done by the second: where the time is short it is much."""
    if amount is None or point is None:
        return None
    value, low, high = point
    return amount / value, amount / high, amount / low


def _time(record: Record, _: float | None) -> Point | None:
    return taken(record)


def _tflops(record: Record, _: float | None) -> Point | None:
    return _over(positive(record.cost.flops / 1e12) if record.cost else None, taken(record))


def _share(record: Record, _: float | None) -> Point | None:
    share, point = positive(record.share_of_ceiling), taken(record)
    return _over(share * point[0], point) if share and point else None


def _of_baseline(record: Record, baseline: float | None) -> Point | None:
    point = taken(record)
    if point is None or baseline is None:
        return None
    return point[0] / baseline, point[1] / baseline, point[2] / baseline


def peak(record: Record) -> float | None:
    """Bytes above the inputs at the worst instant."""
    return positive(record.memory.peak_bytes) if record.memory and record.time else None


def _memory(record: Record, _: float | None) -> Point | None:
    return _alone(peak(record))


def _error(record: Record, _: float | None) -> Point | None:
    """The worst of the output's and the gradients', or how far it is from softmax."""
    if record.time is None:
        return None
    if record.computes != "softmax":
        return _alone(distance(record))
    found = [value for e in (record.error or {}).values() if (value := positive(e.relative))]
    return _alone(max(found, default=None))


def distance(record: Record) -> float | None:
    """How far the output is from softmax attention: of what is exact, by its error."""
    if record.computes != "softmax":
        return positive(record.distance.relative) if record.distance else None
    forward = (record.error or {}).get("forward")
    return positive(forward.relative) if forward else None


def _energy(record: Record, _: float | None) -> Point | None:
    return _alone(positive(record.energy.joules) if record.energy and record.time else None)


def _alone(value: float | None) -> Point | None:
    return None if value is None else (value, value, value)


def measures(kind: str, baseline: str) -> list[Measure]:
    """All, of exact softmax or of what is not."""
    error = "worst relative error" if kind == "exact" else "distance from softmax"
    return [
        Measure("time", "median time", _time, format.seconds, unit="ms"),
        Measure("time", "TFLOP/s", _tflops, format.three, unit="tflops", grows=False),
        Measure("time", "share of the ceiling", _share, format.percent, unit="share", grows=False),
        Measure(
            "time",
            f"time as a multiple of {shorten(baseline, 90, 9.5)}'s",
            _of_baseline,
            format.times,
            unit="baseline",
            grows=False,
        ),
        Measure("memory", "peak memory", _memory, format.nbytes, style.binary),
        Measure("error", error, _error, format.three, grows=False),
        Measure("energy", "energy a call", _energy, format.joules),
    ]


Series = Mapping[int, Point]
"""By length, the shortest first."""


TELLING = 10
"""Lines that can still be told apart."""
PANEL_KINDS = ("exact", "others")


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
    for kind in PANEL_KINDS:
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


WIDE, HIGH = 331.0, 263.0
"""Of a figure, in points."""
LEFT, RIGHT, ABOVE, BELOW = 44.0, 130.0, 47.5, 30.0
SIZE = 8.0
NAME = 25.0
"""How far to the right of the axes names begin: before them is a piece of the line."""
STEP = 11.0
"""From one name to the next."""
ABOVE_EACH = 11.0
"""What a bracket takes."""
PHASES = {
    "train": "Training",
    "forward": "Forward",
    "backward": "Backward",
    "decode": "Decoding",
}
KINDS = {"exact": "exact softmax", "others": "not exact softmax"}
SURE, HARDLY = 0.25, 1.0
"""A power whose interval is wider either way has fewer digits in a label, or none at all."""


def draw(scene: Scene, looks: Looks, baseline: str) -> list[Drawn]:
    """Every figure that there is something for, exact softmax first."""
    return [figure(panel) for panel in panels(scene, looks, baseline)]


def figure(panel: Panel) -> Drawn:
    """The figure of one panel."""
    scene, measure = panel.scene, panel.measure
    phase = PHASES.get(scene.regime.phase, scene.regime.phase)
    title = f"{phase}: {measure.title}"
    if (measure.name, panel.kind) != ("error", "others"):  # whose title says so
        title += f", {KINDS[panel.kind]}"
    crossings = _brackets(panel)
    lines = style.lines(style.of(panel.looks[n] for n in panel.telling), WIDE - 12)
    with sheet(WIDE / 72, HIGH / 72) as paper:
        labels.heading(
            paper, title, ", ".join([*scene.regime.words()[1:], scene.run.machine]), finding(panel)
        )
        style.put(paper, 6, 5, lines)
        bottom = BELOW + style.LINE * len(lines)
        top = HIGH - ABOVE - ABOVE_EACH * len(crossings)
        axes = paper.add_axes(
            (LEFT / WIDE, bottom / HIGH, (WIDE - LEFT - RIGHT) / WIDE, (top - bottom) / HIGH)
        )
        _set_axes(axes, panel)
        _lines(axes, panel)
        _label_ends(paper, axes, panel, bottom, top)
        _draw_brackets(paper, axes, crossings, panel, top)
        return finish(
            paper,
            "scaling",
            panel.name,
            title,
            _told(panel),
            _rows(panel),
            regime=scene.number,
            unit=measure.unit,
            with_png=measure.unit in ("", "ms"),
        )


def _set_axes(axes: Axes, panel: Panel) -> None:
    lengths = panel.lengths
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(*style.limits(lengths, least=2.0, room=0.04))
    some = (*panel.series.values(), panel.reference)
    axes.set_ylim(*style.limits(value for s in some for point in s.values() for value in point))
    axes.minorticks_off()
    at = panel.measure.at(*axes.get_ylim())
    axes.set_yticks(list(at), [panel.measure.say(tick) for tick in at])
    across = WIDE - LEFT - RIGHT
    places = [across * style.share(axes.get_xlim(), n) for n in lengths]
    axes.set_xticks(lengths, style.fitting([format.tokens(n) for n in lengths], places, 8))
    axes.tick_params(length=2.5, pad=2)
    axes.set_xlabel(
        "length, tokens" if panel.scene.regime.phase != "decode" else "tokens kept",
        labelpad=1,
        fontsize=8,
    )


def _lines(axes: Axes, panel: Panel) -> None:
    if panel.measure.unit == "baseline":
        axes.axhline(1.0, color=FAINT, linewidth=0.8)
    if panel.reference:
        axes.plot(
            list(panel.reference),
            [p[0] for p in panel.reference.values()],
            color=FAINT,
            linewidth=1.6,
            alpha=0.55,
        )
    powers = panel.powers
    order = [*(n for n in panel.series if n not in panel.telling), *reversed(panel.telling)]
    for name in order:
        series, look = panel.series[name], panel.looks[name]
        xs, (middle, low, high) = list(series), zip(*series.values(), strict=True)
        gid = look.gid(_words(panel, name, powers.get(name)))
        if name not in panel.telling:
            mark = "." if len(xs) == 1 else ""
            axes.plot(xs, middle, color=FAINT, linewidth=0.6, alpha=0.5, gid=gid, marker=mark)
            continue
        if any(top > 1.02 * bottom for top, bottom in zip(high, low, strict=True)):
            axes.fill_between(
                xs, low, high, color=look.colour, alpha=0.13, linewidth=0, gid=look.gid()
            )
        axes.plot(
            xs,
            middle,
            linestyle=look.dash,
            linewidth=1.1,
            gid=gid,
            clip_on=False,
            **look.marks(3.7),
        )


def _words(panel: Panel, name: str, grows: Power | None) -> str:
    length, (value, low, high) = list(panel.series[name].items())[-1]
    say = panel.measure.say
    interval = f" [{say(low)}, {say(high)}]" if high > low else ""
    growth = f", grows as {grows}" if grows else ""
    return f"{name}: {length:,} tokens, {say(value)}{interval}{growth}"


def _label_ends(figure: Figure, axes: Axes, panel: Panel, bottom: float, top: float) -> None:
    """Names beside the ends of their lines, each with a thread to it; powers to the right."""
    powers = panel.powers
    right = WIDE - RIGHT
    across, up = right - LEFT, top - bottom
    ends = {name: list(panel.series[name].items())[-1] for name in panel.telling}
    wanted = [bottom + up * style.share(axes.get_ylim(), p[0]) for _, p in ends.values()]
    if panel.reference:
        wanted.append(
            bottom + up * style.share(axes.get_ylim(), list(panel.reference.values())[-1][0])
        )
    ceiling = top - 5 if _brackets(panel) else top - 2
    places = labels.spread(wanted, STEP, bottom + 1, ceiling)
    for (name, (length, _)), y, at in zip(ends.items(), wanted, places, strict=False):
        look, grows = panel.looks[name], powers.get(name)
        x = LEFT + across * style.share(axes.get_xlim(), length)
        labels.line(
            figure,
            [x + 3, right + 5],
            [y, at],
            color=look.colour,
            linewidth=0.5,
            alpha=0.7,
            gid=look.gid(),
        )
        labels.line(
            figure,
            [right + 6, right + 14, right + 22],
            [at] * 3,
            linestyle=look.dash,
            linewidth=1.1,
            markevery=[1],
            gid=look.gid(),
            **look.marks(3.7),
        )
        said = growth(grows) if grows else ""
        room = RIGHT - NAME - 2 - (labels.width(said, 7.5) + 5 if said else 3)
        labels.write(
            figure, right + NAME, at - 2.7, labels.shorten(name, room, SIZE), SIZE, gid=look.gid()
        )
        if said:
            labels.write(
                figure, WIDE - 3, at - 2.7, said, 7.5, color=FAINT, ha="right", gid=look.gid()
            )
    _explain(figure, [powers[name] for name in ends if name in powers], right, bottom)
    if panel.reference:
        labels.line(
            figure,
            [right + 2, right + 5, right + 22],
            [wanted[-1], *places[-1:] * 2],
            color=FAINT,
            linewidth=1.6,
            alpha=0.55,
        )
        labels.write(figure, right + NAME, places[-1] - 2.7, "fastest exact", SIZE, color=FAINT)


def growth(of: Power) -> str:
    """``n^1.93``, with as many digits as the fit is sure of: ``~n^1.9``, ``n^?``."""
    if of.error <= SURE:
        return f"n^{of.power:.2f}"
    return f"~n^{of.power:.1f}" if of.error <= HARDLY else "n^?"


def _explain(figure: Figure, powers: Sequence[Power], right: float, bottom: float) -> None:
    """Below the names, what their powers are and how sure."""
    if powers:
        most = max(len(power.lengths) for power in powers)
        rough = [f"~ beyond ±{SURE:g}"] * any(SURE < p.error <= HARDLY for p in powers)
        rough += [f"? beyond ±{HARDLY:g}"] * any(p.error > HARDLY for p in powers)
        lines = [f"n^p: growth over {most} lengths", ", ".join(rough)]
        for number, text in enumerate(filter(None, lines)):
            labels.write(
                figure,
                right + 9,
                bottom - 15 - 9 * number,
                labels.shorten(text, RIGHT - 12, 6.8),
                6.8,
                color=FAINT,
            )


def finding(panel: Panel) -> str:
    """Who is best at the longest length that most reach; of exact times, with who ties."""
    length = panel.scene.regime.longest()
    if length is None:
        return ""
    at = {name: s[length][0] for name, s in panel.series.items() if length in s}
    if not at:
        return ""
    many = panel.measure.unit in ("tflops", "share")
    best = (max if many else min)(at.values())
    names = [name for name, value in at.items() if value == best]
    timed = panel.measure.name == "time"
    if timed and panel.kind == "exact":
        leaders = [s.leaders for s in panel.scene.standings if s.length == length]
        names = [name for name in (leaders[0] if leaders else names) if name in at] or names
    say = panel.measure.say
    words = {"error": "Nearest" if panel.kind == "others" else "Smallest"}
    word = "Fastest" if timed else words.get(panel.measure.name, "Least")
    tie = f" (a tie of {len(names)})" * (timed and len(names) > 1)
    grows = None if tie else panel.powers.get(names[0])
    how = f", growing as n^{grows.power:.1f}" if grows and grows.error <= SURE else ""
    ends = f"{tie}, {say(best)}{how}"
    start = f"{word} at {length:,} tokens: "
    room = labels.FITS * (WIDE - 10) - labels.width(start + ends, SIZE)
    return start + labels.listed(names, room, SIZE) + ends


@dataclass(frozen=True)
class Bracket:
    """Crossings between the same two lengths."""

    low: int
    high: int
    text: str


def _brackets(panel: Panel) -> list[Bracket]:
    """Where leaders change places; those that share both lengths together."""
    if panel.kind != "exact" or panel.measure.name != "time":
        return []
    found: dict[tuple[int, int], list[str]] = {}
    for c in panel.scene.crossings:
        if c.before in panel.series and c.after in panel.series:
            some = found.setdefault((c.low, c.high), [])
            names = [labels.shorten(name, 80, 7) for name in (c.before, c.after)]
            some.append(f"{names[0]} → {names[1]}")
    return [
        Bracket(low, high, some[0] + f" and {len(some) - 1} more" * (len(some) > 1))
        for (low, high), some in list(found.items())[:3]
    ]


def _draw_brackets(
    figure: Figure, axes: Axes, brackets: Sequence[Bracket], panel: Panel, top: float
) -> None:
    across = WIDE - LEFT - RIGHT
    for number, bracket in enumerate(brackets):
        axes.axvspan(bracket.low, bracket.high, color=GRID, alpha=0.35, linewidth=0, zorder=0.5)
        x0, x1 = (
            LEFT + across * style.share(axes.get_xlim(), n) for n in (bracket.low, bracket.high)
        )
        y = top + 6 + ABOVE_EACH * number
        labels.line(figure, [x0, x0, x1, x1], [y - 2.5, y, y, y - 2.5], color=FAINT, linewidth=0.8)
        text = labels.shorten(bracket.text, WIDE - 12, 7)
        wide = labels.width(text, 7)
        if x1 + 5 + wide <= WIDE - 4:
            labels.write(figure, x1 + 5, y - 3.5, text, 7)
        else:
            labels.write(figure, max(4.0, x0 - 5 - wide), y - 3.5, text, 7)


def _told(panel: Panel) -> str:
    length = panel.lengths[-1]
    at = {n: s[length][0] for n, s in panel.series.items() if length in s}
    up = panel.measure.unit in ("tflops", "share")
    best = sorted(at, key=lambda name: -at[name] if up else at[name])[:3]
    said = ", ".join(f"{name} {panel.measure.say(at[name])}" for name in best)
    crossings = [str(c) for c in panel.scene.crossings] if _brackets(panel) else []
    best_of = f"{'Most' if up else 'Least'} at {length:,} tokens: {said}" if said else ""
    lines = f"{len(panel.series)} lines over {len(panel.lengths)} lengths"
    return ". ".join(filter(None, (lines, best_of, *crossings)))


def _rows(panel: Panel) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = [
        ("variant", "computes", "length", panel.measure.unit or panel.measure.name, "low", "high")
    ]
    scale = 1e3 if panel.measure.unit == "ms" else 1.0
    for name, series in panel.series.items():
        for length, point in series.items():
            computes = panel.looks[name].computes
            rows.append((name, computes, length, *(style.number(value * scale) for value in point)))
    return rows
