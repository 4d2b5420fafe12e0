"""Pictures of what quality costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.core.disk import write_whole
from attnbench.features.quality import words as iso
from attnbench.features.quality import words as quality_rows
from attnbench.features.quality.recall import Setting
from attnbench.features.quality.recall_verdicts import (
    TARGET,
    Recalled,
    SeedInterval,
    TrainingBudget,
    percent,
    recalled,
)
from attnbench.features.quality.recall_view import settings
from attnbench.features.quality.words import WANTED, CostPoint, cosine, nearest_level
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, PAPER, Drawn, finish, sheet
from attnbench.report.figures.style import Look, Looks, on_a_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

    from attnbench.core.evidence import Evidence


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
    drawn = draw_quality(found)
    if drawn is None:
        return None
    write_whole(file.with_suffix(".svg"), drawn.svg.encode(), sync=False)
    picture = file.with_suffix(".png")
    write_whole(picture, drawn.png, sync=False)
    return picture


def draw_quality(found: Evidence, known: Looks | None = None) -> Drawn | None:
    """The figure at the longest step that was timed.

    ``known``: looks of a page that it lies on, so that a variant is the same everywhere there.
    """
    lengths = iso.lengths_of(found.rows)
    points = iso.points(found.rows, lengths[-1]) if lengths else []
    if not points:
        return None
    seq, original = lengths[-1], found.made["original"]
    floor = next((s for s in original["floor"] if s["seq"] == seq), None)
    return _figure(points, seq, found.made, floor, on_a_page(points, known or {}))


def _figure(
    points: Sequence[CostPoint],
    seq: int,
    made: Mapping[str, Any],
    floor: Mapping[str, Any] | None,
    look: Mapping[str, Look],
) -> Drawn:
    title = f"What a variant costs {made['model']['name']}: likeness × time"
    where = f"{made['wanted']['dtype']}, {made['machine']['name']}"
    under = f"a step of {seq:,} tokens, {where}; intervals: 95 % up, 99 % across"
    items = style.lines(style.of(look.values()), WIDE - 12)
    best = iso.best(points)
    alike = sorted((p for p in points if _far(p.cosine[0]) <= NEAREST), key=lambda p: p.ratio)
    others = [p for p in points if _far(p.cosine[0]) > NEAREST]
    bottom = BELOW + style.LINE * len(items)
    rows, cloud = quality_rows.height(len(alike)), CLOUD * bool(others)
    high = bottom + cloud + GAP * bool(rows and cloud) + rows + ABOVE
    xs = _across(points, floor)
    with sheet(WIDE / 72, high / 72) as figure:
        labels.heading(figure, title, under, nearest_level(points))
        style.put(figure, 6, 5, items)
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
        return finish(
            figure, SECTION, f"model-{seq}", title, _told(points, best), _rows(points, best)
        )


def _width() -> float:
    return WIDE - LEFT - RIGHT


def _far(value: float) -> float:
    return max(NEAREST, 1 - value)


def up(value: float) -> float:
    """How high a cosine lies: in logarithms of what is missing to one, and what is far wider."""
    far = _far(value)
    return -log10(far) - WIDER * far


def _across(points: Sequence[CostPoint], floor: Mapping[str, Any] | None) -> tuple[float, float]:
    xs = [x for p in points for x in p.ratio] + [1.0]
    xs += [floor["comparison"]["ratio"]] if floor else []
    return style.limits(xs, least=1.5)


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


def _axes(
    figure: Figure, place: tuple[float, float], xs: tuple[float, float], points: Sequence[CostPoint]
) -> Axes:
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


def _cloud(
    axes: Axes,
    points: Sequence[CostPoint],
    others: Sequence[CostPoint],
    look: Mapping[str, Look],
    best: Sequence[str],
    floor: Mapping[str, Any] | None,
    *,
    alone: bool,
) -> None:
    """The levels, the corner, the frontier, and the points with their intervals."""
    for level in iso.LEVELS:
        axes.axhline(up(level), color=GRID, linewidth=1.4)
    low, high = axes.get_ylim()
    axes.fill_between(
        [axes.get_xlim()[0], 1.0], up(WANTED), high, color=GRID, alpha=0.45, linewidth=0
    )
    gain = [p.variant for p in points if p.cosine[1] >= WANTED and p.faster]
    words = f"faster, and\n{WANTED:g} or more:\n{f'{len(gain)} of all' if gain else 'nobody'}"
    axes.annotate(
        words,
        (0, up(WANTED)),
        xycoords=("axes fraction", "data"),
        xytext=(3, 4),
        textcoords="offset points",
        fontsize=8,
        va="bottom",
        bbox=GROUND,
    )
    _upright(axes, floor, *UPRIGHT * alone)
    some = {p.variant: (p.ratio[0], up(p.cosine[0])) for p in others}
    front = [some[name] for name in best if name in some]
    if front:
        nearer = next((p.ratio[0] for p in points if p.variant == best[-1]), None)
        end = axes.get_xlim()[1] if alone or best[-1] in some or nearer is None else nearer
        xs, ys = zip(*front, strict=True)
        axes.step(
            [xs[0], *xs, end],
            [low, *ys, ys[-1]],
            where="post",
            color=FAINT,
            linewidth=1.0,
            alpha=0.8,
        )
        if end != axes.get_xlim()[1]:
            axes.plot([end, end], [front[-1][1], high], color=FAINT, linewidth=1.0, alpha=0.8)
    for point in others:
        quality_rows.mark(
            axes,
            point,
            (up(point.cosine[0]), up(point.cosine[1]), up(point.cosine[2])),
            look[point.variant],
            best=point.variant in best,
        )


def _upright(axes: Axes, floor: Mapping[str, Any] | None, *words: str) -> None:
    """Where no attention at all would be, and the original; with words where there are any."""
    lines = [(floor["comparison"]["ratio"], (0, (3, 2)))] if floor else []
    for (x, dash), said in zip(
        [*lines, (1.0, "-")], (words or ("", ""))[-len(lines) - 1 :], strict=True
    ):
        axes.axvline(x, color=FAINT, linewidth=0.9, linestyle=dash)
        axes.annotate(
            said,
            (x, 0.3),
            xycoords=("data", "axes fraction"),
            xytext=(-2, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            rotation=90,
            fontsize=7,
            color=FAINT,
        )


def _names(
    figure: Figure,
    points: Sequence[CostPoint],
    look: Mapping[str, Look],
    best: Sequence[str],
    place: tuple[float, float, Any, Any],
) -> None:
    bottom, high, xs, ys = place
    at = {
        p.variant: (
            LEFT + _width() * style.share(xs, p.ratio[0]),
            bottom + high * (up(p.cosine[0]) - ys[0]) / (ys[1] - ys[0]),
        )
        for p in points
    }
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
            labels.line(
                figure, [spot.x, x], [spot.y, y], color=FAINT, linewidth=0.5, alpha=0.7, gid=gid
            )
        colour = {"color": FAINT} if pale else {}
        labels.write(figure, box[0], box[1] + 2, name, SIZE, gid=gid, **colour)


def _told(points: Sequence[CostPoint], best: Sequence[str]) -> str:
    by = {p.variant: p for p in points}
    some = (f"{n} (cosine {cosine(by[n].cosine[0])}, {by[n].ratio[0]:.3f})" for n in best[:8])
    return f"Beaten by none both ways: {', '.join(some)}"


def _rows(points: Sequence[CostPoint], best: Sequence[str]) -> list[Sequence[object]]:
    names = (
        "variant",
        "computes",
        "cosine",
        "cosine_low",
        "cosine_high",
        "ratio",
        "ratio_low",
        "ratio_high",
        "step_s",
        "frontier",
    )
    rows: list[Sequence[object]] = [names]
    rows += [
        (
            p.variant,
            p.computes,
            *map(style.number, (*p.cosine, *p.ratio, p.step_s)),
            "yes" if p.variant in best else "no",
        )
        for p in points
    ]
    return rows


Row = Mapping[str, Any]
RECALL_PICTURE_WIDE, HIGH = 700.0, 235.0
"""Points: of the figure, and of a setting's three panels."""
RECALL_PICTURE_LEFT, RECALL_PICTURE_ABOVE, RECALL_PICTURE_BELOW = 40.0, 52.0, 32.0
NAMES = 4
"""Names that stand side by side."""
BAND = 0.13
"""How much colour lies between the worst and the best seed."""
APART = 0.05
"""Of a doubling: by so much each variant stands beside the one before it, so that none hides."""


