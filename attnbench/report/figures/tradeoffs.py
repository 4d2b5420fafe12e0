"""Trade-offs at the longest length: what more time buys, in memory and in likeness to softmax.

A step line joins the variants that none of their kind beats both ways; the others are pale. Exact
variants and the others have a line each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
"""The size of a figure, in points."""
LEFT, RIGHT, ABOVE, BELOW = 44.0, 16.0, 47.5, 32.0
SIZE = 8.0
NAMED = 26
"""How many names are tried, the frontiers' first and then the fastest."""
ROOM = 120.0
"""Points for a name."""
GAP = 8.0
"""Points between the exact variants and the others, where errors are drawn."""
Points = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Cloud:
    """The points of one part of a figure, and its place there."""

    points: Points
    box: labels.Box
    xs: tuple[float, float]
    ys: tuple[float, float]

    def at(self, name: str) -> tuple[float, float]:
        """The place of a variant's point in the figure."""
        x, y = self.points[name]
        left, bottom, right, top = self.box
        return (
            left + (right - left) * style.share(self.xs, x),
            bottom + (top - bottom) * style.share(self.ys, y),
        )


def draw(scene: Scene, looks: Looks) -> list[Drawn]:
    """Time and error, time and memory, as far as they were measured."""
    length = scene.regime.longest()
    if length is None:
        return []
    drawn = []
    for measure, title in (
        ("error", "time × distance from softmax"),
        ("memory", "time × peak memory"),
    ):
        if points := _points(scene, length, measure):
            drawn.append(_figure(scene, looks, length, measure, title, points))
    return drawn


def _points(scene: Scene, length: int, measure: str) -> Points:
    found = {}
    for name, record in scene.regime.cells[length].items():
        time, other = median(record), distance(record) if measure == "error" else peak(record)
        if time is not None and other is not None:
            found[name] = (time, other)
    return found


def _figure(
    scene: Scene, looks: Looks, length: int, measure: str, title: str, points: Points
) -> Drawn:
    phase = PHASES.get(scene.regime.phase, scene.regime.phase)
    title = f"{phase}, {length:,} tokens: {title}"
    items = style.lines(style.of(looks[name] for name in points), WIDE - 12)
    fronts = _fronts(looks, points)
    with sheet(WIDE / 72, HIGH / 72) as figure:
        labels.heading(
            figure,
            title,
            ", ".join([*scene.regime.words()[1:], scene.run.machine]),
            _finding(scene, length, measure, fronts[0]),
        )
        style.put(figure, 6, 5, items)
        bottom = BELOW + style.LINE * len(items)
        clouds = _clouds(looks, points, measure, bottom)
        marks = [cloud.at(name) for cloud in clouds for name in cloud.points]
        for number, cloud in enumerate(clouds):
            axes = _axes(figure, cloud, measure, lowest=number == 0)
            _steps(axes, cloud, fronts)
            _marks(axes, cloud, looks, fronts, measure)
            taken = [_around(cloud.at(name)) for name in cloud.points]
            taken += [box for front in fronts for box in _stairs(cloud, front)]
            taken.append(_label(figure, cloud, looks, measure, taken))
            _names(figure, cloud, looks, fronts, taken, marks)
        return finish(
            figure,
            "tradeoffs",
            f"{scene.name}-time-{measure}",
            title,
            _describe(points, fronts, measure),
            _rows(looks, points, fronts, measure),
            regime=scene.number,
        )


def _fronts(looks: Looks, points: Points) -> list[list[str]]:
    """The frontiers: of the exact variants, and of the others."""
    return [
        frontier({name: at for name, at in points.items() if looks[name].exact is exact})
        for exact in (True, False)
    ]


