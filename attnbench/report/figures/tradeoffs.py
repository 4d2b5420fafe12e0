"""Trade-offs at the longest length: what more time buys, in memory and in likeness to softmax.

A step line joins the variants that none of their kind beats both ways; the others are pale. Exact
variants and the others have a line each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from attnbench.answer.regimes import frontier
from attnbench.core import format
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.scaling import PHASES, distance, median, peak
from attnbench.report.figures.sheet import FAINT, Drawn, finish, sheet
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, HIGH = style.WIDE, 275.0
LEFT, RIGHT, ABOVE, BELOW = 44.0, 16.0, 47.5, 32.0
SIZE = 8.0
NAMED = 26
"""How many names are tried, the frontiers' first and then the fastest."""
ROOM = 120.0
GAP = 8.0
"""Points between the exact variants and the others, where errors are drawn."""
TITLES = {"error": "time × distance from softmax", "memory": "time × peak memory"}
SAY = {"error": format.three, "memory": format.nbytes}
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
    kinds = [
        {n: at for n, at in points.items() if looks[n].exact is kind} for kind in (True, False)
    ]
    fronts = [frontier(kind) for kind in kinds]
    bottom, top = BELOW + style.LINE * len(items), HIGH - ABOVE
    clouds = [points] if measure == "memory" else [kind for kind in kinds if kind]
    shares = [0.36, 0.64] if len(clouds) == 2 else [1.0]
    with sheet(WIDE / 72, HIGH / 72) as figure:
        under = ", ".join([*scene.regime.words()[1:], scene.run.machine])
        labels.heading(figure, title, under, _finding(scene, length, measure, fronts[0]))
        style.put(figure, 6, 5, items)
        xs, level, made = style.limits((time for time, _ in points.values()), room=0.08), bottom, []
        for cloud, share in zip(clouds, shares, strict=True):
            high = (top - bottom - GAP * (len(clouds) - 1)) * share
            box = (LEFT, level, WIDE - RIGHT, level + high)
            made.append((_axes(figure, cloud, box, xs, measure), cloud, box))
            level += high + GAP
        marks = [labels.at(axes, *at) for axes, cloud, _ in made for at in cloud.values()]
        for axes, cloud, box in made:
            _draw_points(axes, cloud, looks, fronts, measure)
            taken = [(x - 3.2, y - 3.2, x + 3.2, y + 3.2) for x, y in _places(axes, cloud).values()]
            taken += chain(*(_stairs(axes, cloud, front, box) for front in fronts))
            taken.append(_label(figure, cloud, looks, measure, box, taken))
            _names(figure, axes, cloud, looks, fronts, box, taken, marks)
        name, told = f"{scene.name}-time-{measure}", _describe(points, fronts, measure)
        rows = _rows(looks, points, fronts, measure)
        return finish(figure, "tradeoffs", name, title, told, rows, regime=scene.number)


def _places(axes: Axes, cloud: Points) -> dict[str, tuple[float, float]]:
    return {name: labels.at(axes, *at) for name, at in cloud.items()}


def _axes(
    figure: Figure, cloud: Points, box: labels.Box, xs: tuple[float, float], measure: str
) -> Axes:
    axes, lowest = labels.add_axes(figure, box), len(figure.axes) == 1
    style.scale(axes, "x", xs, format.seconds if lowest else lambda _: "")
    ys = style.limits((y for _, y in cloud.values()), room=0.14)
    style.scale(axes, "y", ys, SAY[measure], 2 if measure == "memory" else 10)
    axes.tick_params(length=2.5 if lowest else 0, pad=2)
    if lowest:
        axes.set_xlabel("median time (less is better, as is lower down)", labelpad=1, fontsize=8)
    return axes


def _draw_points(axes: Axes, cloud: Points, looks: Looks, fronts: Fronts, measure: str) -> None:
    for front, dash in zip(fronts, ("-", (0, (3, 2))), strict=True):
        if some := [cloud[name] for name in front if name in cloud]:
            xs = [some[0][0], *(x for x, _ in some), axes.get_xlim()[1]]
            ys = [axes.get_ylim()[1], *(y for _, y in some), some[-1][1]]
            axes.step(xs, ys, where="post", color=FAINT, linewidth=1.0, linestyle=dash, alpha=0.8)
    best = set(chain(*fronts))
    for name in sorted(cloud, key=lambda name: name in best):
        x, y = cloud[name]
        axes.plot(
            [x],
            [y],
            linestyle="none",
            zorder=3,
            clip_on=False,
            alpha=1.0 if name in best else 0.45,
            gid=looks[name].gid(f"{name}: {format.seconds(x)}, {SAY[measure](y)}"),
            **looks[name].marks(5.5 if name in best else 4.5),
        )


