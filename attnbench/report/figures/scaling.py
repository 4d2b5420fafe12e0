"""Scaling: time, memory, error and energy against the length, exact softmax and the rest apart.

Some lines are coloured and named at their ends, with the power of the length that they grow by; the
rest are thin. Where one leader overtakes another a bracket stands between two lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    unit: str = ""
    """For times: ms, tflops, share or baseline."""
    grows: bool = True
    """Whether it grows as a power of the length."""


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


def _over(amount: float | None, point: Point | None) -> Point | None:
    """An amount per second, from the time and its interval."""
    if amount is None or point is None:
        return None
    value, low, high = point
    return amount / value, amount / high, amount / low


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
    """Bytes above the inputs at the worst moment."""
    return positive(record.memory.peak_bytes) if record.memory and record.time else None


def _error(record: Record) -> float | None:
    """The worst error of the output and the gradients, or the distance from softmax."""
    if record.time is None:
        return None
    if record.computes != "softmax":
        return distance(record)
    errors = [value for e in (record.error or {}).values() if (value := positive(e.relative))]
    return max(errors, default=None)


def distance(record: Record) -> float | None:
    """The distance of the output from softmax attention: of an exact variant, its error."""
    if record.computes != "softmax":
        return positive(record.distance.relative) if record.distance else None
    forward = (record.error or {}).get("forward")
    return positive(forward.relative) if forward else None


def _energy(record: Record) -> float | None:
    return positive(record.energy.joules) if record.energy and record.time else None


def _exactly(read: Callable[[Record], float | None]) -> Read:
    """A value without an interval, as a point."""

    def point(record: Record, _: float | None) -> Point | None:
        value = read(record)
        return None if value is None else (value, value, value)

    return point


def measures(kind: str, baseline: str) -> list[Measure]:
    """All measures, of exact softmax or of what is not."""
    error = "worst relative error" if kind == "exact" else "distance from softmax"
    return [
        Measure("time", "median time", lambda r, _: taken(r), format.seconds, "ms"),
        Measure("time", "TFLOP/s", _tflops, format.three, "tflops", grows=False),
        Measure("time", "share of the ceiling", _share, format.percent, "share", grows=False),
        Measure(
            "time",
            f"time as a multiple of {shorten(baseline, 90, 9.5)}'s",
            _of_baseline,
            format.times,
            "baseline",
            grows=False,
        ),
        Measure("memory", "peak memory", _exactly(peak), format.nbytes),
        Measure("error", error, _exactly(_error), format.three, grows=False),
        Measure("energy", "energy a call", _exactly(_energy), format.joules),
    ]


Series = Mapping[int, Point]
"""By length, the shortest first."""


TELLING = 10
"""Lines that can still be told apart."""
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

    @property
    def powers(self) -> dict[str, Power]:
        """The power of the length that each line grows by, where it can be fitted."""
        if not self.measure.grows:
            return {}
        powers = {name: power({n: p[0] for n, p in s.items()}) for name, s in self.series.items()}
        return {name: p for name, p in powers.items() if p}

    @property
    def lengths(self) -> list[int]:
        """All lengths at which something is drawn."""
        return sorted({n for some in (*self.series.values(), self.reference) for n in some})


def panels(scene: Scene, looks: Looks, baseline: str) -> Iterator[Panel]:
    """Every panel that has data, exact softmax first."""
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
    """The leaders at any length, the baseline, then the fastest at the longest length reached.

    Of those that are not exact, first those that nothing beats in both speed and distance.
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
        first = frontier(_time_and_distance(cells, names))[: TELLING // 2]
    return list(dict.fromkeys([*first, *fastest]))[:TELLING]


def _time_and_distance(
    cells: Mapping[str, Record], names: Sequence[str]
) -> dict[str, tuple[float, float]]:
    some = {name: (median(cells[name]), distance(cells[name])) for name in names if name in cells}
    return {name: (time, far) for name, (time, far) in some.items() if time and far}


WIDE, HIGH = style.WIDE, 263.0
"""The size of a figure, in points."""
LEFT, RIGHT, ABOVE, BELOW = 44.0, 130.0, 47.5, 30.0
SIZE = 8.0
BRACKET = 11.0
"""The height of a bracket."""
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
        top = HIGH - ABOVE - BRACKET * len(crossings)
        axes = labels.add_axes(paper, (LEFT, bottom, WIDE - RIGHT, top))
        _scale(axes, panel)
        _draw_lines(axes, panel)
        _name_lines(paper, axes, panel, bottom, top)
        _draw_brackets(paper, axes, crossings, top)
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
    lengths = panel.lengths
    some = (*panel.series.values(), panel.reference)
    heights = style.limits(value for s in some for point in s.values() for value in point)
    base = 2 if panel.measure.name == "memory" else 10
    style.scale(axes, "y", heights, panel.measure.say, base)
    axes.set(xscale="log", xlim=style.limits(lengths, least=2.0, room=0.04))
    axes.minorticks_off()
    places = [_across(axes, n) for n in lengths]
    axes.set_xticks(lengths, style.fitting([format.tokens(n) for n in lengths], places, 8))
    axes.tick_params(length=2.5, pad=2)
    what = "tokens kept" if panel.scene.regime.phase == "decode" else "length, tokens"
    axes.set_xlabel(what, labelpad=1, fontsize=8)


def _across(axes: Axes, length: float) -> float:
    """The place of a length, in points from the left of the figure."""
    return LEFT + (WIDE - LEFT - RIGHT) * style.share(axes.get_xlim(), length)


def _draw_lines(axes: Axes, panel: Panel) -> None:
    if panel.measure.unit == "baseline":
        axes.axhline(1.0, color=FAINT, linewidth=0.8)
    if panel.reference:
        axes.plot(
            list(panel.reference),
            [p[0] for p in panel.reference.values()],
            **style.REFERENCE,
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
            band: dict[str, Any] = {"color": look.colour, "alpha": 0.13, "linewidth": 0}
            axes.fill_between(xs, low, high, gid=look.gid(), **band)
        line: dict[str, Any] = {
            "linestyle": look.dash,
            "linewidth": 1.1,
            "clip_on": False,
            **look.marks(3.7),
        }
        axes.plot(xs, middle, gid=gid, **line)


def _words(panel: Panel, name: str, grows: Power | None) -> str:
    length, (value, low, high) = list(panel.series[name].items())[-1]
    say = panel.measure.say
    interval = f" [{say(low)}, {say(high)}]" if high > low else ""
    growth = f", grows as {grows}" if grows else ""
    return f"{name}: {length:,} tokens, {say(value)}{interval}{growth}"


def _name_lines(figure: Figure, axes: Axes, panel: Panel, bottom: float, top: float) -> None:
    """Names beside the ends of their lines, with the power that each grows by to the right."""
    powers, right = panel.powers, WIDE - RIGHT

    def up(point: Point) -> float:
        return bottom + (top - bottom) * style.share(axes.get_ylim(), point[0])

    ends = []
    for name in panel.telling:
        length, point = list(panel.series[name].items())[-1]
        behind = growth(powers[name]) if name in powers else ""
        ends.append(End(panel.looks[name], _across(axes, length), up(point), name, behind))
    if panel.reference:
        last = list(panel.reference.values())[-1]
        ends.append(End(None, right, up(last), "fastest exact"))
    highest = top - 5 if _brackets(panel) else top - 2
    style.name_ends(figure, ends, right, bottom + 1, highest)
    _explain(figure, [powers[name] for name in panel.telling if name in powers], right, bottom)


def growth(of: Power) -> str:
    """``n^1.93``, with as many digits as the fit supports: ``~n^1.9``, ``n^?``."""
    if of.error <= SURE:
        return f"n^{of.power:.2f}"
    return f"~n^{of.power:.1f}" if of.error <= HARDLY else "n^?"


def _explain(figure: Figure, powers: Sequence[Power], right: float, bottom: float) -> None:
    """Below the names, what their powers are and how far the fit supports them."""
    if not powers:
        return
    most = max(len(power.lengths) for power in powers)
    rough = []
    if any(SURE < p.error <= HARDLY for p in powers):
        rough.append(f"~ beyond ±{SURE:g}")
    if any(p.error > HARDLY for p in powers):
        rough.append(f"? beyond ±{HARDLY:g}")
    for number, text in enumerate([f"n^p: growth over {most} lengths", ", ".join(rough)]):
        text = labels.shorten(text, RIGHT - 12, 6.8)
        labels.write(figure, right + 9, bottom - 15 - 9 * number, text, 6.8, color=FAINT)


def finding(panel: Panel) -> str:
    """Which is best at the longest length that most reach; of exact times, with all that tie."""
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
    """Where one leader overtakes another; those between the same two lengths together."""
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


def _draw_brackets(figure: Figure, axes: Axes, brackets: Sequence[Bracket], top: float) -> None:
    for number, bracket in enumerate(brackets):
        axes.axvspan(bracket.low, bracket.high, color=GRID, alpha=0.35, linewidth=0, zorder=0.5)
        x0, x1 = _across(axes, bracket.low), _across(axes, bracket.high)
        y = top + 6 + BRACKET * number
        labels.line(figure, [x0, x0, x1, x1], [y - 2.5, y, y, y - 2.5], color=FAINT, linewidth=0.8)
        text = labels.shorten(bracket.text, WIDE - 12, 7)
        wide = labels.width(text, 7)
        beside = x1 + 5 if x1 + 5 + wide <= WIDE - 4 else max(4.0, x0 - 5 - wide)
        labels.write(figure, beside, y - 3.5, text, 7)


def _describe(panel: Panel) -> str:
    length = panel.lengths[-1]
    at = {n: s[length][0] for n, s in panel.series.items() if length in s}
    up = panel.measure.unit in ("tflops", "share")
    best = sorted(at, key=lambda name: -at[name] if up else at[name])[:3]
    values = ", ".join(f"{name} {panel.measure.say(at[name])}" for name in best)
    crossings = [str(c) for c in panel.scene.crossings] if _brackets(panel) else []
    best_of = f"{'Most' if up else 'Least'} at {length:,} tokens: {values}" if values else ""
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
