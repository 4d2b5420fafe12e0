"""What models recall, as one picture: against pairs, against time, and against what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.models.quality.recall.conclusions import percent
from attnbench.models.quality.recall.setting import Setting
from attnbench.models.quality.recall.verdicts import TARGET, Budget, Interval, Recalled, recalled
from attnbench.report.figures import labels
from attnbench.report.figures.looks import Look, Looks, on_a_page
from attnbench.report.figures.palette import FAINT, GRID
from attnbench.report.figures.sheet import Drawn, finish, sheet
from attnbench.report.recall_view import settings
from attnbench.store.disk import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer

    from attnbench.store.evidence import Evidence

Row = Mapping[str, Any]
WIDE, HIGH = 700.0, 235.0
"""Points: of the figure, and of a setting's three panels."""
LEFT, ABOVE, BELOW = 40.0, 52.0, 32.0
NAMES = 4
"""Names that stand side by side."""
SECTION = "model"
BAND = 0.13
"""How much colour lies between the worst and the best seed."""
APART = 0.05
"""Of a doubling: by so much each variant stands beside the one before it, so that none hides."""


def draw(found: Evidence, files: Sequence[Path]) -> bool:
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
    high = HIGH * len(shown) + ABOVE + _foot(chosen)
    with sheet(WIDE / 72, high / 72) as figure:
        seeds = len(found.made["seeds"])
        title = f"What models recall on {found.made['machine']['name']}"
        labels.heading(
            figure, title, f"{found.made['started'][:10]}, {seeds} seed{'s' * (seeds > 1)}; bars: "
            "the mean's 95 % interval; bands: from the worst seed to the best",
        )  # fmt: skip
        grid = figure.subplots(len(shown), 3, squeeze=False)
        figure.subplots_adjust(
            left=LEFT / WIDE, right=1 - 10 / WIDE, top=1 - ABOVE / high,
            bottom=(_foot(chosen) + BELOW) / high, wspace=0.16, hspace=0.5,
        )  # fmt: skip
        for axes, (slug, setting, rows), some in zip(grid, shown, each, strict=True):
            _setting(axes, (slug, setting, rows), some, chosen, found.made["budgets"].get(slug))
        handles = {
            name: line
            for row in grid
            for line, name in zip(*row[1].get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles, loc="lower left", ncols=NAMES, frameon=False,
                      fontsize=8)  # fmt: skip
        told = "; ".join(f"{slug}: {_told(setting, some)}"
                         for (slug, setting, _), some in zip(shown, each, strict=True))  # fmt: skip
        return finish(figure, SECTION, "recall", title, told, _rows(shown, each))


def _foot(chosen: Mapping[str, Look]) -> float:
    """How high the names are together."""
    return 8.0 + 14.0 * -(-len(chosen) // NAMES)


def _trained(rows: Sequence[Row], found: Evidence) -> list[Recalled]:
    return [x for x in recalled(rows, found.made["baseline"]) if any(x.accuracy.values())]


def _told(setting: Setting, found: Sequence[Recalled]) -> str:
    """With the most pairs after the steps, in words."""
    some = [(x.variant, x.accuracy[Budget.STEPS].get(setting.most)) for x in found]
    return f"with {setting.most} pairs after {setting.steps:,} steps " + ", ".join(
        f"{name} {percent(right)}" for name, right in some if right
    )


def _rows(shown: Sequence[tuple[str, Setting, Sequence[Row]]],
          each: Sequence[Sequence[Recalled]]) -> Iterator[Sequence[object]]:  # fmt: skip
    """What it shows: a row a variant, a budget and a number of pairs."""
    yield ("setting", "variant", "computes", "state_numbers", "budget", "pairs", "accuracy",
           "accuracy_low", "accuracy_high", "seeds")  # fmt: skip
    for (slug, _, _), some in zip(shown, each, strict=True):
        for x in some:
            for budget, by in x.accuracy.items():
                for pairs, i in by.items():
                    ends = (i.low, i.high) if i.n > 1 else ()
                    shares = [f"{share:.6g}" for share in (i.mean, *ends)]
                    yield (slug, x.variant, x.computes, x.state_numbers, budget, pairs,
                           *[*shares, "", ""][:3], i.n)  # fmt: skip


def _setting(axes: Sequence[Axes], of: tuple[str, Setting, Sequence[Row]],
             each: Sequence[Recalled], chosen: Mapping[str, Look],
             seconds: float | None) -> None:  # fmt: skip
    slug, setting, rows = of
    _against_pairs(axes[0], each, chosen, setting)
    _against_time(axes[1], rows, each, chosen, setting, seconds)
    _against_state(axes[2], each, chosen, setting)
    axes[0].set_title(f"{slug}: after {setting.steps:,} steps", loc="left", fontsize=8)
    axes[1].set_title(f"with {setting.most} pairs, as it is trained", loc="left", fontsize=8)
    axes[2].set_title(f"with {setting.most} pairs, by what is kept", loc="left", fontsize=8)
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
        bars = axes.errorbar(
            [pairs * aside for pairs in some], [100 * i.mean for i in some.values()], halves,
            linestyle=look.dash, linewidth=1.2, elinewidth=0.9, capsize=2, **look.marks(5),
        )  # fmt: skip
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
                          linewidth=0, gid=look.gid())  # fmt: skip
        axes.plot(
            grid, lines.mean(0), linestyle=look.dash, linewidth=1.3, markevery=[-1],
            label=each.variant, gid=look.gid(each.variant), **look.marks(5),
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
        bars = axes.errorbar(
            [each.state_numbers], [100 * right.mean], np.array([_arms(right)]).T,
            linestyle="", elinewidth=0.9, capsize=2, **look.marks(6),
        )  # fmt: skip
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
