"""Pictures of what a variant costs a model, and of what small models recall."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.core import format
from attnbench.core.disk import write_whole
from attnbench.features.quality.model_results import (
    LEVEL,
    LEVELS,
    CostPoint,
    best,
    format_cosine,
    lengths_of,
    nearest_level,
    points,
)
from attnbench.features.quality.recall import Setting
from attnbench.features.quality.recall_results import (
    TARGET,
    RecallResult,
    SeedInterval,
    SettingResults,
    TrainingBudget,
    by_setting,
)
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, INK, PAPER, Drawn, finish, sheet
from attnbench.report.figures.style import Look, Looks, on_a_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnbench.core.evidence import Evidence


SECTION = "model"
Pair = tuple[float, float]


def draw(found: Evidence, known: Looks | None = None) -> Drawn | None:
    """The figure of evidence; None where its kind has none, or where there is nothing to show.

    ``known``: looks of a page that it lies on, so that a variant is the same everywhere there.
    """
    if found.kind == "model":
        return _draw_model(found, known or {})
    return _draw_recall(found, known or {}) if found.kind == "recall" else None


def draw_beside(found: Evidence, file: Path) -> Path | None:
    """Save the figure beside the evidence, as SVG and PNG; the PNG's path. Raises OSError."""
    drawn = draw(found)
    if drawn is None:
        return None
    write_whole(file.with_suffix(".svg"), drawn.svg.encode(), sync=False)
    write_whole(file.with_suffix(".png"), drawn.png, sync=False)
    return file.with_suffix(".png")


