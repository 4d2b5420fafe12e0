"""What recall trainings show: intervals over seeds, tables, and sentences.

An accuracy is the mean over seeds, with Student's 95 % interval. A variant **reaches** the target
where the whole interval is at or above it, and **falls short** where all of it is below; otherwise
it can't be told. The same steps and the same time are two questions with answers of their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.core.format import milliseconds
from attnbench.core.stats import CONFIDENCE, student_quantile
from attnbench.features.quality.recall import Setting, chance
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns

if TYPE_CHECKING:
    from attnbench.core.evidence import Evidence


TARGET, GOAL = 0.99, "99 %"
Row = Mapping[str, Any]


class TrainingBudget(StrEnum):
    """What all variants get as much of."""

    STEPS = "steps"
    TIME = "time"


class TargetStanding(StrEnum):
    """Where an interval lies to the target."""

    REACHES = "reaches"
    SHORT = "falls short"
    OPEN = "can't be told"


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
    def standing(self) -> TargetStanding:
        """Where it lies to the target; one seed shows nothing."""
        if self.n > 1 and self.low >= TARGET:
            return TargetStanding.REACHES
        return TargetStanding.SHORT if self.n > 1 and self.high < TARGET else TargetStanding.OPEN

    @property
    def text(self) -> str:
        """``98.7 ± 0.6 %``; of one seed the mean alone."""
        half = f" ± {100 * self.half:.1f}" if self.n > 1 else ""
        return f"{100 * self.mean:.1f}{half} %"


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


def checkpoint_of(row: Row, budget: TrainingBudget) -> Row | None:
    """The checkpoint of a training at which its budget was over; None where it never was."""
    last, by_time = row["setting"]["steps"], budget is TrainingBudget.TIME
    ends = (look for look in row["curve"] if (look["in_time"] if by_time else look["step"] == last))
    return next(ends, None)


@dataclass(frozen=True)
class RecallResult:
    """A variant in one setting, over its seeds."""

    variant: str
    computes: str
    family: str
    state_numbers: int | None
    accuracy: Mapping[TrainingBudget, Mapping[int, SeedInterval]]
    """By number of pairs."""
    steps: SeedInterval | None
    """Taken in the same time."""
    step_s: SeedInterval | None
    ratio: SeedInterval | None
    """Of a step's time to the baseline's, seed by seed: the mean of logarithms, and back."""

    def standing(self, budget: TrainingBudget, pairs: int) -> TargetStanding:
        """Where it stands to the target; open where it has no accuracy."""
        found = self.accuracy[budget].get(pairs)
        return TargetStanding.OPEN if found is None else found.standing


def recall_results(rows: Sequence[Row], baseline: str) -> list[RecallResult]:
    """The variants of one setting: the baseline, then those that recall most pairs best."""

    def place(each: RecallResult) -> tuple[bool, float]:
        accuracies = each.accuracy[TrainingBudget.STEPS]
        best = accuracies[max(accuracies)].mean if accuracies else -1.0
        return each.variant != baseline, -best

    own = {row["seed"]: _step_s(row) for row in rows if row["variant"] == baseline}
    names = dict.fromkeys(row["variant"] for row in rows)
    return sorted(
        (_result([r for r in rows if r["variant"] == name], own) for name in names), key=place
    )


def _result(rows: Sequence[Row], baseline_s: Mapping[int, float | None]) -> RecallResult:
    """``rows``: one a seed."""
    looks = {
        budget: [look for row in rows if (look := checkpoint_of(row, budget))]
        for budget in TrainingBudget
    }
    pairs = sorted({int(p) for row in rows for p in row["setting"]["pairs"]})
    accuracy = {
        budget: {
            p: found
            for p in pairs
            if (found := seed_interval([look["accuracy"][str(p)] for look in some], 0.0, 1.0))
        }
        for budget, some in looks.items()
    }
    times = {row["seed"]: own for row in rows if (own := _step_s(row))}
    logs = [math.log(own / base) for n, own in times.items() if (base := baseline_s.get(n))]
    ratio = seed_interval(logs)
    if ratio is not None:
        mean, low, high = (math.exp(x) if x < 700 else math.inf for x in ratio[:3])
        ratio = SeedInterval(mean, low, high, ratio.n)
    return RecallResult(
        rows[0]["variant"],
        rows[0]["computes"],
        rows[0]["family"],
        next((r["state_numbers"] for r in rows if r["state_numbers"] is not None), None),
        accuracy,
        seed_interval([look["step"] for look in looks[TrainingBudget.TIME]]),
        seed_interval(list(times.values())),
        ratio,
    )


def _step_s(row: Row) -> float | None:
    """The median time of a training's steps."""
    return float(row["curve"][-1]["step_s"]) if row["curve"] else None


