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
from attnbench.features.quality.recall_results import (
    TARGET,
    SeedInterval,
    SettingResults,
    TrainingBudget,
    by_setting,
    seed_words,
)
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, PAPER, Drawn, finish, sheet
from attnbench.report.figures.style import End, Look, Looks, on_a_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attnbench.core.evidence import Evidence


SECTION = "model"


def draw(found: Evidence, known: Looks | None = None) -> Drawn | None:
    """The figure of evidence; None where its kind has none, or where there is nothing to show.

    ``known``: looks of a page that it lies on, so that a variant is the same everywhere there.
    """
    draw_kind = {"model": _draw_model, "recall": _draw_recall}.get(found.kind)
    return draw_kind and draw_kind(found, known or {})


def draw_beside(found: Evidence, file: Path) -> Path | None:
    """Save the figure beside the evidence, as SVG and PNG; the PNG's path. Raises OSError."""
    drawn = draw(found)
    if drawn is None:
        return None
    write_whole(file.with_suffix(".svg"), drawn.svg.encode(), sync=False)
    write_whole(file.with_suffix(".png"), drawn.png, sync=False)
    return file.with_suffix(".png")


WIDE, HIGH = 500.0, 320.0
"""Points: of the figure, and of its axes."""
LEFT, RIGHT, ABOVE, BELOW = 52.0, 112.0, 52.0, 32.0
NEAREST = 1e-4
"""One minus a cosine: what is nearer to the original lies at the top edge."""
WIDER = 1.5
"""By so much more than in logarithms what is far is spread."""
TICKS = (0.9999, 0.999, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)
RATIOS = (0.2, 0.5, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
GROUND = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
"""Of words that a line goes through."""


def _draw_model(found: Evidence, known: Looks) -> Drawn | None:
    """Likeness × time at the longest step that was timed; None where none was."""
    lengths, made = lengths_of(found.rows), found.made
    shown = points(found.rows, lengths[-1]) if lengths else []
    if not shown:
        return None
    seq, looks, front = lengths[-1], on_a_page(shown, known), best(shown)
    floors = {s["seq"]: s["comparison"]["ratio"] for s in made["original"]["floor"]}
    title = f"What a variant costs {made['model']['name']}: likeness × time"
    where = f"{made['wanted']['dtype']}, {made['machine']['name']}"
    under = f"a step of {seq:,} tokens, {where}; intervals: 95 % up, 99 % across"
    items = style.lines(style.of(looks.values()), WIDE - 12)
    bottom = BELOW + style.LINE * len(items)
    with sheet(WIDE / 72, (bottom + HIGH + ABOVE) / 72) as figure:
        labels.heading(figure, title, under, nearest_level(shown))
        style.put(figure, 6, 5, items)
        frame = (LEFT, bottom, WIDE - RIGHT, bottom + HIGH)
        axes = labels.add_axes(figure, frame)
        xs = style.limits([x for p in shown for x in p.ratio] + [1.0, *floors.values()], least=1.5)
        inside = [x for x in RATIOS if xs[0] <= x <= xs[1]]
        axes.set(xscale="log", xlim=xs)
        axes.set_xticks(inside, [f"{x:g}" for x in inside])
        axes.minorticks_off()
        axes.set_xlabel("step time over the original's (less is better)", labelpad=1, fontsize=8)
        low, high = up(min(0.85, *(p.cosine[0] for p in shown))) - 0.12, up(1.0) + 0.2
        ticks = [x for x in TICKS if up(x) >= low]
        axes.set_ylim(low, high)
        axes.set_yticks([up(x) for x in ticks], [f"{x:g}" for x in ticks])
        axes.set_ylabel("median cosine to the original", labelpad=2, fontsize=8)
        _draw_levels(axes, shown, floors.get(seq))
        cloud = [p for name in front for p in shown if p.variant == name]
        times, heights = [p.ratio[0] for p in cloud], [up(p.cosine[0]) for p in cloud]
        steps = [times[0], *times, xs[1]], [low, *heights, heights[-1]]
        axes.step(*steps, where="post", color=FAINT, linewidth=1.0, alpha=0.8)
        for p in shown:
            _mark(axes, p, looks[p.variant], best=p.variant in front)
        order = sorted(shown, key=lambda p: (p.variant not in front, p.ratio))
        ends = [
            End(looks[p.variant], labels.at(axes, p.ratio[0], up(p.cosine[0])), p.variant)
            for p in order[: int(HIGH / style.NAME_STEP)]
        ]
        style.name_ends(figure, ends, WIDE - RIGHT, bottom + 2, bottom + HIGH - 2, lines=False)
        some = (
            f"{p.variant} (cosine {format_cosine(p.cosine[0])}, {p.ratio[0]:.3f})" for p in cloud
        )
        words = f"Beaten by none both ways: {', '.join(some)}"
        return finish(figure, SECTION, f"model-{seq}", title, words, _csv(shown, front))


def up(cosine: float) -> float:
    """How high a cosine lies: in logarithms of what is missing to one, and what is far wider."""
    far = max(NEAREST, 1 - cosine)
    return -log10(far) - WIDER * far


def _draw_levels(axes: Axes, shown: Sequence[CostPoint], floor: float | None) -> None:
    """The levels, the corner of what is faster and near enough, and the times to compare with."""
    for level in LEVELS:
        axes.axhline(up(level), color=GRID, linewidth=1.4)
    left, top, corner = axes.get_xlim()[0], axes.get_ylim()[1], up(LEVEL)
    axes.fill_between([left, 1.0], corner, top, color=GRID, alpha=0.45, linewidth=0)
    gain = sum(p.cosine[1] >= LEVEL and p.faster for p in shown)
    words = f"faster, and\n{LEVEL:g} or more:\n{f'{gain} of all' if gain else 'nobody'}"
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "bottom"}
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (3, 4), **beside}
    axes.annotate(words, (0, corner), fontsize=8, bbox=GROUND, **place)
    for x, dash, words in ((floor, "--", "no attention at all"), (1.0, "-", "the original")):
        if x is not None:
            axes.axvline(x, color=FAINT, linewidth=0.9, linestyle=dash)
            place = {"xycoords": ("data", "axes fraction"), "xytext": (-2, 0), **beside}
            axes.annotate(
                words, (x, 0.4), ha="right", rotation=90, fontsize=7, color=FAINT, **place
            )


