"""Trade-offs at the longest length: what more time buys, in memory and in likeness to softmax.

A step line joins the variants that none of their kind beats both ways; the others are pale. Exact
variants and the others have a line each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from attnbench.answer.regimes import frontier
from attnbench.core import format
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.scaling import PHASES, distance, median, peak
from attnbench.report.figures.sheet import FAINT, Drawn, finish, sheet
from attnbench.report.figures.style import WIDE, End, Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIGH = 275.0
LEFT, RIGHT, ABOVE, BELOW = 44.0, 103.0, 57.0, 32.0
NAMED = 12
"""How many are named, the frontiers first and then the fastest."""
GAP = 15.0
"""Points between the exact variants and the others, where errors are drawn."""
TITLES = {"error": "time × distance from softmax", "memory": "time × peak memory"}
SAY = {"error": format.three, "memory": format.size}
Points = Mapping[str, tuple[float, float]]
"""By variant, its time and its error or memory."""
Fronts = Sequence[Sequence[str]]
"""The frontiers: of the exact variants, and of the others."""


def draw(scene: Scene, looks: Looks) -> list[Drawn]:
    """Time and error, time and memory, as far as they were measured."""
    length = scene.regime.longest()
    drawn = []
    for measure in TITLES if length else ():
        other = distance if measure == "error" else peak
        records = scene.regime.cells[length or 0].items()
        both = {name: (median(record), other(record)) for name, record in records}
        if points := {name: (time, y) for name, (time, y) in both.items() if time and y}:
            drawn.append(_figure(scene, looks, length or 0, measure, points))
    return drawn


def _figure(scene: Scene, looks: Looks, length: int, measure: str, points: Points) -> Drawn:
    phase = PHASES.get(scene.regime.phase, scene.regime.phase)
    title = f"{phase}, {length:,} tokens: {TITLES[measure]}"
    items = style.lines(style.of(looks[name] for name in points), WIDE - 12)
    groups = [
        {n: at for n, at in points.items() if looks[n].exact is exact} for exact in (True, False)
    ]
    fronts = [frontier(group) for group in groups]
    bottom, top = BELOW + style.LINE * len(items), HIGH - ABOVE
    clouds = [points] if measure == "memory" else [group for group in groups if group]
    shares = [0.36, 0.64] if len(clouds) == 2 else [1.0]
    with sheet(WIDE / 72, HIGH / 72) as figure:
        under = ", ".join([*scene.regime.words()[1:], scene.run.machine])
        labels.heading(figure, title, under, _finding(scene, length, measure, fronts[0]))
        style.put(figure, 6, 5, items)
        xs, level = style.limits((time for time, _ in points.values()), room=0.08), bottom
        ends: dict[str, End] = {}
        for cloud, share in zip(clouds, shares, strict=True):
            high = (top - bottom - GAP * (len(clouds) - 1)) * share
            axes = labels.add_axes(figure, (LEFT, level, WIDE - RIGHT, level + high))
            lowest, exact = level == bottom, all(looks[name].exact for name in cloud)
            style.scale(axes, "x", xs, format.duration if lowest else lambda _: "")
            ys = style.limits((y for _, y in cloud.values()), room=0.14)
            style.scale(axes, "y", ys, SAY[measure], 2 if measure == "memory" else 10)
            axes.tick_params(length=2.5 if lowest else 0, pad=2)
            if lowest:
                less = "median time (less is better, as is lower down)"
                axes.set_xlabel(less, labelpad=1, fontsize=8)
            _draw_points(axes, cloud, looks, fronts)
            error = "exact: error of the output" if exact else "distance from softmax attention"
            text = "peak memory above the inputs" if measure == "memory" else error
            labels.write(figure, LEFT, level + high + 3, text, 7.5, color=FAINT)
            ends |= {n: End(looks[n], labels.at(axes, *at), n) for n, at in cloud.items()}
            level += high + GAP
        order = dict.fromkeys([*chain(*fronts), *sorted(points, key=lambda name: points[name])])
        named = [ends[name] for name in list(order)[:NAMED]]
        style.name_ends(figure, named, WIDE - RIGHT, bottom + 1, top, lines=False)
        told = []
        for front, which in zip(fronts, ("Exact", "Not exact"), strict=True):
            two = ((n, *points[n]) for n in front[:8])
            some = ", ".join(f"{n} ({format.duration(s)}, {SAY[measure](x)})" for n, s, x in two)
            told += [f"{which}, beaten by none of its kind both ways: {some}"] * bool(front)
        rows = _rows(looks, points, fronts, measure)
        name, words = f"{scene.name}-time-{measure}", ". ".join(told)
        return finish(figure, "tradeoffs", name, title, words, rows)


def _draw_points(axes: Axes, cloud: Points, looks: Looks, fronts: Fronts) -> None:
    for front, dash in zip(fronts, ("-", (0, (3, 2))), strict=True):
        if some := [cloud[name] for name in front if name in cloud]:
            xs = [some[0][0], *(x for x, _ in some), axes.get_xlim()[1]]
            ys = [axes.get_ylim()[1], *(y for _, y in some), some[-1][1]]
            axes.step(xs, ys, where="post", color=FAINT, linewidth=1.0, linestyle=dash, alpha=0.8)
    best = set(chain(*fronts))
    alike: dict[str, list[Any]] = {}  # points of one look are drawn at once
    for name in sorted(cloud, key=lambda name: name in best):
        bold = name in best
        marks = {**looks[name].marks(5.5 if bold else 4.5), "alpha": 1.0 if bold else 0.45}
        alike.setdefault(repr(marks), [marks]).append(cloud[name])
    for marks, *places in alike.values():
        axes.plot(*zip(*places, strict=True), linestyle="none", zorder=3, clip_on=False, **marks)


def _finding(scene: Scene, length: int, measure: str, front: Sequence[str]) -> str:
    """What the figure shows: for memory of the exact variants, for error of the faster ones."""
    standing = next((s for s in scene.standings if s.length == length), None)
    if standing is None or standing.answer is None:
        return ""
    if measure == "memory":
        tie = " (in a tie)" * bool(standing.answer.equal)
        if len(front) == 1:
            return f"Of what is exact, {front[0]} is the fastest{tie} and needs the least memory"
        least = f"{front[-1]} needs the least memory" if front else ""
        return least and f"Exact: {front[0]} is the fastest{tie}, {least}"
    known = [(f.distance, f) for f in standing.faster if f.distance is not None]
    if not known:
        return "" if standing.faster else "Nothing is clearly faster than exact softmax"
    far, nearest = min(known, key=lambda each: each[0])
    name = f"{nearest.variant} ({format.ratio(nearest.speedup)})"
    return f"Of what is faster than exact, {name} is nearest to it: {format.three(far)}"


def _rows(
    looks: Looks, points: Points, fronts: Fronts, measure: str
) -> Iterator[tuple[object, ...]]:
    best, column = set(chain(*fronts)), "distance" if measure == "error" else "peak_bytes"
    yield "variant", "computes", "median_s", column, "frontier"
    for name, both in points.items():
        front = "yes" if name in best else "no"
        yield name, looks[name].computes, *map(style.number, both), front
