"""Variants one below the other: mark and name to the left, an amount to the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.report.figures.labels import shorten
from attnbench.report.figures.looks import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIGH = 0.17
"""Inches of a row."""
LEFT, RIGHT = 0.335, 0.845
"""Where bars begin and where the longest may end, as shares of a sheet of ``WIDTH`` inches."""
WIDTH = 4.6
ROOM = 88.0
"""Points for a name."""


def frame(axes: Axes, count: int) -> None:
    """Room for so many rows, the first one at the top, and lines upwards only."""
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)


def name(axes: Axes, row: int, look: Look, amount: str) -> None:
    """A row's mark, name and amount."""
    sides = axes.get_yaxis_transform()
    axes.plot([-0.035], [row], transform=sides, clip_on=False, gid=look.name, **look.marks(4.2))
    axes.text(-0.065, row, shorten(look.variant, ROOM, 7.5), transform=sides, ha="right",
              va="center_baseline", fontsize=7.5, gid=look.name)  # fmt: skip
    axes.text(1.02, row, amount, transform=sides, va="center_baseline", fontsize=7.5,
              gid=look.name)  # fmt: skip


def bar(axes: Axes, row: int, ends: tuple[float, float], look: Look, words: str,
        alpha: float = 1.0) -> None:  # fmt: skip
    """A piece of a row's bar."""
    from matplotlib.patches import Rectangle

    if ends[1] > ends[0]:
        axes.add_artist(Rectangle(
            (ends[0], row - 0.36), ends[1] - ends[0], 0.72, facecolor=look.colour, alpha=alpha,
            linewidth=0, gid=look.gid(words),
        ))  # fmt: skip