def _mark(axes: Axes, point: CostPoint, look: Look, *, best: bool) -> None:
    """A point, with the ends of both intervals."""
    (x, low, high), (y, under, over) = point.ratio, map(up, point.cosine)
    pale = 1.0 if best else 0.75
    ink: dict[str, Any] = {"color": look.colour, "linewidth": 0.9, "alpha": 0.6 * pale, "zorder": 2}
    axes.plot([low, high], [y, y], gid=look.gid(), **ink)
    axes.plot([x, x], [under, over], gid=look.gid(), **ink)
    words = f"cosine {format_cosine(point.cosine[0])}, {format.times(x)} the time"
    gid, more = look.gid(f"{point.variant}: {words}"), look.marks(5.5 if best else 4.5)
    axes.plot([x], [y], linestyle="none", zorder=3, clip_on=False, alpha=pale, gid=gid, **more)


def _csv(shown: Sequence[CostPoint], front: Sequence[str]) -> Iterator[Sequence[object]]:
    ends = ("", "_low", "_high")
    figures = [f"{name}{end}" for name in ("cosine", "ratio") for end in ends]
    yield ("variant", "computes", *figures, "step_s", "frontier")
    for p in shown:
        numbers = map(style.number, (*p.cosine, *p.ratio, p.step_s))
        yield (p.variant, p.computes, *numbers, "yes" if p.variant in front else "no")