def _stairs(
    axes: Axes, cloud: Points, front: Sequence[str], box: labels.Box
) -> Iterator[labels.Box]:
    """The step line of a front, as boxes that no name may lie on."""
    corners = [labels.at(axes, *cloud[name]) for name in front if name in cloud]
    before = box[3]
    for (x, y), after in zip(corners, [*(x for x, _ in corners[1:]), box[2]], strict=False):
        yield x - 1, min(before, y) - 1, x + 1, max(before, y) + 1
        yield x - 1, y - 1, after + 1, y + 1
        before = y


def _label(
    figure: Figure,
    cloud: Points,
    looks: Looks,
    measure: str,
    box: labels.Box,
    taken: Sequence[labels.Box],
) -> labels.Box:
    """Write what the vertical axis is, at the top where there is room; returns its place."""
    left, _, right, top = box
    exact = all(looks[name].exact for name in cloud)
    text = "exact: error of the output" if exact else "distance from softmax attention"
    text = "peak memory above the inputs" if measure == "memory" else text
    wide = labels.width(text, 7.5)
    places = [left + 4, *(left + step for step in range(10, int(right - left - wide), 6))]
    boxes = [(x, top - 10, x + wide, top) for x in places]
    place = next((b for b in boxes if not any(labels.over(b, t) for t in taken)), boxes[0])
    labels.write(figure, place[0], top - 8, text, 7.5, color=FAINT)
    return place


def _names(
    figure: Figure,
    axes: Axes,
    cloud: Points,
    looks: Looks,
    fronts: Fronts,
    box: labels.Box,
    taken: Sequence[labels.Box],
    marks: Sequence[tuple[float, float]],
) -> None:
    """Write the names of the frontiers where there is room, and of the others close by."""
    best = [name for name in chain(*fronts) if name in cloud]
    order = list(dict.fromkeys([*best, *sorted(cloud, key=lambda name: cloud[name])]))[:NAMED]
    places = _places(axes, cloud)
    spots = [labels.Spot(*places[name], labels.shorten(name, ROOM, SIZE)) for name in order]
    frame, kept = (box[0] + 1, box[1] + 1, WIDE - 5, box[3] + 4), len(best)
    boxes = labels.place(spots[:kept], taken, frame, SIZE, 40, marks)
    full = list(taken)
    for spot, at in zip(spots, boxes, strict=False):
        if at:
            full += [labels.margin(at), *labels.way(spot.x, spot.y, *labels.nearest(spot, at))]
    boxes += labels.place(spots[kept:], full, frame, SIZE, 15, marks)
    for name, spot, at in zip(order, spots, boxes, strict=True):
        if at:
            labels.name_spot(figure, spot, at, SIZE, looks[name].gid(), pale=name not in best)


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
    name = f"{nearest.variant} ({format.times(nearest.speedup)})"
    return f"Of what is faster than exact, {name} is nearest to it: {format.three(far)}"


def _describe(points: Points, fronts: Fronts, measure: str) -> str:
    parts = []
    for front, kind in zip(fronts, ("Exact", "Not exact"), strict=True):
        both = ((n, format.seconds(points[n][0]), SAY[measure](points[n][1])) for n in front[:8])
        some = ", ".join(f"{name} ({time}, {other})" for name, time, other in both)
        parts += [f"{kind}, beaten by none of its kind both ways: {some}"] if front else []
    return ". ".join(parts)


def _rows(
    looks: Looks, points: Points, fronts: Fronts, measure: str
) -> Iterator[tuple[object, ...]]:
    best, column = set(chain(*fronts)), "distance" if measure == "error" else "peak_bytes"
    yield "variant", "computes", "median_s", column, "frontier"
    for name, both in points.items():
        front = "yes" if name in best else "no"
        yield name, looks[name].computes, *map(style.number, both), front