def _clouds(looks: Looks, points: Points, measure: str, bottom: float) -> list[Cloud]:
    """One cloud for all; for errors one of the exact variants, below, and one of the others."""
    xs = style.limits((time for time, _ in points.values()), room=0.08)
    left, right, top = LEFT, WIDE - RIGHT, HIGH - ABOVE
    groups = [points]
    if measure == "error":
        groups = [
            {name: at for name, at in points.items() if looks[name].exact is exact}
            for exact in (True, False)
        ]
        groups = [group for group in groups if group]
    shares = [0.36, 0.64] if len(groups) == 2 else [1.0]
    found, level = [], bottom
    for group, part in zip(groups, shares, strict=True):
        high = (top - bottom - GAP * (len(groups) - 1)) * part
        ys = style.limits((y for _, y in group.values()), room=0.14)
        found.append(Cloud(group, (left, level, right, level + high), xs, ys))
        level += high + GAP
    return found


def _axes(figure: Figure, cloud: Cloud, measure: str, *, lowest: bool) -> Axes:
    axes = labels.add_axes(figure, cloud.box)
    error = measure == "error"
    style.scale(axes, "x", cloud.xs, format.seconds if lowest else lambda _: "")
    style.scale(axes, "y", cloud.ys, format.three if error else format.nbytes, 10 if error else 2)
    axes.tick_params(length=2.5 if lowest else 0, pad=2)
    if lowest:
        axes.set_xlabel("median time (less is better, as is lower down)", labelpad=1, fontsize=8)
    return axes


def _steps(axes: Axes, cloud: Cloud, fronts: Sequence[Sequence[str]]) -> None:
    for front, dash in zip(fronts, ("-", (0, (3, 2))), strict=True):
        some = [cloud.points[name] for name in front if name in cloud.points]
        if some:
            xs = [some[0][0], *(x for x, _ in some), cloud.xs[1]]
            ys = [cloud.ys[1], *(y for _, y in some), some[-1][1]]
            axes.step(xs, ys, where="post", color=FAINT, linewidth=1.0, linestyle=dash, alpha=0.8)


def _label(
    figure: Figure, cloud: Cloud, looks: Looks, measure: str, taken: Sequence[labels.Box]
) -> labels.Box:
    """Write what the vertical axis is, at the top where there is room; returns its place."""
    left, _, right, top = cloud.box
    exact = all(looks[name].exact for name in cloud.points)
    text = "peak memory above the inputs"
    if measure == "error":
        text = "exact: error of the output" if exact else "distance from softmax attention"
    wide = labels.width(text, 7.5)
    places = [left + 4, *(left + step for step in range(10, int(right - left - wide), 6))]
    boxes = [(x, top - 10, x + wide, top) for x in places]
    box = next((b for b in boxes if not any(labels.over(b, t) for t in taken)), boxes[0])
    labels.write(figure, box[0], top - 8, text, 7.5, color=FAINT)
    return box


def _marks(
    axes: Axes, cloud: Cloud, looks: Looks, fronts: Sequence[Sequence[str]], measure: str
) -> None:
    best = {name for front in fronts for name in front}
    for name in sorted(cloud.points, key=lambda name: name in best):
        x, y = cloud.points[name]
        look = looks[name]
        say = format.three(y) if measure == "error" else format.nbytes(y)
        axes.plot(
            [x],
            [y],
            linestyle="none",
            zorder=3,
            clip_on=False,
            alpha=1.0 if name in best else 0.45,
            gid=look.gid(f"{name}: {format.seconds(x)}, {say}"),
            **look.marks(5.5 if name in best else 4.5),
        )


