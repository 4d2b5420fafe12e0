"""Quality and time in a trained model as one picture: what is faster at the same likeness.

Across is the step's time over the original's, up is how far the embeddings are from the original's,
with both intervals. A stepped line joins what nothing else beats both ways; lines across stand at
cosines of 0.99, 0.95 and 0.9. What is exact lies in a band of its own at the foot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.model_cost import iso
from attnbench.answer.model_cost.iso import Point
from attnbench.report import numbers
from attnbench.report.figures import key, labels, ticks
from attnbench.report.figures.looks import Look, Looks, looks
from attnbench.report.figures.palette import FAINT, GRID
from attnbench.report.figures.sheet import Drawn, finish, sheet
from attnbench.report.quality_said import cosine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnbench.store.evidence import Evidence

WIDE, HIGH = 500.0, 370.0
"""Points."""
LEFT, RIGHT, ABOVE, BELOW = 52.0, 12.0, 50.0, 32.0
SIZE = 8.0
NEAREST = 1e-4
"""One minus the cosine below which points lie in the band at the foot, beside each other."""
LINES = (0.99, 0.95, 0.9)
AMID = 0.3
"""Of the height, where upright words stand: hardly anybody keeps 0.999 without being exact."""
SECTION = "model"
UNKNOWN = 1000
"""Numbers from here on are of variants that a page does not know otherwise."""


def beside(found: Evidence, file: Path) -> Path | None:
    """Pictures beside the evidence, PNG and SVG, of the longest step; None where there is none."""
    drawn = draw(found)
    if drawn is None:
        return None
    file.with_suffix(".svg").write_text(drawn.svg, encoding="utf-8")
    picture = file.with_suffix(".png")
    picture.write_bytes(drawn.png)
    return picture


def draw(found: Evidence, known: Looks | None = None) -> Drawn | None:
    """The figure at the longest step that was timed.

    ``known``: looks of a page that it lies on, so that a variant is the same everywhere there.
    """
    lengths = iso.lengths(found.rows)
    points = iso.points(found.rows, lengths[-1]) if lengths else []
    if not points:
        return None
    seq, original = lengths[-1], found.made["original"]
    floor = next((s for s in original["floor"] if s["seq"] == seq), None)
    return _figure(points, seq, found.made, floor, _looks(points, known or {}))


def _looks(points: Sequence[Point], known: Looks) -> dict[str, Look]:
    own = looks(points)  # of a record it asks what a point has too
    return {
        name: known.get(name) or replace(look, number=UNKNOWN * bool(known) + look.number)
        for name, look in own.items()
    }


def _figure(points: Sequence[Point], seq: int, made: Mapping[str, Any],
            floor: Mapping[str, Any] | None, look: Looks) -> Drawn:  # fmt: skip
    title = f"What a variant costs {made['model']['name']}: likeness × time"
    machine = made["machine"]["name"]
    under = f"a step of {seq:,} tokens, {made['wanted']['dtype']}, {machine}"
    items = key.lines(key.of(look.values()), WIDE - 12)
    best = iso.best(points)
    with sheet(WIDE / 72, HIGH / 72) as figure:
        labels.heading(figure, title, under, _finding(points))
        key.put(figure, 6, 5, items)
        bottom = BELOW + key.LINE * len(items)
        xs, ys = _limits(points, floor)
        axes = _axes(figure, bottom, xs, ys)
        _lines(axes, points, best, floor, ys)
        for point in points:
            _mark(axes, point, look[point.variant], point.variant in best)
        _names(figure, points, look, best, (bottom, xs, ys))
        return finish(figure, SECTION, f"model-{seq}", title, _told(points, best),
                      _rows(points, best))  # fmt: skip


def _far(point: Point) -> tuple[float, float, float]:
    """One minus the cosine, and its interval; what is nearer than the band's edge lies on it."""
    value, low, high = point.cosine
    return tuple(max(NEAREST, 1 - x) for x in (value, high, low))  # type: ignore[return-value]


def _limits(points: Sequence[Point], floor: Mapping[str, Any] | None) -> tuple[Any, Any]:
    xs = [x for p in points for x in p.ratio] + [1.0]
    xs += [floor["comparison"]["ratio"]] if floor else []
    far = [_far(p)[0] for p in points]
    return ticks.limits(xs, least=1.5), (NEAREST / 1.6, max(0.15, *far) * 1.5)


def _axes(figure: Figure, bottom: float, xs: tuple[float, float], ys: tuple[float, float]) -> Axes:
    high = HIGH - ABOVE - bottom
    axes = figure.add_axes((LEFT / WIDE, bottom / HIGH, (WIDE - LEFT - RIGHT) / WIDE, high / HIGH))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*xs)
    axes.set_ylim(*ys)
    axes.minorticks_off()
    across = _ratios(*xs)
    axes.set_xticks(across, [f"{x:g}" for x in across])
    up = [NEAREST, *(x for x in ticks.decimal(NEAREST * 1.5, ys[1]))]
    axes.set_yticks(up, [f"≤ {NEAREST:g}", *(numbers.three(y) for y in up[1:])])
    axes.tick_params(length=2.5, pad=2)
    axes.set_xlabel("step time over the original's (less is better)", labelpad=1, fontsize=8)
    axes.set_ylabel("1 − median cosine to the original (less is better)", labelpad=2, fontsize=8)
    return axes


def _ratios(low: float, high: float) -> list[float]:
    """Ticks of ratios: as fine as the span allows."""
    fine = [0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0]
    inside = [x for x in fine if low <= x <= high]
    return inside if len(inside) <= 9 else [x for x in inside if x not in (0.7, 0.9, 1.1, 1.2)]


