"""What recall trainings show: intervals over seeds, sentences, tables, and a picture.

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
from attnbench.features.quality.model_results import status_words
from attnbench.features.quality.recall import Setting
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
STEPS, TIME = "steps", "time"
"""Budgets: what all variants get as much of."""
REACHES, SHORT, OPEN = "reaches", "falls short", "can't be told"
"""Where an interval lies to the target."""


class SeedInterval(NamedTuple):
    """A mean over seeds and its 95 % interval; of one seed, without limits."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """How far its farther end is from the mean."""
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def standing(self) -> str:
        """Where it lies to the target; one seed shows nothing."""
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
    """Of a step's time to the baseline's, seed by seed: the mean of logarithms, and back."""


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
    found = []
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
        ratio = seed_interval(logs)
        if ratio is not None:
            mean, low, high = (math.exp(x) if x < 700 else math.inf for x in ratio[:3])
            ratio = SeedInterval(mean, low, high, ratio.n)
        state = next((x for r in some if (x := r["state_numbers"]) is not None), None)
        what = name, some[0]["computes"], some[0]["family"], state, accuracy
        steps = seed_interval([look["step"] for look in ends[TIME]])
        found.append(RecallResult(*what, steps, seed_interval([*times.values()]), ratio))

    def place(each: RecallResult) -> tuple[bool, float]:
        shares = each.accuracy[STEPS]
        return each.variant != baseline, -shares[max(shares)].mean if shares else 1.0

    return sorted(found, key=place)


class SettingResults(NamedTuple):
    """One setting with its rows of evidence and its variants that have a figure."""

    slug: str
    setting: Setting
    rows: Sequence[Row]
    results: list[RecallResult]
    baseline: str
    seconds: float | None

    @property
    def budgets(self) -> list[str]:
        """The budgets that there were."""
        return [STEPS] if self.seconds is None else [STEPS, TIME]

    def accuracy(self, variant: str) -> float | None:
        """Of a variant with the most pairs, after the steps."""
        for each in self.results:
            if each.variant == variant and (share := each.accuracy[STEPS].get(self.setting.most)):
                return share.mean
        return None


def by_setting(found: Evidence) -> list[SettingResults]:
    """The settings in which the baseline was trained at all."""
    baseline, settings = found.made["baseline"], dict[str, list[Row]]()
    for row in found.rows:
        settings.setdefault(convert(row["setting"], Setting).slug, []).append(row)
    made = []
    for slug, rows in settings.items():
        if any(row["variant"] == baseline and row["curve"] for row in rows):
            results = [x for x in recall_results(rows, baseline) if any(x.accuracy.values())]
            setting, seconds = convert(rows[0]["setting"], Setting), found.made["budgets"].get(slug)
            made.append(SettingResults(slug, setting, rows, results, baseline, seconds))
    return made


def recall_conclusions(found: Evidence) -> dict[str, list[str]]:
    """The sentences, by setting; those of a scan are about all settings."""
    settings = by_setting(found)
    if found.made["scan"]:
        return {"scan": _scan(settings)[0]}
    return {each.slug: list(conclude_setting(each)) for each in settings}


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
    for budget in of.budgets:
        when = f"after the same {of.setting.steps:,} steps"
        if budget == TIME:
            when = f"in the same time ({duration(of.seconds or 0.0)})"
        pairs = hardest(own, budget)
        if pairs is None:
            yield (
                f"{when} {of.baseline} itself is not known to reach {GOAL} with any number of "
                "pairs: what the others lack says nothing of them; more --steps, or fewer --pairs"
            )
            continue
        names: dict[str, list[str]] = {standing: [] for standing in STANDINGS}
        for each in of.results:
            if share := each.accuracy[budget].get(pairs):
                names[share.standing].append(f"{each.variant} ({share} %)")
        parts = (f"{STANDINGS[x]}: {', '.join(some)}" for x, some in names.items() if some)
        by_chance = percent(chance(pairs, of.setting.values))
        yield f"{when}, with {pairs} pairs (by chance {by_chance}): {'; '.join(parts)}"


def hardest(own: RecallResult, budget: str) -> int | None:
    """The most pairs at which a variant reaches the target."""
    shares = own.accuracy[budget].items()
    return max((pairs for pairs, share in shares if share.standing == REACHES), default=None)


def chance(pairs: int, values: int) -> float:
    """The accuracy of naming the value of any of the pairs, which is right by chance once in V."""
    return 1 / pairs + (1 - 1 / pairs) / values


def _scan(scan: Sequence[SettingResults]) -> tuple[list[str], list[Table]]:
    """The settings that tell the baseline from each other variant; and all of them."""
    names = dict.fromkeys(each.variant for of in scan for each in of.results)
    sentences, lines = [], []
    took = {
        of.slug: sum(row["curve"][-1]["seconds"] for row in of.rows if row["curve"]) for of in scan
    }
    for name in names:
        if name == (own := scan[0].baseline):
            continue
        what = f"in which {own} is right {GOAL} of the time or more and {name} is not"
        apart = [
            of.slug
            for of in sorted(scan, key=lambda of: (took[of.slug], of.slug))
            if (its := of.accuracy(name)) is not None and (of.accuracy(own) or 0.0) >= TARGET > its
        ]
        some = f"settings {what}, the cheapest first: {', '.join(apart)}"
        sentences.append(some if apart else f"there is no setting {what}")
    for of in scan:
        cells = ("" if (x := of.accuracy(name)) is None else f"{100 * x:.1f}" for name in names)
        s = of.setting
        lines.append((s.seq, s.width, f"{s.rate:g}", *cells, f"{took[of.slug]:.0f}"))
    heads = ["tokens", "width", "rate", *(f"{name}, %" for name in names), "seconds"]
    table = Table("settings that were tried", columns(*heads, right=heads), lines)
    hint = "one seed a setting is a hint, no verdict: ask the setting for its seeds"
    return [*sentences, hint], [table] if lines else []


MARKS = {REACHES: (" ✓", GOOD), SHORT: ("  ", BAD), OPEN: (" ?", "")}


def recall_tables(found: Evidence) -> list[Table]:
    """Of each setting one a budget, or one of a scan."""
    settings = by_setting(found)
    if found.made["scan"]:
        return _scan(settings)[1]
    return [_budget_table(of, budget) for of in settings for budget in of.budgets]


def _budget_table(of: SettingResults, budget: str) -> Table:
    name = f"{of.setting.steps:,} steps" if budget == STEPS else duration(of.seconds or 0.0)
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
    return Table(f"right answers after {name} each ({of.slug})", heads, lines)


def recall_lines(found: Evidence) -> list[str]:
    """What did not train, how far a stopped run came, and what the words of the tables mean."""
    tasks = [
        f"{s.slug}: {s.keys} keys, {s.values} values, batches of {s.batch}; tested on {s.tests} "
        "sequences of each number of pairs"
        for s in (of.setting for of in by_setting(found))
    ]
    whys = [f"! {row['variant']}: {status_words(row)}" for row in found.rows if row["reason"]]
    return [
        *tasks,
        *dict.fromkeys(whys),
        *[progress_words(found)] * found.partial,
        "right answers, ± the farther end of Student's 95 % interval over "
        f"{counted(len(found.made['seeds']), 'seed')}; ✓ all of it at {GOAL} or above, ? across it",
        "time: the training's own loop, one thread's on a CPU by the processor's clock, without "
        "looking at the test; state: numbers that the decoder keeps a head: its own memory, or the "
        "keys and values of all tokens, though a pattern may need fewer",
    ]


def progress_words(found: Evidence) -> str:
    """``stopped before its end: 7 of 18 trainings``"""
    trained = sum(bool(row["curve"]) for row in found.rows)
    of = f" of {found.made['trainings']}" if "trainings" in found.made else ""
    return f"stopped before its end: {trained}{of} trainings"


WIDE, HIGH, LEFT, ABOVE, BELOW = 560.0, 235.0, 40.0, 52.0, 32.0
"""Points: of the figure, of a setting's two panels, and around them."""
NAMES = 4
BAND = 0.13
"""How much colour lies between the worst and the best seed."""
APART = 0.05
"""Of a doubling: by so much each variant stands beside the one before it, so that none hides."""


