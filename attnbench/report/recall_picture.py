"""What models recall, as one picture: against pairs, against time, and against what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.models.quality.recall.setting import Setting
from attnbench.models.quality.recall.verdicts import TARGET, Budget, Interval, Recalled, recalled
from attnbench.report.figures.looks import Look, looks
from attnbench.report.figures.palette import FAINT, GRID, INK, PAPER
from attnbench.report.recall_view import settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attnbench.store.evidence import Evidence

Row = Mapping[str, Any]
SIZE = (12.5, 3.6)
"""Inches of a setting's three panels."""
BAND = 0.13
"""How much colour lies between the worst and the best seed."""
APART = 0.05
"""Of a doubling: by so much each variant stands beside the one before it, so that none hides."""


def draw(found: Evidence, files: Sequence[Path]) -> bool:
    """Draw all settings; False where nothing was trained, and of a scan, which is a table."""
    shown = list(settings(found))
    if not shown or found.made["scan"]:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    words: dict[Any, Any] = {
        "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "attnbench", "text.color": INK,
        "axes.edgecolor": GRID, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    }  # fmt: skip
    with mpl.rc_context(words):
        figure, grid = plt.subplots(
            len(shown), 3, figsize=(SIZE[0], SIZE[1] * len(shown) + 0.9), squeeze=False,
            layout="constrained", facecolor=PAPER,
        )  # fmt: skip
        seeds = len(found.made["seeds"])
        figure.suptitle(
            f"attnbench quality recall on {found.made['machine']['name']}, "
            f"{found.made['started'][:10]}, {seeds} seed{'s' * (seeds > 1)}\n"
            "bars: the mean's 95 % interval; bands: from the worst seed to the best",
            fontsize=11, x=0.02, ha="left",
        )  # fmt: skip
        for axes, (slug, setting, rows) in zip(grid, shown, strict=True):
            _setting(axes, slug, setting, rows, found)
        handles, names = grid[0][1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower left", ncols=4, frameon=False, fontsize=8)
        for file in files:
            figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else {})
        plt.close(figure)
    return True


def _setting(axes: Sequence[Axes], slug: str, setting: Setting, rows: Sequence[Row],
             found: Evidence) -> None:  # fmt: skip
    each = [x for x in recalled(rows, found.made["baseline"]) if any(x.accuracy.values())]
    chosen = looks(each)
    seconds = found.made["budgets"].get(slug)
    _against_pairs(axes[0], each, chosen, setting)
    _against_time(axes[1], rows, each, chosen, setting, seconds)
    _against_state(axes[2], each, chosen, setting)
    axes[0].set_title(f"{slug}: after {setting.steps:,} steps", loc="left", fontsize=9)
    axes[1].set_title(f"with {setting.most} pairs, as it is trained", loc="left", fontsize=9)
    axes[2].set_title(f"with {setting.most} pairs, by what is kept", loc="left", fontsize=9)
    for one in axes:
        _plain(one)


def _against_pairs(axes: Axes, found: Sequence[Recalled], chosen: Mapping[str, Look],
                   setting: Setting) -> None:  # fmt: skip
    """Means with their intervals."""
    for place, each in enumerate(found):
        look, some = chosen[each.variant], each.accuracy[Budget.STEPS]
        if not some:
            continue
        aside = 2 ** (APART * (place - (len(found) - 1) / 2))
        halves = np.array([_arms(i) for i in some.values()]).T
        axes.errorbar(
            [pairs * aside for pairs in some], [100 * i.mean for i in some.values()], halves,
            linestyle=look.dash, linewidth=1.2, elinewidth=0.9, capsize=2, **look.marks(5),
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(setting.pairs, [str(p) for p in setting.pairs])
    axes.minorticks_off()
    axes.set_xlabel("pairs in a sequence")
    axes.set_ylabel("right answers, %")


def _arms(found: Interval) -> tuple[float, float]:
    """How far the interval reaches down and up; of one seed nothing is drawn."""
    if found.n == 1:
        return 0.0, 0.0
    return 100 * (found.mean - found.low), 100 * (found.high - found.mean)


def _against_time(axes: Axes, rows: Sequence[Row], found: Sequence[Recalled],
                  chosen: Mapping[str, Look], setting: Setting,
                  seconds: float | None) -> None:  # fmt: skip
    """The mean over seeds, and between the worst and the best of them."""
    for each in found:
        look, curves = chosen[each.variant], _curves(rows, each.variant, setting.most)
        end = min(at[-1] for at, _ in curves)
        grid = np.linspace(0.0, end, 60)
        lines = 100 * np.array([np.interp(grid, at, right) for at, right in curves])
        axes.fill_between(grid, lines.min(0), lines.max(0), color=look.colour, alpha=BAND,
                          linewidth=0)  # fmt: skip
        axes.plot(
            grid, lines.mean(0), linestyle=look.dash, linewidth=1.3, markevery=[-1],
            label=each.variant, **look.marks(5),
        )  # fmt: skip
    if seconds is not None:
        axes.axvline(seconds, color=FAINT, linewidth=0.9, linestyle=(0, (1, 1)))
        axes.annotate(f"{seconds:.1f} s for all", (seconds, 0), xytext=(3, 3), fontsize=7,
                      textcoords="offset points", color=FAINT, rotation=90)  # fmt: skip
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


def _against_state(axes: Axes, found: Sequence[Recalled], chosen: Mapping[str, Look],
                   setting: Setting) -> None:  # fmt: skip
    for each in found:
        right = each.accuracy[Budget.STEPS].get(setting.most)
        if right is None or not each.state_numbers:
            continue
        look = chosen[each.variant]
        axes.errorbar(
            [each.state_numbers], [100 * right.mean], np.array([_arms(right)]).T,
            linestyle="", elinewidth=0.9, capsize=2, **look.marks(6),
        )  # fmt: skip
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