WIDE, CLOUD = 500.0, 265.0
"""Points: of the figure, and the height of the part with what is not as the original."""
LEFT, RIGHT, ABOVE, BELOW, GAP = 52.0, 12.0, 52.0, 32.0, 7.0
INNER = WIDE - LEFT - RIGHT
SIZE = 8.0
ROW, EDGE, HEAD = 10.5, 4.0, 11.0
"""Points: of a row, above and below all, and of the words above them."""
NEAREST = 1e-4
"""One minus the cosine below which points have rows at the top."""
WIDER = 1.5
"""By so much more than in logarithms what is far is spread."""
TICKS = (0.999, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)
RATIOS = (0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
SPARED = (0.7, 0.9, 1.1, 1.2)
"""Ratios without a tick where there are many."""
GROUND = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
"""Of words that a line goes through."""
FRONTIER: dict[str, Any] = {"color": FAINT, "linewidth": 1.0, "alpha": 0.8}


def _draw_model(found: Evidence, known: Looks) -> Drawn | None:
    """Likeness × time at the longest step that was timed; None where none was."""
    lengths = lengths_of(found.rows)
    shown = points(found.rows, lengths[-1]) if lengths else []
    if not shown:
        return None
    seq, made = lengths[-1], found.made
    floors = {s["seq"]: s["comparison"]["ratio"] for s in made["original"]["floor"]}
    floor, looks, front = floors.get(seq), on_a_page(shown, known), best(shown)
    title = f"What a variant costs {made['model']['name']}: likeness × time"
    where = f"{made['wanted']['dtype']}, {made['machine']['name']}"
    under = f"a step of {seq:,} tokens, {where}; intervals: 95 % up, 99 % across"
    items = style.lines(style.of(looks.values()), WIDE - 12)
    alike = sorted((p for p in shown if _far(p.cosine[0]) <= NEAREST), key=lambda p: p.ratio)
    others = [p for p in shown if _far(p.cosine[0]) > NEAREST]
    bottom = BELOW + style.LINE * len(items)
    rows = len(alike) * ROW + 2 * EDGE + HEAD if alike else 0.0
    high = bottom + ABOVE + rows + (CLOUD if others else 0.0) + (GAP if alike and others else 0.0)
    ends = [x for p in shown for x in p.ratio] + [1.0] + ([floor] if floor else [])
    xs = style.limits(ends, least=1.5)
    with sheet(WIDE / 72, high / 72) as figure:
        labels.heading(figure, title, under, nearest_level(shown))
        style.put(figure, 6, 5, items)
        if others:
            axes = figure.add_axes((LEFT / WIDE, bottom / high, INNER / WIDE, CLOUD / high))
            _set_times(axes, xs, lowest=True)
            _set_cosines(axes, others)
            _draw_levels(axes, shown)
            _draw_uprights(axes, floor, named=not alike)
            _draw_frontier(axes, shown, others, front, to_edge=not alike)
            for p in others:
                low, middle, top = sorted(up(x) for x in p.cosine)
                _mark(axes, p, (middle, low, top), looks[p.variant], best=p.variant in front)
            _name_points(figure, others, looks, front, (bottom, xs, axes.get_ylim()))
        if alike:
            place = (LEFT / WIDE, (high - ABOVE - rows) / high, INNER / WIDE, rows / high)
            axes = figure.add_axes(place)
            _set_times(axes, xs, lowest=not others)
            _draw_alike(axes, alike, looks, front, from_below=bool(others))
            _draw_uprights(axes, floor, named=True)
        return finish(
            figure, SECTION, f"model-{seq}", title, _describe(shown, front), _csv(shown, front)
        )


def _far(cosine: float) -> float:
    return max(NEAREST, 1 - cosine)


def up(cosine: float) -> float:
    """How high a cosine lies: in logarithms of what is missing to one, and what is far wider."""
    far = _far(cosine)
    return -log10(far) - WIDER * far


def _set_times(axes: Axes, xs: Pair, *, lowest: bool) -> None:
    """The axis of time, with words where nothing lies below it."""
    axes.set_xscale("log")
    axes.set_xlim(*xs)
    axes.minorticks_off()
    ticks = [x for x in RATIOS if xs[0] <= x <= xs[1]]
    if len(ticks) > 9:
        ticks = [x for x in ticks if x not in SPARED]
    axes.set_xticks(ticks, [f"{x:g}" if lowest else "" for x in ticks])
    axes.tick_params(length=2.5 if lowest else 0, pad=2)
    if lowest:
        axes.set_xlabel("step time over the original's (less is better)", labelpad=1, fontsize=8)


def _set_cosines(axes: Axes, shown: Sequence[CostPoint]) -> None:
    cosines = [p.cosine[0] for p in shown]
    axes.set_ylim(up(min(0.85, *cosines)) - 0.12, up(max(0.9993, *cosines)) + 0.2)
    ticks = [x for x in TICKS if axes.get_ylim()[0] <= up(x) <= axes.get_ylim()[1]]
    axes.set_yticks([up(x) for x in ticks], [f"{x:g}" for x in ticks])
    axes.set_ylabel("median cosine to the original", labelpad=2, fontsize=8)


def _draw_levels(axes: Axes, shown: Sequence[CostPoint]) -> None:
    """The levels, and the corner of what is faster and near enough."""
    for level in LEVELS:
        axes.axhline(up(level), color=GRID, linewidth=1.4)
    left, top, corner = axes.get_xlim()[0], axes.get_ylim()[1], up(LEVEL)
    axes.fill_between([left, 1.0], corner, top, color=GRID, alpha=0.45, linewidth=0)
    gain = sum(p.cosine[1] >= LEVEL and p.faster for p in shown)
    axes.annotate(
        f"faster, and\n{LEVEL:g} or more:\n{f'{gain} of all' if gain else 'nobody'}",
        (0, corner),
        xycoords=("axes fraction", "data"),
        xytext=(3, 4),
        textcoords="offset points",
        fontsize=8,
        va="bottom",
        bbox=GROUND,
    )


def _draw_uprights(axes: Axes, floor: float | None, *, named: bool) -> None:
    """Where no attention at all would be, and the original."""
    lines: list[tuple[float, Any, str]] = [(1.0, "-", "the original")]
    if floor is not None:
        lines.insert(0, (floor, (0, (3, 2)), "no attention at all"))
    for x, dash, words in lines:
        axes.axvline(x, color=FAINT, linewidth=0.9, linestyle=dash)
        axes.annotate(
            words if named else "",
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


def _draw_frontier(
    axes: Axes,
    shown: Sequence[CostPoint],
    others: Sequence[CostPoint],
    front: Sequence[str],
    *,
    to_edge: bool,
) -> None:
    """Steps through the best of the cloud, to the edge or up to the nearest of the rows above."""
    at = {p.variant: (p.ratio[0], up(p.cosine[0])) for p in others if p.variant in front}
    if not at:
        return
    (low, high), edge = axes.get_ylim(), axes.get_xlim()[1]
    (nearest,) = (p.ratio[0] for p in shown if p.variant == front[-1])
    end = edge if to_edge or front[-1] in at else nearest
    xs, ys = zip(*(at[name] for name in front if name in at), strict=True)
    axes.step([xs[0], *xs, end], [low, *ys, ys[-1]], where="post", **FRONTIER)
    if end != edge:
        axes.plot([end, end], [ys[-1], high], **FRONTIER)


def _mark(
    axes: Axes, point: CostPoint, ys: tuple[float, float, float], look: Look, *, best: bool
) -> None:
    """A point at a height, with the ends of both intervals."""
    (x, low, high), (y, under, over) = point.ratio, ys
    pale = 1.0 if best else 0.75
    ink: dict[str, Any] = {"color": look.colour, "linewidth": 0.9, "alpha": 0.6 * pale, "zorder": 2}
    axes.plot([low, high], [y, y], gid=look.gid(), **ink)
    if over > under:
        axes.plot([x, x], [under, over], gid=look.gid(), **ink)
    cosine = format_cosine(point.cosine[0])
    axes.plot(
        [x],
        [y],
        linestyle="none",
        zorder=3,
        clip_on=False,
        alpha=pale,
        gid=look.gid(f"{point.variant}: cosine {cosine}, {format.times(x)} the time"),
        **look.marks(5.5 if best else 4.5),
    )


def _draw_alike(
    axes: Axes,
    shown: Sequence[CostPoint],
    looks: Mapping[str, Look],
    front: Sequence[str],
    *,
    from_below: bool,
) -> None:
    """A row a point, the fastest at the top; the frontier comes up from below to it."""
    axes.set_ylim(-EDGE / ROW - 0.5, len(shown) - 0.5 + (EDGE + HEAD) / ROW)
    axes.set_yticks([])
    axes.axvspan(axes.get_xlim()[0], 1.0, color=GRID, alpha=0.45, linewidth=0)
    axes.annotate(
        "as the original, to 0.0001",
        (1, 1),
        xycoords="axes fraction",
        xytext=(-3, -3),
        color=FAINT,
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=SIZE,
    )
    for place, point in enumerate(shown):
        y, look = float(len(shown) - 1 - place), looks[point.variant]
        first = point.variant in front
        if first and from_below:
            axes.plot([point.ratio[0]] * 2, [axes.get_ylim()[0], y], **FRONTIER)
        _mark(axes, point, (y, y, y), look, best=first)
        axes.annotate(
            point.variant,
            (point.ratio[2], y),
            xytext=(4, 0),
            va="center_baseline",
            textcoords="offset points",
            fontsize=SIZE,
            gid=look.gid(),
            color=INK if first else FAINT,
        )


def _name_points(
    figure: Figure,
    shown: Sequence[CostPoint],
    looks: Mapping[str, Look],
    front: Sequence[str],
    place: tuple[float, Pair, Pair],
) -> None:
    """A name at each point of the cloud that has room for one, the best ones first."""
    bottom, xs, ys = place
    at = {
        p.variant: (
            LEFT + INNER * style.share(xs, p.ratio[0]),
            bottom + CLOUD * (up(p.cosine[0]) - ys[0]) / (ys[1] - ys[0]),
        )
        for p in shown
    }
    order = [name for name in front if name in at]
    order += [p.variant for p in sorted(shown, key=lambda p: p.ratio) if p.variant not in front]
    spots = [labels.Spot(*at[name], name) for name in order]
    taken = [(x - 3.2, y - 3.2, x + 3.2, y + 3.2) for x, y in at.values()]
    frame = (LEFT + 1, bottom + 1, WIDE - 5, bottom + CLOUD + 2)
    boxes = labels.place(spots, taken, frame, SIZE, 40, list(at.values()))
    for name, spot, box in zip(order, spots, boxes, strict=True):
        if box is None:
            continue
        gid = looks[name].gid()
        if labels.threaded(spot, box):
            x, y = labels.nearest(spot, box)
            thread = {"color": FAINT, "linewidth": 0.5, "alpha": 0.7, "gid": gid}
            labels.line(figure, [spot.x, x], [spot.y, y], **thread)
        colour = {} if name in front else {"color": FAINT}
        labels.write(figure, box[0], box[1] + 2, name, SIZE, gid=gid, **colour)


def _describe(shown: Sequence[CostPoint], front: Sequence[str]) -> str:
    by_name = {p.variant: p for p in shown}
    some = [by_name[name] for name in front[:8]]
    words = (f"{p.variant} (cosine {format_cosine(p.cosine[0])}, {p.ratio[0]:.3f})" for p in some)
    return f"Beaten by none both ways: {', '.join(words)}"


def _csv(shown: Sequence[CostPoint], front: Sequence[str]) -> Iterator[Sequence[object]]:
    cosine, ratio = (("cosine", "cosine_low", "cosine_high"), ("ratio", "ratio_low", "ratio_high"))
    yield ("variant", "computes", *cosine, *ratio, "step_s", "frontier")
    for p in shown:
        figures = map(style.number, (*p.cosine, *p.ratio, p.step_s))
        yield (p.variant, p.computes, *figures, "yes" if p.variant in front else "no")


RECALL_WIDE, RECALL_HIGH = 700.0, 235.0
"""Points: of the figure, and of a setting's three panels."""
RECALL_LEFT, RECALL_RIGHT = 40.0, 10.0
NAMES = 4
"""Names that stand side by side."""
BAND = 0.13
"""How much colour lies between the worst and the best seed."""
APART = 0.05
"""Of a doubling: by so much each variant stands beside the one before it, so that none hides."""


def _draw_recall(found: Evidence, known: Looks) -> Drawn | None:
    """A row of panels a setting; None where nothing was trained, and of a scan."""
    settings = by_setting(found)
    if not settings or found.made["scan"]:
        return None
    looks = on_a_page([each for of in settings for each in of.results], known)
    foot = 8.0 + 14.0 * -(-len(looks) // NAMES)
    high = RECALL_HIGH * len(settings) + ABOVE + foot
    seeds = len(found.made["seeds"])
    title = f"What models recall on {found.made['machine']['name']}"
    with sheet(RECALL_WIDE / 72, high / 72) as figure:
        labels.heading(
            figure,
            title,
            f"{found.made['started'][:10]}, {'1 seed' if seeds == 1 else f'{seeds} seeds'}; bars: "
            "the mean's 95 % interval; bands: from the worst seed to the best",
        )
        grid = figure.subplots(len(settings), 3, squeeze=False)
        figure.subplots_adjust(
            left=RECALL_LEFT / RECALL_WIDE,
            right=1 - RECALL_RIGHT / RECALL_WIDE,
            top=1 - ABOVE / high,
            bottom=(foot + BELOW) / high,
            wspace=0.16,
            hspace=0.5,
        )
        handles: dict[str, Any] = {}
        for axes, of in zip(grid, settings, strict=True):
            _draw_pairs(axes[0], of.results, looks, of.setting)
            _draw_training(axes[1], of, looks)
            _draw_state(axes[2], of.results, looks, of.setting)
            titles = (
                f"{of.slug}: after {of.setting.steps:,} steps",
                f"with {of.setting.most} pairs, as it is trained",
                f"with {of.setting.most} pairs, by what is kept",
            )
            for one, words in zip(axes, titles, strict=True):
                one.set_title(words, loc="left", fontsize=8)
                _set_shares(one)
            lines, names = axes[1].get_legend_handles_labels()
            handles |= dict(zip(names, lines, strict=True))
        figure.legend(
            handles.values(), handles, loc="lower left", ncols=NAMES, frameon=False, fontsize=8
        )
        words = "; ".join(f"{of.slug}: {_describe_setting(of)}" for of in settings)
        return finish(figure, SECTION, "recall", title, words, _recall_csv(settings))


def _describe_setting(of: SettingResults) -> str:
    """The accuracies with the most pairs after the steps."""
    steps, most = of.setting.steps, of.setting.most
    some = [(x.variant, x.accuracy[TrainingBudget.STEPS].get(most)) for x in of.results]
    shares = ", ".join(f"{name} {share.text}" for name, share in some if share)
    return f"with {most} pairs after {steps:,} steps {shares}"


def _recall_csv(settings: Iterable[SettingResults]) -> Iterator[Sequence[object]]:
    """A row a variant, a budget and a number of pairs."""
    shares = ("accuracy", "accuracy_low", "accuracy_high")
    yield ("setting", "variant", "computes", "state_numbers", "budget", "pairs", *shares, "seeds")
    for of in settings:
        for x in of.results:
            for budget, by_pairs in x.accuracy.items():
                for pairs, i in by_pairs.items():
                    ends = (f"{i.low:.6g}", f"{i.high:.6g}") if i.n > 1 else ("", "")
                    what = (of.slug, x.variant, x.computes, x.state_numbers, budget, pairs)
                    yield (*what, f"{i.mean:.6g}", *ends, i.n)


def _draw_pairs(
    axes: Axes, results: Sequence[RecallResult], looks: Mapping[str, Look], setting: Setting
) -> None:
    """Accuracies against the number of pairs."""
    for place, each in enumerate(results):
        look, shares = looks[each.variant], each.accuracy[TrainingBudget.STEPS]
        if shares:
            aside = 2 ** (APART * (place - (len(results) - 1) / 2))
            line: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.2, "size": 5}
            _draw_bars(axes, look, [pairs * aside for pairs in shares], shares.values(), **line)
    axes.set_xscale("log", base=2)
    axes.set_xticks(setting.pairs, [str(p) for p in setting.pairs])
    axes.minorticks_off()
    axes.set_xlabel("pairs in a sequence")
    axes.set_ylabel("right answers, %")


def _draw_bars(
    axes: Axes,
    look: Look,
    xs: Sequence[float],
    shares: Iterable[SeedInterval],
    *,
    size: float,
    **line: Any,
) -> None:
    """Means with their intervals, none of one seed; all parts belong to the variant."""
    some = list(shares)
    arms = [(100 * (i.mean - i.low), 100 * (i.high - i.mean)) if i.n > 1 else (0, 0) for i in some]
    bars = axes.errorbar(
        xs,
        [100 * i.mean for i in some],
        np.array(arms).T,
        elinewidth=0.9,
        capsize=2,
        **line,
        **look.marks(size),
    )
    for one in bars.get_children():
        one.set_gid(look.gid(look.variant))


def _draw_training(axes: Axes, of: SettingResults, looks: Mapping[str, Look]) -> None:
    """The mean over seeds against seconds, and between the worst and the best of them."""
    pairs = str(of.setting.most)
    for each in of.results:
        look = looks[each.variant]
        curves = [
            [(0.0, 0.0), *((x["seconds"], x["accuracy"][pairs]) for x in row["curve"])]
            for row in of.rows
            if row["variant"] == each.variant and row["curve"]
        ]
        grid = np.linspace(0.0, min(curve[-1][0] for curve in curves), 60)
        shares = 100 * np.array([np.interp(grid, *np.transpose(curve)) for curve in curves])
        band: dict[str, Any] = {"color": look.colour, "alpha": BAND, "linewidth": 0}
        axes.fill_between(grid, shares.min(0), shares.max(0), gid=look.gid(), **band)
        axes.plot(
            grid,
            shares.mean(0),
            linestyle=look.dash,
            linewidth=1.3,
            markevery=[-1],
            label=each.variant,
            gid=look.gid(each.variant),
            **look.marks(5),
        )
    if of.seconds is not None:
        axes.axvline(of.seconds, color=FAINT, linewidth=0.9, linestyle=(0, (1, 1)))
        axes.annotate(
            f"{of.seconds:.1f} s for all",
            (of.seconds, 0),
            xytext=(3, 3),
            fontsize=7,
            textcoords="offset points",
            color=FAINT,
            rotation=90,
        )
    axes.set_xlim(0, None)
    axes.set_xlabel("seconds of training")


def _draw_state(
    axes: Axes, results: Sequence[RecallResult], looks: Mapping[str, Look], setting: Setting
) -> None:
    """Accuracies with the most pairs against the numbers that a decoder keeps."""
    for each in results:
        share = each.accuracy[TrainingBudget.STEPS].get(setting.most)
        if share is not None and each.state_numbers:
            state, look = [each.state_numbers], looks[each.variant]
            _draw_bars(axes, look, state, [share], linestyle="", size=6)
    axes.set_xscale("log", base=2)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.set_xlabel("numbers that a decoder keeps a head")


def _set_shares(axes: Axes) -> None:
    """The axis of right answers, with the target."""
    axes.axhline(100 * TARGET, color=FAINT, linewidth=0.8)
    axes.set_ylim(-2, 104)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(color=GRID)
