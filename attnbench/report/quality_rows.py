"""Of the picture of quality and time: a point with its intervals, and a row for each exact one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.answer.model_cost.iso import Point
from attnbench.report import numbers
from attnbench.report.figures.looks import Look
from attnbench.report.figures.palette import FAINT, GRID, INK
from attnbench.report.quality_said import cosine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, EDGE, HEAD = 10.5, 4.0, 11.0
"""Points: of a row, above and below all, and of the words above them."""
SIZE = 8.0
WORDS = "as the original, to 0.0001"


def height(rows: int) -> float:
    """How high so many rows are together."""
    return rows * ROW + 2 * EDGE + HEAD if rows else 0.0


def put(axes: Axes, points: Sequence[Point], look: Mapping[str, Look], best: Sequence[str], *,
        others: bool) -> None:  # fmt: skip
    """The fastest at the top, each with its name; the frontier comes up from below to it."""
    axes.set_ylim(-EDGE / ROW - 0.5, len(points) - 0.5 + (EDGE + HEAD) / ROW)
    axes.set_yticks([])
    axes.axvspan(axes.get_xlim()[0], 1.0, color=GRID, alpha=0.45, linewidth=0)
    axes.annotate(WORDS, (1, 1), xycoords="axes fraction", xytext=(-3, -3), color=FAINT,
                  textcoords="offset points", ha="right", va="top", fontsize=SIZE)  # fmt: skip
    for place, point in enumerate(points):
        y, own = float(len(points) - 1 - place), look[point.variant]
        first = point.variant in best
        if first and others:
            x = point.ratio[0]
            axes.plot([x, x], [axes.get_ylim()[0], y], color=FAINT, linewidth=1.0, alpha=0.8)
        mark(axes, point, (y, y, y), own, best=first)
        axes.annotate(point.variant, (point.ratio[2], y), xytext=(4, 0), va="center_baseline",
                      textcoords="offset points", fontsize=SIZE, gid=own.gid(),
                      color=INK if first else FAINT)  # fmt: skip


def mark(axes: Axes, point: Point, ys: tuple[float, float, float], look: Look, *,
         best: bool) -> None:  # fmt: skip
    """A point at a height, with the ends of both intervals."""
    (x, low, high), (y, under, over) = point.ratio, ys
    pale = 1.0 if best else 0.75
    ink: dict[str, Any] = {"color": look.colour, "linewidth": 0.9, "alpha": 0.6 * pale, "zorder": 2}
    axes.plot([low, high], [y, y], gid=look.gid(), **ink)
    if over > under:
        axes.plot([x, x], [under, over], gid=look.gid(), **ink)
    words = f"{point.variant}: cosine {cosine(point.cosine[0])}, {numbers.times(x)} the time"
    axes.plot([x], [y], linestyle="none", zorder=3, clip_on=False, alpha=pale,
              gid=look.gid(words), **look.marks(5.5 if best else 4.5))  # fmt: skip
