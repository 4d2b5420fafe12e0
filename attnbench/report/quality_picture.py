"""Quality and time in a trained model as one picture: what is faster at the same likeness.

Across is the step's time over the original's, up is how near the embeddings are to the original's,
both with intervals. Who is as the original has a row each at the top; the others lie below, where
likeness is drawn wider at its two ends. A stepped line joins what nothing else beats both ways; the
shaded corner is where one would like to be: faster, and as near.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.model_cost import iso
from attnbench.answer.model_cost.iso import Point
from attnbench.report import quality_rows
from attnbench.report.figures import key, labels, ticks
from attnbench.report.figures.looks import Look, Looks, on_a_page
from attnbench.report.figures.palette import FAINT, GRID, PAPER
from attnbench.report.figures.sheet import Drawn, finish, sheet
from attnbench.report.quality_said import WANTED, cosine, nearest_level
from attnbench.store.disk import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnbench.store.evidence import Evidence

WIDE, CLOUD = 500.0, 265.0
"""Points: of the figure, and how high the part is that has what is not as the original."""
LEFT, RIGHT, ABOVE, BELOW, GAP = 52.0, 12.0, 52.0, 32.0, 7.0
SIZE = 8.0
NEAREST = 1e-4
"""One minus the cosine below which points have rows at the top."""
WIDER = 1.5
"""By so much more than in logarithms what is far is spread."""
TICKS = (0.999, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)
GROUND = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
"""Of words that a line goes through."""
UPRIGHT = ("no attention at all", "the original")
SECTION = "model"


def beside(found: Evidence, file: Path) -> Path | None:
    """Pictures beside the evidence, PNG and SVG, of the longest step; None where there is none."""
    drawn = draw(found)
    if drawn is None:
        return None
    write_whole(file.with_suffix(".svg"), drawn.svg.encode(), sync=False)
    picture = file.with_suffix(".png")
    write_whole(picture, drawn.png, sync=False)
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
    return _figure(points, seq, found.made, floor, on_a_page(points, known or {}))


def _figure(points: Sequence[Point], seq: int, made: Mapping[str, Any],
            floor: Mapping[str, Any] | None, look: Mapping[str, Look]) -> Drawn:  # fmt: skip
    title = f"What a variant costs {made['model']['name']}: likeness × time"
    where = f"{made['wanted']['dtype']}, {made['machine']['name']}"
    under = f"a step of {seq:,} tokens, {where}; intervals: 95 % up, 99 % across"
    items = key.lines(key.of(look.values()), WIDE - 12)
    best = iso.best(points)
    alike = sorted((p for p in points if _far(p.cosine[0]) <= NEAREST), key=lambda p: p.ratio)
    others = [p for p in points if _far(p.cosine[0]) > NEAREST]
    bottom = BELOW + key.LINE * len(items)
    rows, cloud = quality_rows.height(len(alike)), CLOUD * bool(others)
    high = bottom + cloud + GAP * bool(rows and cloud) + rows + ABOVE
    xs = _across(points, floor)
    with sheet(WIDE / 72, high / 72) as figure:
        labels.heading(figure, title, under, nearest_level(points))
        key.put(figure, 6, 5, items)
        if others:
            axes = _axes(figure, (bottom, cloud), xs, others)
            _cloud(axes, points, others, look, best, floor, alone=not alike)
            _names(figure, others, look, best, (bottom, cloud, xs, axes.get_ylim()))
        if alike:
            place = (LEFT / WIDE, (high - ABOVE - rows) / high, _width() / WIDE, rows / high)
            top = figure.add_axes(place)
            _scaled(top, xs, lowest=not others)
            quality_rows.put(top, alike, look, best, others=bool(others))
            _upright(top, floor, *UPRIGHT)
        return finish(figure, SECTION, f"model-{seq}", title, _told(points, best),
                      _rows(points, best))  # fmt: skip


def _width() -> float:
    return WIDE - LEFT - RIGHT


def _far(value: float) -> float:
    return max(NEAREST, 1 - value)


def up(value: float) -> float:
    """How high a cosine lies: in logarithms of what is missing to one, and what is far wider."""
    far = _far(value)
    return -log10(far) - WIDER * far


def _across(points: Sequence[Point], floor: Mapping[str, Any] | None) -> tuple[float, float]:
    xs = [x for p in points for x in p.ratio] + [1.0]
    xs += [floor["comparison"]["ratio"]] if floor else []
    return ticks.limits(xs, least=1.5)


def _scaled(axes: Axes, xs: tuple[float, float], *, lowest: bool) -> None:
    """The axis of time, with words where nothing lies below it."""
    axes.set_xscale("log")
    axes.set_xlim(*xs)
    axes.minorticks_off()
    across = _ratios(*xs)
    axes.set_xticks(across, [f"{x:g}" if lowest else "" for x in across])
    axes.tick_params(length=2.5 if lowest else 0, pad=2)
    if lowest:
        axes.set_xlabel("step time over the original's (less is better)", labelpad=1, fontsize=8)


def _axes(figure: Figure, place: tuple[float, float], xs: tuple[float, float],
          points: Sequence[Point]) -> Axes:  # fmt: skip
    high = figure.get_figheight() * 72
    axes = figure.add_axes((LEFT / WIDE, place[0] / high, _width() / WIDE, place[1] / high))
    _scaled(axes, xs, lowest=True)
    low, nearest = min(p.cosine[0] for p in points), max(p.cosine[0] for p in points)
    axes.set_ylim(up(min(0.85, low)) - 0.12, up(max(0.9993, nearest)) + 0.2)
    shown = [x for x in TICKS if axes.get_ylim()[0] <= up(x) <= axes.get_ylim()[1]]
    axes.set_yticks([up(x) for x in shown], [f"{x:g}" for x in shown])
    axes.set_ylabel("median cosine to the original", labelpad=2, fontsize=8)
    return axes


def _ratios(low: float, high: float) -> list[float]:
    """Ticks of ratios: as fine as the span allows."""
    fine = [0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0]
    inside = [x for x in fine if low <= x <= high]
    return inside if len(inside) <= 9 else [x for x in inside if x not in (0.7, 0.9, 1.1, 1.2)]


def _cloud(axes: Axes, points: Sequence[Point], others: Sequence[Point],
           look: Mapping[str, Look], best: Sequence[str], floor: Mapping[str, Any] | None, *,
           alone: bool) -> None:  # fmt: skip
    """The levels, the corner, the frontier, and the points with their intervals."""
    for level in iso.LEVELS:
        axes.axhline(up(level), color=GRID, linewidth=1.4)
    low, high = axes.get_ylim()
    axes.fill_between([axes.get_xlim()[0], 1.0], up(WANTED), high, color=GRID, alpha=0.45,
                      linewidth=0)  # fmt: skip
    gain = [p.variant for p in points if p.cosine[1] >= WANTED and p.faster]
    words = f"faster, and\n{WANTED:g} or more:\n{f'{len(gain)} of all' if gain else 'nobody'}"
    axes.annotate(words, (0, up(WANTED)), xycoords=("axes fraction", "data"), xytext=(3, 4),
                  textcoords="offset points", fontsize=8, va="bottom", bbox=GROUND)  # fmt: skip
    _upright(axes, floor, *UPRIGHT * alone)
    some = {p.variant: (p.ratio[0], up(p.cosine[0])) for p in others}
    front = [some[name] for name in best if name in some]
    if front:
        nearer = next((p.ratio[0] for p in points if p.variant == best[-1]), None)
        end = axes.get_xlim()[1] if alone or best[-1] in some or nearer is None else nearer
        xs, ys = zip(*front, strict=True)
        axes.step([xs[0], *xs, end], [low, *ys, ys[-1]], where="post", color=FAINT, linewidth=1.0,
                  alpha=0.8)  # fmt: skip
        if end != axes.get_xlim()[1]:
            axes.plot([end, end], [front[-1][1], high], color=FAINT, linewidth=1.0, alpha=0.8)
    for point in others:
        quality_rows.mark(axes, point, (up(point.cosine[0]), up(point.cosine[1]),
                                        up(point.cosine[2])), look[point.variant],
                          best=point.variant in best)  # fmt: skip


def _upright(axes: Axes, floor: Mapping[str, Any] | None, *words: str) -> None:
    """Where no attention at all would be, and the original; with words where there are any."""
    lines = [(floor["comparison"]["ratio"], (0, (3, 2)))] if floor else []
    for (x, dash), said in zip([*lines, (1.0, "-")], (words or ("", ""))[-len(lines) - 1 :],
                               strict=True):  # fmt: skip
        axes.axvline(x, color=FAINT, linewidth=0.9, linestyle=dash)
        axes.annotate(said, (x, 0.3), xycoords=("data", "axes fraction"), xytext=(-2, 0),
                      textcoords="offset points", ha="right", va="center", rotation=90, fontsize=7,
                      color=FAINT)  # fmt: skip


def _names(figure: Figure, points: Sequence[Point], look: Mapping[str, Look], best: Sequence[str],
           place: tuple[float, float, Any, Any]) -> None:  # fmt: skip
    bottom, high, xs, ys = place
    at = {
        p.variant: (LEFT + _width() * ticks.share(xs, p.ratio[0]),
                    bottom + high * (up(p.cosine[0]) - ys[0]) / (ys[1] - ys[0]))
        for p in points
    }  # fmt: skip
    order = [name for name in best if name in at]
    order += [p.variant for p in sorted(points, key=lambda p: p.ratio) if p.variant not in best]
    spots = [labels.Spot(*at[name], name) for name in order]
    taken = [(x - 3.2, y - 3.2, x + 3.2, y + 3.2) for x, y in at.values()]
    frame = (LEFT + 1, bottom + 1, WIDE - 5, bottom + high + 2)
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
