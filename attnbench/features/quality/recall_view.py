"""The view of ``quality recall``: intervals over seeds, sentences, tables, and a picture.

An accuracy is the mean over seeds, with Student's 95 % interval. It reaches the target where the
whole interval is at or above it, and falls short where all of it is below.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import convert

from attnbench.core.evidence import Evidence
from attnbench.core.format import counted, duration, percent
from attnbench.core.stats import CONFIDENCE, student_quantile
from attnbench.features.quality.recall import Setting
from attnbench.features.quality.rows import status_words
from attnbench.report import tidy
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, Plot, finish, sheet
from attnbench.report.figures.style import Look
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TARGET, GOAL = 0.99, "99 %"
Row = Mapping[str, Any]
BUDGETS = STEPS, TIME = "steps", "time"
"""Each variant gets as many steps as the baseline, and as much time."""
REACHES, SHORT, OPEN = "reaches", "falls short", "can't be told"
"""The standing of an interval: where it lies to the target."""


class SeedInterval(NamedTuple):
    """A mean over seeds and its 95 % interval; of one seed, without limits."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """The distance from the mean to its farther end."""
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def standing(self) -> str:
        """The side of the target that it lies on; one seed shows nothing."""
        if self.n > 1 and self.low >= TARGET:
            return REACHES
        return SHORT if self.n > 1 and self.high < TARGET else OPEN

    def __str__(self) -> str:
        half = f" ± {100 * self.half:.1f}" if self.n > 1 else ""
        return f"{100 * self.mean:.1f}{half}"


def seed_interval(
    values: Sequence[float], least: float = -math.inf, most: float = math.inf
) -> SeedInterval | None:
    """Student's, cut to what the values may be at all; None of no values."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return SeedInterval(mean, -math.inf, math.inf, 1)
    half = student_quantile((1 + CONFIDENCE) / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    return SeedInterval(mean, max(least, mean - half), min(most, mean + half), n)


@dataclass(frozen=True)
class RecallResult:
    """A variant in one setting, over its seeds."""

    variant: str
    computes: str
    family: str
    state_numbers: int | None
    accuracy: Mapping[str, Mapping[int, SeedInterval]]
    steps: SeedInterval | None
    step_s: SeedInterval | None
    ratio: SeedInterval | None
    """A step's time over the baseline's, seed by seed: the geometric mean."""


def recall_results(rows: Sequence[Row], baseline: str) -> list[RecallResult]:
    """The variants of one setting: the baseline, then those that recall most pairs best."""
    by_variant: dict[str, list[Row]] = {}
    for row in rows:
        by_variant.setdefault(row["variant"], []).append(row)
    step_s = {
        name: {row["seed"]: float(row["curve"][-1]["step_s"]) for row in some if row["curve"]}
        for name, some in by_variant.items()
    }
    own_s = step_s.get(baseline, {})
    results = []
    for name, some in by_variant.items():
        ends: dict[str, list[Row]] = {STEPS: [], TIME: []}
        for row in some:  # the checkpoints at which a budget was over
            last = row["setting"]["steps"]
            ends[STEPS] += [look for look in row["curve"] if look["step"] == last][:1]
            ends[TIME] += [look for look in row["curve"] if look["in_time"]][:1]
        pairs = sorted({int(p) for row in some for p in row["setting"]["pairs"]})
        accuracy = {
            budget: {
                p: share
                for p in pairs
                if (share := seed_interval([look["accuracy"][str(p)] for look in looks], 0.0, 1.0))
            }
            for budget, looks in ends.items()
        }
        times = step_s[name]
        logs = [math.log(own / own_s[seed]) for seed, own in times.items() if seed in own_s]
        if (ratio := seed_interval(logs)) is not None:
            mean, low, high = (math.exp(x) if x < 700 else math.inf for x in ratio[:3])
            ratio = SeedInterval(mean, low, high, ratio.n)
        result = RecallResult(
            variant=name,
            computes=some[0]["computes"],
            family=some[0]["family"],
            state_numbers=next((r["state_numbers"] for r in some if r["state_numbers"]), None),
            accuracy=accuracy,
            steps=seed_interval([look["step"] for look in ends[TIME]]),
            step_s=seed_interval([*times.values()]),
            ratio=ratio,
        )
        results.append(result)

    def place(each: RecallResult) -> tuple[bool, float]:
        shares = each.accuracy[STEPS]
        return each.variant != baseline, -shares[max(shares)].mean if shares else 1.0

    return sorted(results, key=place)


class SettingResults(NamedTuple):
    """One setting with its variants that have a figure."""

    slug: str
    setting: Setting
    results: list[RecallResult]
    baseline: str
    seconds: float

    def budget_words(self, budget: str) -> str:
        """``800 steps``, or ``8.92 s``"""
        return f"{self.setting.steps:,} steps" if budget == STEPS else duration(self.seconds)


def by_setting(evidence: Evidence) -> list[SettingResults]:
    """The settings in which the baseline was trained at all."""
    baseline, budgets = evidence.made["baseline"], evidence.made["budgets"]
    rows_by_slug: dict[str, list[Row]] = {}
    for row in evidence.rows:
        rows_by_slug.setdefault(convert(row["setting"], Setting).slug, []).append(row)
    settings = []
    for slug, rows in rows_by_slug.items():
        if any(row["variant"] == baseline and row["curve"] for row in rows):
            results = [x for x in recall_results(rows, baseline) if any(x.accuracy.values())]
            setting = convert(rows[0]["setting"], Setting)
            settings.append(SettingResults(slug, setting, results, baseline, budgets[slug]))
    return settings


def conclusions(evidence: Evidence) -> list[str]:
    """The sentences, with their setting where there are several."""
    settings = by_setting(evidence)
    return [
        f"in {each.slug}: {line}" if len(settings) > 1 else line
        for each in settings
        for line in conclude_setting(each)
    ]


STANDINGS = {REACHES: f"{GOAL} reached by", SHORT: "not by", OPEN: "can't be told of"}


def conclude_setting(of: SettingResults) -> Iterator[str]:
    """All variants where the baseline is still known to reach the target."""
    own = next((each for each in of.results if each.variant == of.baseline), None)
    if own is None:
        yield f"the baseline {of.baseline} was not trained to its end: nothing is concluded"
        return
    shares = [x for each in of.results for some in each.accuracy.values() for x in some.values()]
    if all(share.n < 2 for share in shares):
        yield "one seed gives no interval: nothing is concluded; --seeds 3 gives one"
        return
    for budget in BUDGETS:
        words = of.budget_words(budget)
        when = f"in the same time ({words})" if budget == TIME else f"after the same {words}"
        reached = [p for p, share in own.accuracy[budget].items() if share.standing == REACHES]
        if not reached:
            yield (
                f"{when} {of.baseline} itself is not known to reach {GOAL} with any number of "
                "pairs: what the others lack says nothing of them; more --steps, or fewer --pairs"
            )
            continue
        pairs = max(reached)
        names: dict[str, list[str]] = {standing: [] for standing in STANDINGS}
        for each in of.results:
            if share := each.accuracy[budget].get(pairs):
                names[share.standing].append(f"{each.variant} ({share} %)")
        parts = (f"{STANDINGS[x]}: {', '.join(some)}" for x, some in names.items() if some)
        # the value of any of the pairs, which is right by chance once in all values
        by_chance = percent(1 / pairs + (1 - 1 / pairs) / of.setting.values)
        yield f"{when}, with {pairs} pairs (by chance {by_chance}): {'; '.join(parts)}"


MARKS = {REACHES: (" ✓", GOOD), SHORT: ("  ", BAD), OPEN: (" ?", "")}


def tables(evidence: Evidence) -> list[Table]:
    """A table for each setting and budget."""
    return [_budget_table(of, budget) for of in by_setting(evidence) for budget in BUDGETS]


def _budget_table(of: SettingResults, budget: str) -> Table:
    right = [f"{pairs} pairs, %" for pairs in of.setting.pairs]
    right += ["a step", "to softmax's", "state"] if budget == STEPS else ["steps"]
    lines = []
    for each in of.results:
        cells: list[str | Styled] = []
        for pairs in of.setting.pairs:
            share = each.accuracy[budget].get(pairs)
            mark, colour = MARKS[share.standing] if share else ("", "")
            cells.append(Styled(f"{share}{mark}", colour) if share else "not there  ")
        if budget == TIME:
            cells.append(f"{each.steps.mean:,.0f}" if each.steps else "")
        else:
            ratio = each.ratio
            ends = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio and ratio.n > 1 else ""
            cells += [
                duration(each.step_s.mean) if each.step_s else "",
                f"{ratio.mean:.2f}{ends}" if ratio else "",
                "" if each.state_numbers is None else f"{each.state_numbers:,}",
            ]
        lines.append((each.variant, each.computes, *cells))
    heads = columns("variant", "computes", *right, right=right, wrap=["computes"])
    title = f"right answers after {of.budget_words(budget)} each ({of.slug})"
    return Table(title, heads, lines)


def notes(evidence: Evidence) -> list[str]:
    """The variants that did not train and the words of the tables."""
    tasks = [
        f"{s.slug}: {s.keys} keys, {s.values} values, batches of {s.batch}; tested on {s.tests} "
        "sequences of each number of pairs"
        for s in (of.setting for of in by_setting(evidence))
    ]
    whys = [f"! {row['variant']}: {status_words(row)}" for row in evidence.rows if row["reason"]]
    return [
        *tasks,
        *dict.fromkeys(whys),
        "right answers, ± the farther end of Student's 95 % interval over "
        f"{counted(len(evidence.made['seeds']), 'seed')}; ✓ all of it at {GOAL} or above, ? "
        "across it",
        "time: the training's own loop, one thread's on a CPU by the processor's clock, without "
        "looking at the test; state: numbers that the decoder keeps a head: its own memory, or the "
        "keys and values of all tokens, though a pattern may need fewer",
    ]


WIDE, HIGH, LEFT, ABOVE, BELOW = 560.0, 235.0, 40.0, 52.0, 32.0
"""Points: of the figure, of a setting's panels, and around them."""
NAMES = 4
APART = 0.05
"""The share of a doubling between the markers of two variants, so that none hides another."""


def draw(evidence: Evidence) -> Plot | None:
    """A panel for each setting and budget; None where nothing was trained."""
    settings = by_setting(evidence)
    if not settings:
        return None
    looks = style.looks(each for of in settings for each in of.results)
    foot = 8.0 + 14.0 * -(-len(looks) // NAMES)
    high = HIGH * len(settings) + ABOVE + foot
    title = f"What models recall on {evidence.made['machine']['name']}"
    with sheet(WIDE / 72, high / 72) as figure:
        seeds = counted(len(evidence.made["seeds"]), "seed")
        under = f"{evidence.made['started'][:10]}, {seeds}; bars: the mean's 95 % interval"
        labels.heading(figure, title, under)
        grid = figure.subplots(len(settings), 2, squeeze=False, sharey=True)
        sides = LEFT / WIDE, (foot + BELOW) / high, 1 - 12 / WIDE, 1 - ABOVE / high
        figure.subplots_adjust(*sides, wspace=0.06, hspace=0.5)
        for panels, of in zip(grid, settings, strict=True):
            for axes, budget in zip(panels, BUDGETS, strict=True):
                _draw_pairs(axes, of, budget, looks)
        handles = {
            name: line
            for axes in grid.flat
            for line, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        below: dict[str, Any] = {"loc": "lower left", "ncols": NAMES, "frameon": False}
        figure.legend(handles.values(), handles, fontsize=8, **below)
        return finish(figure, "recall", title, "; ".join(conclusions(evidence)))


def _draw_pairs(axes: Axes, of: SettingResults, budget: str, looks: Mapping[str, Look]) -> None:
    """Accuracies against the number of pairs, with intervals but of one seed."""
    for place, each in enumerate(of.results):
        look, shares = looks[each.variant], each.accuracy[budget]
        if not shares:
            continue
        aside = 2 ** (APART * (place - (len(of.results) - 1) / 2))
        xs, ys = [pairs * aside for pairs in shares], [100 * i.mean for i in shares.values()]
        ends = [(i.mean - i.low, i.high - i.mean) if i.n > 1 else (0, 0) for i in shares.values()]
        more = {"linestyle": look.dash, "linewidth": 1.2, "label": each.variant, **look.marks(5)}
        axes.errorbar(xs, ys, 100 * np.array(ends).T, elinewidth=0.9, capsize=2, **more)
    axes.set_title(f"{of.slug}: after {of.budget_words(budget)}", loc="left", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(of.setting.pairs, [str(p) for p in of.setting.pairs])
    axes.minorticks_off()
    axes.axhline(100 * TARGET, color=FAINT, linewidth=0.8)
    axes.set(xlabel="pairs in a sequence", ylabel="right answers, %", ylim=(-2, 104))
    axes.label_outer()


def csv_rows(evidence: Evidence) -> Iterator[tidy.Row]:
    """A row a variant, a budget and a number of pairs, in each setting: the share of right answers,
    and what a step of training takes.
    """
    for of in by_setting(evidence):
        s = of.setting
        where = {"setting": of.slug, "seq": s.seq, "width": s.width, "rate": s.rate}
        for x in of.results:
            about = {"variant": x.variant, "computes": x.computes}
            took = {
                **_seeds("step_ms", x.step_s, 1e3),
                **_seeds("ratio", x.ratio),
                "state_numbers": x.state_numbers,
            }
            for budget, by_pairs in x.accuracy.items():
                for pairs, share in by_pairs.items():
                    by = {"budget": budget, "pairs": pairs, "seeds": share.n}
                    yield {**about, **where, **by, **_seeds("accuracy", share), **took}


def _seeds(name: str, of: SeedInterval | None, factor: float = 1.0) -> tidy.Row:
    """Three columns, of figures with six digits; of one seed there are no limits."""
    row: dict[str, float | None] = dict.fromkeys((name, f"low_{name}", f"high_{name}"))
    for each, value in zip(row, of[: 3 if of.n > 1 else 1] if of else (), strict=False):
        row[each] = float(f"{factor * value:.6g}")
    return row