class SettingResults(NamedTuple):
    """One setting with its rows of evidence and its variants that have a figure."""

    slug: str
    setting: Setting
    rows: Sequence[Row]
    results: list[RecallResult]
    baseline: str
    seconds: float | None
    """The budget of time, if there was one."""

    @property
    def budgets(self) -> list[TrainingBudget]:
        """The budgets that there were."""
        return list(TrainingBudget)[: 1 if self.seconds is None else 2]

    @property
    def took_s(self) -> float:
        """Seconds of all trainings, of the processor or of the wall."""
        return sum(row["curve"][-1]["seconds"] for row in self.rows if row["curve"])

    def accuracy(self, variant: str) -> float | None:
        """Of a variant with the most pairs, after the steps."""
        shares = [x.accuracy[TrainingBudget.STEPS] for x in self.results if x.variant == variant]
        found = shares[0].get(self.setting.most) if shares else None
        return found and found.mean


def by_setting(found: Evidence) -> list[SettingResults]:
    """The settings in which the baseline was trained at all."""
    baseline, settings = found.made["baseline"], dict[str, list[Row]]()
    for row in found.rows:
        settings.setdefault(Setting.from_dict(row["setting"]).slug, []).append(row)
    made = []
    for slug, rows in settings.items():
        if any(row["variant"] == baseline and row["curve"] for row in rows):
            results = [x for x in recall_results(rows, baseline) if any(x.accuracy.values())]
            setting, seconds = Setting.from_dict(rows[0]["setting"]), found.made["budgets"]
            made.append(SettingResults(slug, setting, rows, results, baseline, seconds.get(slug)))
    return made


def recall_conclusions(found: Evidence) -> dict[str, list[str]]:
    """The sentences, by setting; those of a scan are about all settings."""
    settings = by_setting(found)
    if found.made["scan"]:
        return {"scan": list(_conclude_scan(settings))}
    return {each.slug: conclude_setting(each) for each in settings}


def conclude_setting(of: SettingResults) -> list[str]:
    """The sentences of one setting; only one where nothing can be concluded."""
    if of.baseline not in [each.variant for each in of.results]:
        return [f"the baseline {of.baseline} was not trained to its end: nothing is concluded"]
    accuracies = [some for each in of.results for some in each.accuracy.values()]
    if all(found.n < 2 for some in accuracies for found in some.values()):
        return ["one seed gives no interval: nothing is concluded; --seeds 3 gives one"]
    return [*(_conclude_standings(of, budget) for budget in of.budgets), *_conclude_state(of)]


def _hardest(of: SettingResults, budget: TrainingBudget) -> int | None:
    """The most pairs at which the baseline reaches the target."""
    (own,) = (each for each in of.results if each.variant == of.baseline)
    reached = [p for p in own.accuracy[budget] if own.standing(budget, p) is REACHES]
    return max(reached, default=None)


REACHES = TargetStanding.REACHES
WORDS = {
    REACHES: f"{GOAL} reached by",
    TargetStanding.SHORT: "not by",
    TargetStanding.OPEN: "can't be told of",
}


def _conclude_standings(of: SettingResults, budget: TrainingBudget) -> str:
    """All variants where the baseline is still known to reach the target."""
    pairs, when = _hardest(of, budget), f"after the same {of.setting.steps:,} steps"
    if budget is TrainingBudget.TIME:
        when = f"in the same time ({of.seconds:.1f} s)"
    if pairs is None:
        return (
            f"{when} {of.baseline} itself is not known to reach {GOAL} with any number of pairs: "
            "what the others lack says nothing of them; more --steps, or fewer --pairs"
        )
    names: dict[TargetStanding, list[str]] = {standing: [] for standing in WORDS}
    for each in of.results:
        if found := each.accuracy[budget].get(pairs):
            names[found.standing].append(f"{each.variant} ({found.text})")
    parts = (f"{WORDS[standing]}: {', '.join(some)}" for standing, some in names.items() if some)
    by_chance = f"{100 * chance(pairs, of.setting.values):.1f} %"
    return f"{when}, with {pairs} pairs (by chance {by_chance}): {'; '.join(parts)}"


def _conclude_state(of: SettingResults) -> Iterator[str]:
    """What needs the fewest numbers for what the baseline recalls."""
    pairs = _hardest(of, TrainingBudget.STEPS)
    reach = {
        each.variant: each.state_numbers
        for each in of.results
        if pairs is not None
        and each.standing(TrainingBudget.STEPS, pairs) is REACHES
        and each.state_numbers is not None
    }
    if (own := reach.get(of.baseline)) is not None:
        least, name = min((numbers, name != of.baseline, name) for name, numbers in reach.items())[
            ::2
        ]
        others = f"; {of.baseline} keeps {own:,}" * (name != of.baseline)
        yield (
            f"of those known to reach {GOAL} with {pairs} pairs {name} keeps least: "
            f"{least:,} numbers a head after {of.setting.seq} tokens{others}"
        )