def _names(
    figure: Figure,
    cloud: Cloud,
    looks: Looks,
    fronts: Sequence[Sequence[str]],
    taken: Sequence[labels.Box],
    marks: Sequence[tuple[float, float]],
) -> None:
    """Write the names of the frontiers where there is room, and of the others close by."""
    best = [name for front in fronts for name in front if name in cloud.points]
    fast = sorted(cloud.points, key=lambda name: cloud.points[name])
    order = list(dict.fromkeys([*best, *fast]))[:NAMED]
    spots = [labels.Spot(*cloud.at(name), labels.shorten(name, ROOM, SIZE)) for name in order]
    left, bottom, _, top = cloud.box
    frame = (left + 1, bottom + 1, WIDE - 5, top + 4)
    kept = sum(name in best for name in order)
    boxes = labels.place(spots[:kept], taken, frame, SIZE, 40, marks)
    full = [*taken, *(labels.margin(box) for box in boxes if box)]
    full += [
        step
        for spot, box in zip(spots, boxes, strict=False)
        if box
        for step in labels.way(spot.x, spot.y, *labels.nearest(spot, box))
    ]
    boxes += labels.place(spots[kept:], full, frame, SIZE, 15, marks)
    for name, spot, box in zip(order, spots, boxes, strict=True):
        if box:
            labels.name_spot(figure, spot, box, SIZE, looks[name].gid(), pale=name not in best)


def _stairs(cloud: Cloud, front: Sequence[str]) -> list[labels.Box]:
    """The line of a frontier, as boxes that no name may lie on."""
    corners = [cloud.at(name) for name in front if name in cloud.points]
    if not corners:
        return []
    _, _, right, top = cloud.box
    xs = [x for x, _ in corners] + [right]
    ys = [top] + [y for _, y in corners]
    boxes = [
        (x, min(y, after), x, max(y, after)) for x, y, after in zip(xs, ys, ys[1:], strict=False)
    ]
    boxes += [(x, y, after, y) for x, after, y in zip(xs, xs[1:], ys[1:], strict=False)]
    return [(a - 1, b - 1, c + 1, d + 1) for a, b, c, d in boxes]


def _around(at: tuple[float, float], size: float = 3.2) -> labels.Box:
    return (at[0] - size, at[1] - size, at[0] + size, at[1] + size)


def _finding(scene: Scene, length: int, measure: str, front: Sequence[str]) -> str:
    """What the figure shows: for memory of the exact variants, for error of the faster ones."""
    standing = next((s for s in scene.standings if s.length == length), None)
    if standing is None or standing.answer is None:
        return ""
    if measure == "memory":
        tie = " (in a tie)" * bool(standing.answer.equal)
        if len(front) == 1:
            return f"Of what is exact, {front[0]} is the fastest{tie} and needs the least memory"
        return (
            f"Exact: {front[0]} is the fastest{tie}, {front[-1]} needs the least memory"
            if front
            else ""
        )
    known = [f for f in standing.faster if f.distance is not None]
    nearest = min(known, key=lambda f: f.distance or 0.0, default=None)
    if nearest is None or nearest.distance is None:
        return "" if standing.faster else "Nothing is clearly faster than exact softmax"
    name = f"{nearest.variant} ({format.times(nearest.speedup)})"
    far = format.three(nearest.distance)
    return f"Of what is faster than exact, {name} is nearest to it: {far}"


def _describe(points: Points, fronts: Sequence[Sequence[str]], measure: str) -> str:
    say = format.three if measure == "error" else format.nbytes
    parts = []
    for front, kind in zip(fronts, ("Exact", "Not exact"), strict=True):
        if front:
            some = (f"{n} ({format.seconds(points[n][0])}, {say(points[n][1])})" for n in front[:8])
            parts.append(f"{kind}, beaten by none of its kind both ways: {', '.join(some)}")
    return ". ".join(parts)


def _rows(
    looks: Looks,
    points: Mapping[str, tuple[float, float]],
    fronts: Sequence[Sequence[str]],
    measure: str,
) -> list[Sequence[object]]:
    best = {name for front in fronts for name in front}
    column = "distance" if measure == "error" else "peak_bytes"
    rows: list[Sequence[object]] = [("variant", "computes", "median_s", column, "frontier")]
    rows += [
        (
            name,
            looks[name].computes,
            style.number(x),
            style.number(y),
            "yes" if name in best else "no",
        )
        for name, (x, y) in points.items()
    ]
    return rows
