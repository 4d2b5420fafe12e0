"""The performance profile: if only one may be taken, which stays near the best everywhere?

Across: how many times as long as the fastest exact variant. Up: on how many of all problems that is
kept to. A line that starts high wins often; a line that reaches the top early never loses much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnbench.answer.standings import Closeness, advised, closeness
from attnbench.core.format import counted, percent
from attnbench.report.figures import style
from attnbench.report.figures.sheet import Drawn, add_axes, at, finish, heading, sheet, shorten
from attnbench.report.figures.style import End, Looks
from attnbench.report.scenes import ReportRun, Scene

HIGH = 263.0
BOX = (38.0, 31.5, 228.0, 217.0)
TICKS = {
    2.0: (1, 1.1, 1.25, 1.5, 1.75, 2),
    4.0: (1, 1.25, 1.5, 2, 3, 4),
    8.0: (1, 1.5, 2, 3, 4, 6, 8),
}
"""By the end of the axis: as far as the worst one where it is measured, or eight times."""
NAMED, MARKS, MOST = 7, 5, 60
"""Lines that are named, markers on each, about, and lines that are drawn."""
WITHIN = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)


def draw(run: ReportRun, scenes: Sequence[Scene], looks: Looks) -> Drawn | None:
    """Over all problems of one run; None where none has two exact variants to compare."""
    own = [scene for scene in scenes if scene.run.number == run.number]
    lines = closeness(scene.regime for scene in own)
    if not lines:
        return None
    best = advised(lines, (s for scene in own for s in scene.standings))
    many = lines[0].problems
    factor, count = best.mostly()
    near = f"is within {factor:g}× of the fastest on {count} of {many} problems"
    title = f"How near to the best, over {counted(many, 'problem')}"
    often, twice = (percent(best.share(factor)) for factor in (1.1, 2.0))
    told = (
        f"{best.variant} takes no more than 1.1 times the best on {often} of the problems, and no "
        f"more than twice on {twice}; only exact softmax counts"
    )
    with sheet(style.WIDE / 72, HIGH / 72) as figure:
        axes = add_axes(figure, BOX)
        worst = max(c.ratios[-1] for c in lines)
        end = min(end for end in TICKS if end == max(TICKS) or end >= worst)
        axes.set(xscale="log", xlim=(end**-0.012, end), ylim=(-0.02, 1.03))
        axes.minorticks_off()
        axes.set_xticks(TICKS[end], [f"{x:g}×" for x in TICKS[end]])
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        ends: list[End] = []
        for number, each in reversed(list(enumerate(lines[:MOST]))):
            xs, ys = _steps(each, end)
            look, bold = looks[each.variant], number < NAMED
            every = (0, max(2, len(xs) // (2 * MARKS) * 2))
            mark = {**look.marks(4), "markevery": every} if bold else {"color": look.colour}
            dash, wide, alpha = (look.dash, 1.2, 1.0) if bold else ("-", 0.6, 0.5)
            line: dict[str, Any] = {"linestyle": dash, "linewidth": wide, "alpha": alpha, **mark}
            axes.plot(xs, ys, **line)
            if bold:  # lines that end at one height keep their order
                up = at(axes, end, ys[-1])[1] - 1e-3 * number
                ends.insert(0, End(look, (BOX[2] - 3, up), each.variant))
        style.name_ends(figure, ends, BOX[2], BOX[1], BOX[3] - 4)
        more = f" ({len(lines) - MOST} more in the CSV)" if len(lines) > MOST else ""
        under = f"on what share an exact variant keeps within …{more}"
        heading(figure, title, under, f"{shorten(best.variant, 144, 8)} {near}")
        axes.set_xlabel("… so many times the time of the fastest", labelpad=2)
        name, title = f"closeness-{run.number}", f"{title}: {run.name}"
        return finish(figure, "closeness", name, title, told, _rows(lines, looks))


def _steps(of: Closeness, furthest: float) -> tuple[list[float], list[float]]:
    """The corners of the stairs, from the left edge to the right."""
    xs, ys, height = [1.0], [of.share(1.0)], of.share(1.0)
    for ratio in sorted({r for r in of.ratios if 1 < r <= furthest}):
        xs += [ratio, ratio]
        ys += [height, height := of.share(ratio)]
    return [*xs, furthest], [*ys, height]


def _rows(lines: Sequence[Closeness], looks: Looks) -> Iterator[tuple[Any, ...]]:
    within = [f"within_{factor:g}" for factor in WITHIN]
    yield "variant", "family", "problems", "timed", *within, "geometric_mean_ratio"
    for of in lines:
        counts = of.variant, looks[of.variant].family, of.problems, len(of.ratios)
        yield *counts, *(of.share(factor) for factor in WITHIN), of.mean