def _lines(axes: Axes, points: Sequence[Point], best: Sequence[str],
           floor: Mapping[str, Any] | None, ys: tuple[float, float]) -> None:  # fmt: skip
    """The frontier, the original, no attention at all, and the levels."""
    some = {p.variant: (p.ratio[0], _far(p)[0]) for p in points}
    front = [some[name] for name in best]
    axes.step([front[0][0], *(x for x, _ in front), axes.get_xlim()[1]],
              [ys[1], *(y for _, y in front), front[-1][1]],
              where="post", color=FAINT, linewidth=1.0, alpha=0.8)  # fmt: skip
    axes.axvline(1.0, color=FAINT, linewidth=0.9)
    _upright(axes, 1.0, "the original")
    if floor is not None:
        ratio = floor["comparison"]["ratio"]
        axes.axvline(ratio, color=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))
        _upright(axes, ratio, "no attention at all")
    for level in LINES:
        axes.axhline(1 - level, color=GRID, linewidth=1.4)
        axes.annotate(f"cosine {level:g}", (1, 1 - level), xycoords=("axes fraction", "data"),
                      xytext=(-3, 2), textcoords="offset points", ha="right", fontsize=7,
                      color=FAINT)  # fmt: skip


def _upright(axes: Axes, x: float, words: str) -> None:
    axes.annotate(words, (x, AMID), xycoords=("data", "axes fraction"), xytext=(-2, 0),
                  textcoords="offset points", ha="right", va="center", rotation=90, fontsize=7,
                  color=FAINT)  # fmt: skip


def _mark(axes: Axes, point: Point, look: Look, best: bool) -> None:
    far, near_end, far_end = _far(point)
    x, low, high = point.ratio
    pale = 1.0 if best else 0.6
    ink: dict[str, Any] = {"color": look.colour, "linewidth": 0.8, "alpha": 0.5 * pale, "zorder": 2}
    axes.plot([low, high], [far, far], gid=look.gid(), **ink)
    axes.plot([x, x], [near_end, far_end], gid=look.gid(), **ink)
    words = f"{point.variant}: cosine {cosine(point.cosine[0])}, {numbers.times(x)} the time"
    axes.plot([x], [far], linestyle="none", zorder=3, clip_on=False, alpha=pale,
              gid=look.gid(words), **look.marks(5.5 if best else 4.5))  # fmt: skip


def _names(figure: Figure, points: Sequence[Point], look: Mapping[str, Look], best: Sequence[str],
           place: tuple[float, Any, Any]) -> None:  # fmt: skip
    bottom, xs, ys = place
    at = {p.variant: _place(p, bottom, xs, ys) for p in points}
    order = [
        *best,
        *(p.variant for p in sorted(points, key=lambda p: p.ratio) if p.variant not in best),
    ]
    spots = [labels.Spot(*at[name], name) for name in order]
    taken = [(x - 3.2, y - 3.2, x + 3.2, y + 3.2) for x, y in at.values()]
    frame = (LEFT + 1, bottom + 1, WIDE - 5, HIGH - ABOVE + 4)
    boxes = labels.place(spots, taken, frame, SIZE, 40, list(at.values()))
    for name, spot, box in zip(order, spots, boxes, strict=True):
        if box is None:
            continue
        gid, pale = look[name].gid(), name not in best
        if labels.threaded(spot, box):
            x, y = labels.nearest(spot, box)
            labels.line(figure, [spot.x, x], [spot.y, y], color=FAINT, linewidth=0.5, alpha=0.7,
                        gid=gid)  # fmt: skip
        colour = {"color": FAINT} if pale else {}
        labels.write(figure, box[0], box[1] + 2, name, SIZE, gid=gid, **colour)


def _place(point: Point, bottom: float, xs: Any, ys: Any) -> tuple[float, float]:
    """Where a point lies in the figure."""
    x = LEFT + (WIDE - LEFT - RIGHT) * ticks.share(xs, point.ratio[0])
    return x, bottom + (HIGH - ABOVE - bottom) * ticks.share(ys, _far(point)[0])


def _finding(points: Sequence[Point]) -> str:
    """What the figure shows, at 0.99."""
    level = iso.levels(points, (0.99,))[0]
    if level.fastest is None:
        return "Nobody keeps a median cosine of 0.99"
    who = f"{level.fastest.variant} ({level.fastest.ratio[0]:.3f} of the original's time)"
    if not level.gains:
        return f"At a cosine of 0.99 nobody is faster than the original; next to it: {who}"
    return f"At a cosine of 0.99 the fastest is {who}"


def _told(points: Sequence[Point], best: Sequence[str]) -> str:
    by = {p.variant: p for p in points}
    some = (f"{n} (cosine {cosine(by[n].cosine[0])}, {by[n].ratio[0]:.3f})" for n in best[:8])
    return f"Beaten by none both ways: {', '.join(some)}"


def _rows(points: Sequence[Point], best: Sequence[str]) -> list[Sequence[object]]:
    names = ("variant", "computes", "cosine", "cosine_low", "cosine_high", "ratio", "ratio_low",
             "ratio_high", "step_s", "frontier")  # fmt: skip
    rows: list[Sequence[object]] = [names]
    rows += [
        (p.variant, p.computes, *map(ticks.number, (*p.cosine, *p.ratio, p.step_s)),
         "yes" if p.variant in best else "no")
        for p in points
    ]  # fmt: skip
    return rows