def _conclude_scan(scan: Sequence[SettingResults]) -> Iterator[str]:
    """The settings that tell the baseline from each other variant."""
    for name in dict.fromkeys(each.variant for of in scan for each in of.results):
        if name == (own := scan[0].baseline):
            continue
        apart = [
            (of.took_s, of.slug)
            for of in scan
            if (its := of.accuracy(name)) is not None and (of.accuracy(own) or 0.0) >= TARGET > its
        ]
        what = f"in which {own} is right {GOAL} of the time or more and {name} is not"
        if apart:
            slugs = ", ".join(slug for _, slug in sorted(apart))
            yield f"settings {what}, the cheapest first: {slugs}"
        else:
            yield f"there is no setting {what}"
    yield "one seed a setting is a hint, no verdict: ask the setting for its seeds"


MARKS = {TargetStanding.REACHES: " ✓", TargetStanding.SHORT: "  ", TargetStanding.OPEN: " ?"}
COLOURS = {TargetStanding.REACHES: GOOD, TargetStanding.SHORT: BAD, TargetStanding.OPEN: ""}


def recall_tables(found: Evidence) -> list[Table]:
    """Of each setting one a budget, or one of a scan."""
    settings = by_setting(found)
    if found.made["scan"]:
        return [_scan_table(settings)] if settings else []
    return [_budget_table(of, budget) for of in settings for budget in of.budgets]


def _scan_table(scan: Sequence[SettingResults]) -> Table:
    """A line a setting."""
    names = list(dict.fromkeys(each.variant for of in scan for each in of.results))
    heads = ["tokens", "width", "rate", *(f"{name}, %" for name in names), "seconds"]
    lines = []
    for of in scan:
        shares = map(of.accuracy, names)
        cells = ["" if x is None else f"{100 * x:.1f}" for x in shares]
        s = of.setting
        lines.append((s.seq, s.width, f"{s.rate:g}", *cells, f"{of.took_s:.0f}"))
    return Table("settings that were tried", columns(*heads, right=heads), lines)


def _budget_table(of: SettingResults, budget: TrainingBudget) -> Table:
    """A line a variant; after the steps with a step's cost, in the same time with the steps."""
    by_steps = budget is TrainingBudget.STEPS
    name = f"{of.setting.steps:,} steps each" if by_steps else f"{of.seconds:.1f} s each"
    right = [f"{pairs} pairs, %" for pairs in of.setting.pairs]
    right += ["a step", "to softmax's", "state"] if by_steps else ["steps"]
    lines = []
    for each in of.results:
        shares = map(each.accuracy[budget].get, of.setting.pairs)
        if by_steps:
            step = milliseconds(each.step_s.mean) if each.step_s else ""
            state = "" if each.state_numbers is None else f"{each.state_numbers:,}"
            cells = [step, _ratio_cell(each.ratio), state]
        else:
            cells = [f"{each.steps.mean:,.0f}" if each.steps else ""]
        lines.append((each.variant, each.computes, *map(_accuracy_cell, shares), *cells))
    heads = columns("variant", "computes", *right, right=right, wrap=["computes"])
    return Table(f"right answers after {name} ({of.slug})", heads, lines)


def _accuracy_cell(found: SeedInterval | None) -> str | Styled:
    """``99.6 ± 0.3 ✓``"""
    if found is None:
        return "not there  "
    text = found.text.removesuffix(" %") + MARKS[found.standing]
    return Styled(text, COLOURS[found.standing])


def _ratio_cell(ratio: SeedInterval | None) -> str:
    """``1.31 [1.25, 1.37]``"""
    if ratio is None:
        return ""
    ends = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.n > 1 else ""
    return f"{ratio.mean:.2f}{ends}"


def recall_lines(found: Evidence) -> list[str]:
    """What did not train, how far a stopped run came, and what the words of the tables mean."""
    lines = list(
        dict.fromkeys(
            f"! {row['variant']}: {row['status'].replace('_', ' ')}: "
            + "; ".join(filter(None, [row["reason"], row["remedy"]]))
            for row in found.rows
            if row["reason"]
        )
    )
    if found.partial:
        lines.append(progress_words(found))
    tasks = [
        f"{of.slug}: {s.keys} keys, {s.values} values, batches of {s.batch}; tested on {s.tests} "
        "sequences of each number of pairs"
        for of in by_setting(found)
        for s in [of.setting]
    ]
    return [
        *tasks,
        *lines,
        f"right answers, ± the farther end of Student's 95 % interval over {seed_words(found)}; "
        f"✓ all of it at {GOAL} or above, ? across it",
        "time: the training's own loop, one thread's on a CPU by the processor's clock, without "
        "looking at the test; state: numbers that the decoder keeps a head: its own memory, or the "
        "keys and values of all tokens, though a pattern may need fewer",
    ]


def seed_words(found: Evidence) -> str:
    """``3 seeds``"""
    seeds = len(found.made["seeds"])
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def progress_words(found: Evidence) -> str:
    """``stopped before its end: 7 of 18 trainings``"""
    trained = sum(bool(row["curve"]) for row in found.rows)
    of = f" of {found.made['trainings']}" if "trainings" in found.made else ""
    return f"stopped before its end: {trained}{of} trainings"