def draw_recall(found: Evidence) -> Plot | None:
    """Two panels a setting; None where nothing was trained, and of a scan."""
    settings = by_setting(found)
    if not settings or found.made["scan"]:
        return None
    looks = style.looks(each for of in settings for each in of.results)
    foot = 8.0 + 14.0 * -(-len(looks) // NAMES)
    high = HIGH * len(settings) + ABOVE + foot
    title = f"What models recall on {found.made['machine']['name']}"
    with sheet(WIDE / 72, high / 72) as figure:
        seeds = counted(len(found.made["seeds"]), "seed")
        under = "bars: the mean's 95 % interval; bands: from the worst seed to the best"
        labels.heading(figure, title, f"{found.made['started'][:10]}, {seeds}; {under}")
        grid = figure.subplots(len(settings), 2, squeeze=False)
        sides = LEFT / WIDE, (foot + BELOW) / high, 1 - 12 / WIDE, 1 - ABOVE / high
        figure.subplots_adjust(*sides, wspace=0.16, hspace=0.5)
        handles: dict[str, Any] = {}
        for (left, right), of in zip(grid, settings, strict=True):
            _draw_pairs(left, of, looks)
            _draw_training(right, of, looks)
            for axes in (left, right):
                axes.axhline(100 * TARGET, color=FAINT, linewidth=0.8)
                axes.set_ylim(-2, 104)
            lines, names = right.get_legend_handles_labels()
            handles |= dict(zip(names, lines, strict=True))
        below: dict[str, Any] = {"loc": "lower left", "ncols": NAMES, "frameon": False}
        figure.legend(handles.values(), handles, fontsize=8, **below)
        told = (f"{of.slug}: {line}" for of in settings for line in conclude_setting(of))
        return finish(figure, "recall", title, "; ".join(told))


def csv_rows(evidence: Evidence) -> Iterator[tidy.Row]:
    """A row a variant, a budget and a number of pairs, in each setting: the share of right answers,
    and what a step of training takes.
    """
    for of in by_setting(evidence):
        s = of.setting
        where = {"setting": of.slug, "seq": s.seq, "width": s.width, "rate": s.rate}
        for x in of.results:
            what = {"variant": x.variant, "computes": x.computes}
            took = {
                **_seeds("step_ms", x.step_s, 1e3),
                **_seeds("ratio", x.ratio),
                "state_numbers": x.state_numbers,
            }
            for budget, by_pairs in x.accuracy.items():
                for pairs, share in by_pairs.items():
                    by = {"budget": budget, "pairs": pairs, "seeds": share.n}
                    yield {**what, **where, **by, **_seeds("accuracy", share), **took}


def _seeds(name: str, of: SeedInterval | None, factor: float = 1.0) -> tidy.Row:
    """Three columns, of figures with six digits; of one seed there are no limits."""
    row: dict[str, float | None] = dict.fromkeys((name, f"low_{name}", f"high_{name}"))
    for each, value in zip(row, of[: 3 if of.n > 1 else 1] if of else (), strict=False):
        row[each] = float(f"{factor * value:.6g}")
    return row


def _draw_pairs(axes: Axes, of: SettingResults, looks: Mapping[str, Look]) -> None:
    """Accuracies after the steps against the number of pairs, with intervals but of one seed."""
    for place, each in enumerate(of.results):
        look, shares = looks[each.variant], each.accuracy[STEPS]
        if not shares:
            continue
        aside = 2 ** (APART * (place - (len(of.results) - 1) / 2))
        ys = [100 * i.mean for i in shares.values()]
        ends = [(i.mean - i.low, i.high - i.mean) if i.n > 1 else (0, 0) for i in shares.values()]
        more = {"linestyle": look.dash, "linewidth": 1.2, **look.marks(5)}
        xs, bars = [pairs * aside for pairs in shares], 100 * np.array(ends).T
        axes.errorbar(xs, ys, bars, elinewidth=0.9, capsize=2, **more)
    axes.set_title(f"{of.slug}: after {of.setting.steps:,} steps", loc="left", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(of.setting.pairs, [str(p) for p in of.setting.pairs])
    axes.minorticks_off()
    axes.set(xlabel="pairs in a sequence", ylabel="right answers, %")


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
        axes.fill_between(grid, shares.min(0), shares.max(0), **band)
        line: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.3, **look.marks(5)}
        line |= {"markevery": [-1], "label": each.variant}
        axes.plot(grid, shares.mean(0), **line)
    if of.seconds is not None:
        axes.axvline(of.seconds, color=FAINT, linewidth=0.9, linestyle=(0, (1, 1)))
        words: dict[str, Any] = {"fontsize": 7, "color": FAINT, "rotation": 90}
        axes.text(of.seconds, 1, f" {duration(of.seconds)} for all", **words)
    axes.set_title(f"with {of.setting.most} pairs, as it is trained", loc="left", fontsize=8)
    axes.set_xlim(0, None)
    axes.set_xlabel("seconds of training")