def draw_recall(found: Evidence, files: Sequence[Path]) -> bool:
    """Draw all settings; False where nothing was trained, and of a scan, which is a table."""
    made = drawn(found)
    if made is None:
        return False
    for file in files:
        content = made.svg.encode() if file.suffix == ".svg" else made.png
        write_whole(file, content, sync=False)
    return True


def drawn(found: Evidence, known: Looks | None = None) -> Drawn | None:
    """The figure; ``known``: looks of a page that it lies on."""
    shown = list(settings(found))
    if not shown or found.made["scan"]:
        return None
    each = [_trained(rows, found) for _, _, rows in shown]
    chosen = on_a_page([one for some in each for one in some], known or {})
    high = HIGH * len(shown) + RECALL_PICTURE_ABOVE + _foot(chosen)
    with sheet(RECALL_PICTURE_WIDE / 72, high / 72) as figure:
        seeds = len(found.made["seeds"])
        title = f"What models recall on {found.made['machine']['name']}"
        labels.heading(
            figure,
            title,
            f"{found.made['started'][:10]}, {seeds} seed{'s' * (seeds > 1)}; bars: "
            "the mean's 95 % interval; bands: from the worst seed to the best",
        )
        grid = figure.subplots(len(shown), 3, squeeze=False)
        figure.subplots_adjust(
            left=RECALL_PICTURE_LEFT / RECALL_PICTURE_WIDE,
            right=1 - 10 / RECALL_PICTURE_WIDE,
            top=1 - RECALL_PICTURE_ABOVE / high,
            bottom=(_foot(chosen) + RECALL_PICTURE_BELOW) / high,
            wspace=0.16,
            hspace=0.5,
        )
        for axes, (slug, setting, rows), some in zip(grid, shown, each, strict=True):
            _setting(axes, (slug, setting, rows), some, chosen, found.made["budgets"].get(slug))
        handles = {
            name: line
            for row in grid
            for line, name in zip(*row[1].get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles, loc="lower left", ncols=NAMES, frameon=False, fontsize=8
        )
        told = "; ".join(
            f"{slug}: {_told_of_recall_picture(setting, some)}"
            for (slug, setting, _), some in zip(shown, each, strict=True)
        )
        return finish(figure, SECTION, "recall", title, told, _rows_of_recall_picture(shown, each))


def _foot(chosen: Mapping[str, Look]) -> float:
    """How high the names are together."""
    return 8.0 + 14.0 * -(-len(chosen) // NAMES)


def _trained(rows: Sequence[Row], found: Evidence) -> list[Recalled]:
    return [x for x in recalled(rows, found.made["baseline"]) if any(x.accuracy.values())]


def _told_of_recall_picture(setting: Setting, found: Sequence[Recalled]) -> str:
    """With the most pairs after the steps, in words."""
    some = [(x.variant, x.accuracy[TrainingBudget.STEPS].get(setting.most)) for x in found]
    return f"with {setting.most} pairs after {setting.steps:,} steps " + ", ".join(
        f"{name} {percent(right)}" for name, right in some if right
    )


def _rows_of_recall_picture(
    shown: Sequence[tuple[str, Setting, Sequence[Row]]], each: Sequence[Sequence[Recalled]]
) -> Iterator[Sequence[object]]:
    """What it shows: a row a variant, a budget and a number of pairs."""
    yield (
        "setting",
        "variant",
        "computes",
        "state_numbers",
        "budget",
        "pairs",
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "seeds",
    )
    for (slug, _, _), some in zip(shown, each, strict=True):
        for x in some:
            for budget, by in x.accuracy.items():
                for pairs, i in by.items():
                    ends = (i.low, i.high) if i.n > 1 else ()
                    shares = [f"{share:.6g}" for share in (i.mean, *ends)]
                    yield (
                        slug,
                        x.variant,
                        x.computes,
                        x.state_numbers,
                        budget,
                        pairs,
                        *[*shares, "", ""][:3],
                        i.n,
                    )


def _setting(
    axes: Sequence[Axes],
    of: tuple[str, Setting, Sequence[Row]],
    each: Sequence[Recalled],
    chosen: Mapping[str, Look],
    seconds: float | None,
) -> None:
    slug, setting, rows = of
    _against_pairs(axes[0], each, chosen, setting)
    _against_time(axes[1], rows, each, chosen, setting, seconds)
    _against_state(axes[2], each, chosen, setting)
    axes[0].set_title(f"{slug}: after {setting.steps:,} steps", loc="left", fontsize=8)
    axes[1].set_title(f"with {setting.most} pairs, as it is trained", loc="left", fontsize=8)
    axes[2].set_title(f"with {setting.most} pairs, by what is kept", loc="left", fontsize=8)
    for one in axes:
        _plain(one)


def _against_pairs(
    axes: Axes, found: Sequence[Recalled], chosen: Mapping[str, Look], setting: Setting
) -> None:
    """Means with their intervals."""
    for place, each in enumerate(found):
        look, some = chosen[each.variant], each.accuracy[TrainingBudget.STEPS]
        if not some:
            continue
        aside = 2 ** (APART * (place - (len(found) - 1) / 2))
        halves = np.array([_arms(i) for i in some.values()]).T
        bars = axes.errorbar(
            [pairs * aside for pairs in some],
            [100 * i.mean for i in some.values()],
            halves,
            linestyle=look.dash,
            linewidth=1.2,
            elinewidth=0.9,
            capsize=2,
            **look.marks(5),
        )
        _own(bars, look)
    axes.set_xscale("log", base=2)
    axes.set_xticks(setting.pairs, [str(p) for p in setting.pairs])
    axes.minorticks_off()
    axes.set_xlabel("pairs in a sequence")
    axes.set_ylabel("right answers, %")


def _own(bars: ErrorbarContainer, look: Look) -> None:
    """Marks, ends and bars are all of a variant, and named where a pointer rests on them."""
    for one in bars.get_children():
        one.set_gid(look.gid(look.variant))


def _arms(found: SeedInterval) -> tuple[float, float]:
    """How far the interval reaches down and up; of one seed nothing is drawn."""
    if found.n == 1:
        return 0.0, 0.0
    return 100 * (found.mean - found.low), 100 * (found.high - found.mean)


def _against_time(
    axes: Axes,
    rows: Sequence[Row],
    found: Sequence[Recalled],
    chosen: Mapping[str, Look],
    setting: Setting,
    seconds: float | None,
) -> None:
    """The mean over seeds, and between the worst and the best of them."""
    for each in found:
        look, curves = chosen[each.variant], _curves(rows, each.variant, setting.most)
        end = min(at[-1] for at, _ in curves)
        grid = np.linspace(0.0, end, 60)
        lines = 100 * np.array([np.interp(grid, at, right) for at, right in curves])
        axes.fill_between(
            grid,
            lines.min(0),
            lines.max(0),
            color=look.colour,
            alpha=BAND,
            linewidth=0,
            gid=look.gid(),
        )
        axes.plot(
            grid,
            lines.mean(0),
            linestyle=look.dash,
            linewidth=1.3,
            markevery=[-1],
            label=each.variant,
            gid=look.gid(each.variant),
            **look.marks(5),
        )
    if seconds is not None:
        axes.axvline(seconds, color=FAINT, linewidth=0.9, linestyle=(0, (1, 1)))
        axes.annotate(
            f"{seconds:.1f} s for all",
            (seconds, 0),
            xytext=(3, 3),
            fontsize=7,
            textcoords="offset points",
            color=FAINT,
            rotation=90,
        )
    axes.set_xlim(0, None)
    axes.set_xlabel("seconds of training")


def _curves(rows: Sequence[Row], variant: str, pairs: int) -> list[tuple[Any, Any]]:
    """Seconds and accuracies of each seed, from nothing known on."""
    return [
        (
            np.array([0.0, *(look["seconds"] for look in row["curve"])]),
            np.array([0.0, *(look["accuracy"][str(pairs)] for look in row["curve"])]),
        )
        for row in rows
        if row["variant"] == variant and row["curve"]
    ]


def _against_state(
    axes: Axes, found: Sequence[Recalled], chosen: Mapping[str, Look], setting: Setting
) -> None:
    for each in found:
        right = each.accuracy[TrainingBudget.STEPS].get(setting.most)
        if right is None or not each.state_numbers:
            continue
        look = chosen[each.variant]
        bars = axes.errorbar(
            [each.state_numbers],
            [100 * right.mean],
            np.array([_arms(right)]).T,
            linestyle="",
            elinewidth=0.9,
            capsize=2,
            **look.marks(6),
        )
        _own(bars, look)
    axes.set_xscale("log", base=2)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.set_xlabel("numbers that a decoder keeps a head")


def _plain(axes: Axes) -> None:
    axes.axhline(100 * TARGET, color=FAINT, linewidth=0.8)
    axes.set_ylim(-2, 104)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(color=GRID)