RECALL_WIDE, RECALL_HIGH, RECALL_LEFT = 700.0, 235.0, 40.0
"""Points: of the figure, of a setting's three panels, and left of them."""
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
    title = f"What models recall on {found.made['machine']['name']}"
    under = "bars: the mean's 95 % interval; bands: from the worst seed to the best"
    with sheet(RECALL_WIDE / 72, high / 72) as figure:
        when = f"{found.made['started'][:10]}, {seed_words(found)}"
        labels.heading(figure, title, f"{when}; {under}")
        grid = figure.subplots(len(settings), 3, squeeze=False)
        left, right = RECALL_LEFT / RECALL_WIDE, 1 - 12 / RECALL_WIDE
        top, bottom = 1 - ABOVE / high, (foot + BELOW) / high
        figure.subplots_adjust(left, bottom, right, top, wspace=0.16, hspace=0.5)
        handles: dict[str, Any] = {}
        for panels, of in zip(grid, settings, strict=True):
            _draw_pairs(panels[0], of, looks)
            _draw_training(panels[1], of, looks)
            _draw_state(panels[2], of, looks)
            for axes in panels:
                axes.axhline(100 * TARGET, color=FAINT, linewidth=0.8)
                axes.set_ylim(-2, 104)
            lines, names = panels[1].get_legend_handles_labels()
            handles |= dict(zip(names, lines, strict=True))
        below: dict[str, Any] = {"loc": "lower left", "ncols": NAMES, "frameon": False}
        figure.legend(handles.values(), handles, fontsize=8, **below)
        words = "; ".join(map(_describe_setting, settings))
        return finish(figure, SECTION, "recall", title, words, _recall_csv(settings))


def _describe_setting(of: SettingResults) -> str:
    """The accuracies with the most pairs after the steps."""
    shares = (
        (x.variant, x.accuracy[TrainingBudget.STEPS].get(of.setting.most)) for x in of.results
    )
    said = ", ".join(f"{name} {share.text}" for name, share in shares if share)
    return f"{of.slug}: with {of.setting.most} pairs after {of.setting.steps:,} steps {said}"


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


def _draw_pairs(axes: Axes, of: SettingResults, looks: Mapping[str, Look]) -> None:
    """Accuracies against the number of pairs."""
    for place, each in enumerate(of.results):
        look, shares = looks[each.variant], each.accuracy[TrainingBudget.STEPS]
        aside = 2 ** (APART * (place - (len(of.results) - 1) / 2))
        xs = [pairs * aside for pairs in shares]
        _draw_bars(axes, look, xs, list(shares.values()), linestyle=look.dash, linewidth=1.2)
    axes.set_title(f"{of.slug}: after {of.setting.steps:,} steps", loc="left", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(of.setting.pairs, [str(p) for p in of.setting.pairs])
    axes.minorticks_off()
    axes.set(xlabel="pairs in a sequence", ylabel="right answers, %")


def _draw_bars(
    axes: Axes, look: Look, xs: Sequence[float], shares: Sequence[SeedInterval], **line: Any
) -> None:
    """Means with their intervals, none of one seed; all parts belong to the variant."""
    if not shares:
        return
    ends = np.array([(i.mean - i.low, i.high - i.mean) if i.n > 1 else (0, 0) for i in shares]).T
    ys, more = [100 * i.mean for i in shares], {**line, **look.marks(5)}
    bars = axes.errorbar(xs, ys, 100 * ends, elinewidth=0.9, capsize=2, **more)
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
        line: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.3, **look.marks(5)}
        line |= {"markevery": [-1], "label": each.variant, "gid": look.gid(each.variant)}
        axes.plot(grid, shares.mean(0), **line)
    if of.seconds is not None:
        axes.axvline(of.seconds, color=FAINT, linewidth=0.9, linestyle=(0, (1, 1)))
        words: dict[str, Any] = {"fontsize": 7, "color": FAINT, "rotation": 90}
        axes.text(of.seconds, 1, f" {of.seconds:.1f} s for all", **words)
    axes.set_title(f"with {of.setting.most} pairs, as it is trained", loc="left", fontsize=8)
    axes.set_xlim(0, None)
    axes.set_xlabel("seconds of training")


def _draw_state(axes: Axes, of: SettingResults, looks: Mapping[str, Look]) -> None:
    """Accuracies with the most pairs against the numbers that a decoder keeps."""
    for each in of.results:
        share = each.accuracy[TrainingBudget.STEPS].get(of.setting.most)
        if share is not None and each.state_numbers:
            _draw_bars(axes, looks[each.variant], [each.state_numbers], [share], linestyle="")
    axes.set_title(f"with {of.setting.most} pairs, by what is kept", loc="left", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.set_xlabel("numbers that a decoder keeps a head")
