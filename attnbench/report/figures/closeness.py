"""The performance profile: if only one may be taken, which stays near the best everywhere?

Across: how many times as long as the fastest exact variant. Up: on how many of all problems that is
kept to. A line that starts high wins often; a line that reaches the top early never loses much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.answer.ranking import Closeness, advised, closeness
from attnbench.report.figures.sheet import FAINT, Drawn, finish, heading, sheet, shorten, spread
from attnbench.report.figures.style import Look, Looks
from attnbench.report.scenes import ReportRun, Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WIDTH, HEIGHT = 4.6, 3.65
PLACE = (0.115, 0.12, 0.575, 0.705)
ROOM = 72.0
"""Points for a name."""
TICKS = {
    2.0: (1, 1.1, 1.25, 1.5, 1.75, 2),
    4.0: (1, 1.25, 1.5, 2, 3, 4),
    8.0: (1, 1.5, 2, 3, 4, 6, 8),
}
"""By how far the axis goes: as far as who is worst where it is measured, or eight times."""
NAMED, MARKS, MOST = 7, 5, 60
"""Lines that are named, markers on each, about, and lines that are drawn."""
WITHIN = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)
"""Factors of the table beside the figure."""


def draw(run: ReportRun, scenes: Sequence[Scene], looks: Looks) -> Drawn | None:
    """Over all problems of one run; None where none has two exact variants to compare."""
    found = closeness(scene.regime for scene in scenes if scene.run.number == run.number)
    if not found:
        return None
    many = found[0].problems
    title = f"How near to the best, over {many} problem{'s' * (many > 1)}"
    best = advised(found)
    told = (
        f"{best.variant} takes no more than 1.1 times the best on {best.share(1.1):.0%} of the "
        f"problems, and no more than twice on {best.share(2.0):.0%}; only exact softmax counts"
    )
    with sheet(WIDTH, HEIGHT) as figure:
        axes = figure.add_axes(PLACE)
        furthest = min(f for f in TICKS if f == max(TICKS) or f >= max(c.ratios[-1] for c in found))
        axes.set(xscale="log", xlim=(furthest**-0.012, furthest), ylim=(-0.02, 1.03))
        axes.minorticks_off()
        axes.set_xticks(TICKS[furthest], [f"{x:g}×" for x in TICKS[furthest]])
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        for each in reversed(found[:MOST]):
            _line(axes, each, looks[each.variant], bold=each in found[:NAMED])
        _labels(axes, found[:NAMED], looks)
        more = f" ({len(found) - MOST} more in the CSV)" * (len(found) > MOST)
        under = f"on what share an exact variant keeps within …{more}"
        heading(figure, title, under, _finding(best))
        axes.set_xlabel("… so many times the time of the fastest", labelpad=2)
        return finish(
            figure,
            "closeness",
            f"closeness-{run.number}",
            f"{title}: {run.name}",
            told,
            _rows(found, looks),
        )


def _finding(best: Closeness) -> str:
    """Of who is nearest over all, how near on how many problems: the nearest that most reach."""
    factor, count = best.mostly()
    who = shorten(best.variant, 2 * ROOM, 8)
    return f"{who} is within {factor:g}× of the fastest on {count} of {best.problems} problems"


def _line(axes: Axes, of: Closeness, look: Look, *, bold: bool) -> None:
    xs, ys = _steps(of, axes.get_xlim()[1])
    every = (0, max(2, len(xs) // (2 * MARKS) * 2))
    mark = {**look.marks(4), "markevery": every} if bold else {"color": look.colour}
    words = (
        f"{of.variant}: fastest on {of.share(1.0):.0%} of {of.problems}, within 1.1× on "
        f"{of.share(1.1):.0%}, within 2× on {of.share(2.0):.0%}"
    )
    axes.plot(
        xs,
        ys,
        linestyle=look.dash if bold else "-",
        linewidth=1.2 if bold else 0.6,
        alpha=1 if bold else 0.5,
        gid=look.gid(words),
        **mark,
    )


def _steps(of: Closeness, furthest: float) -> tuple[list[float], list[float]]:
    """Corners of the stairs: from the left edge to the right."""
    xs, ys, height = [1.0], [of.share(1.0)], of.share(1.0)
    for ratio in sorted({r for r in of.ratios if 1 < r <= furthest}):
        xs += [ratio, ratio]
        ys += [height, height := of.share(ratio)]
    return [*xs, furthest], [*ys, height]


def _labels(axes: Axes, found: Sequence[Closeness], looks: Looks) -> None:
    """At the right, in the order in which the lines end there; then by how near they are."""
    low, high = axes.get_ylim()
    ends = [
        (c.share(axes.get_xlim()[1]) - low) / (high - low) - 1e-6 * i for i, c in enumerate(found)
    ]
    for of, end, height in zip(found, ends, spread(ends, 0.062, 0.0, 0.985), strict=True):
        look = looks[of.variant]
        axes.plot(
            [1.0, 1.04],
            [end, height],
            transform=axes.transAxes,
            clip_on=False,
            color=FAINT,
            linewidth=0.4,
            gid=look.name,
        )
        axes.plot(
            [1.05, 1.085, 1.12],
            [height] * 3,
            transform=axes.transAxes,
            clip_on=False,
            linestyle=look.dash,
            linewidth=1.2,
            gid=look.name,
            markevery=(1, 3),
            **look.marks(4.2),
        )
        axes.text(
            1.14,
            height,
            shorten(of.variant, ROOM, 7.5),
            transform=axes.transAxes,
            fontsize=7.5,
            va="center_baseline",
            gid=look.name,
        )


def _rows(found: Sequence[Closeness], looks: Looks) -> Iterator[tuple[Any, ...]]:
    yield (
        "variant",
        "family",
        "problems",
        "timed",
        *(f"within_{f:g}" for f in WITHIN),
        "geometric_mean_ratio",
    )
    for of in found:
        mean = math.exp(sum(map(math.log, of.ratios)) / len(of.ratios))
        yield (
            of.variant,
            looks[of.variant].family,
            of.problems,
            len(of.ratios),
            *(of.share(f) for f in WITHIN),
            mean,
        )
