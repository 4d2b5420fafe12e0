"""What recall trainings show: intervals over seeds, tables, and sentences.

An accuracy is the mean over seeds, with Student's 95 % interval. A variant **reaches** the target
where the whole interval is at or above it, and **falls short** where all of it is below; otherwise
it can't be told. The same steps and the same time are two questions with answers of their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape

from attnbench.core.format import milliseconds
from attnbench.core.stats import CONFIDENCE, student_quantile
from attnbench.features.quality.recall import Setting, chance
from attnbench.report.tables import BAD, FAINT, GOOD, Styled, Table, columns, console, show

if TYPE_CHECKING:
    from attnbench.core.evidence import Evidence


TARGET = 0.99
GOAL = "99 %"
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
        if self.n == 1:
            return _percent(self.mean)
        return f"{100 * self.mean:.1f} ± {100 * self.half:.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def seed_interval(values: Sequence[float]) -> SeedInterval | None:
    """Student's; None of no values."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return SeedInterval(mean, -math.inf, math.inf, 1)
    half = student_quantile((1 + CONFIDENCE) / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    return SeedInterval(mean, mean - half, mean + half, n)


def share_interval(values: Sequence[float]) -> SeedInterval | None:
    """That of shares, which lie between 0 and 1."""
    found = seed_interval(values)
    if found is None or found.n == 1:
        return found
    return found._replace(low=max(0.0, found.low), high=min(1.0, found.high))


def checkpoint_of(row: Row, budget: TrainingBudget) -> Row | None:
    """The checkpoint of a training at which its budget was over; None where it never was."""
    for look in row["curve"]:
        steps_over = look["step"] == row["setting"]["steps"]
        if look["in_time"] if budget is TrainingBudget.TIME else steps_over:
            return dict(look)
    return None


Accuracies = dict[int, SeedInterval]
"""By number of pairs."""


@dataclass(frozen=True)
class RecallResult:
    """A variant in one setting, over its seeds."""

    variant: str
    computes: str
    family: str
    state_numbers: int | None
    accuracy: Mapping[TrainingBudget, Accuracies]
    steps: SeedInterval | None
    """Taken in the same time."""
    step_s: SeedInterval | None
    ratio: SeedInterval | None
    """Of a step's time to the baseline's, seed by seed: the mean of logarithms, and back."""
    gained: Accuracies
    """The accuracy in the same time less that after the same steps."""

    @property
    def best(self) -> float:
        """The mean accuracy with the most pairs after the steps; -1 where there is none."""
        accuracies = self.accuracy[TrainingBudget.STEPS]
        return accuracies[max(accuracies)].mean if accuracies else -1.0

    def standing(self, budget: TrainingBudget, pairs: int) -> TargetStanding:
        """Where it stands to the target; open where it has no accuracy."""
        found = self.accuracy[budget].get(pairs)
        return TargetStanding.OPEN if found is None else found.standing


def recall_results(rows: Sequence[Row], baseline: str) -> list[RecallResult]:
    """The variants of one setting: the baseline, then those that recall most pairs best."""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    own = {row["seed"]: row for row in rows if row["variant"] == baseline}
    results = [_result([r for r in rows if r["variant"] == name], own) for name in names]
    return sorted(results, key=lambda each: (each.variant != baseline, -each.best))


def _result(rows: Sequence[Row], baseline: Mapping[int, Row]) -> RecallResult:
    looks = {
        budget: [look for row in rows if (look := checkpoint_of(row, budget))]
        for budget in TrainingBudget
    }
    pairs = sorted({int(p) for row in rows for p in row["setting"]["pairs"]})
    step_s, log_ratios = [], []
    gained: dict[int, list[float]] = {p: [] for p in pairs}
    for row in rows:
        if mine := _step_s(row):
            step_s.append(mine)
            if other := _step_s(baseline.get(row["seed"])):
                log_ratios.append(math.log(mine / other))
        steps, time = (checkpoint_of(row, budget) for budget in TrainingBudget)
        if steps and time:
            for p, share in steps["accuracy"].items():
                gained[int(p)].append(time["accuracy"][p] - share)
    return RecallResult(
        rows[0]["variant"],
        rows[0]["computes"],
        rows[0]["family"],
        next((r["state_numbers"] for r in rows if r["state_numbers"] is not None), None),
        {
            budget: _intervals({p: [look["accuracy"][str(p)] for look in some] for p in pairs})
            for budget, some in looks.items()
        },
        seed_interval([look["step"] for look in looks[TrainingBudget.TIME]]),
        seed_interval(step_s),
        _exponential(seed_interval(log_ratios)),
        {p: found for p, some in gained.items() if (found := seed_interval(some))},
    )


def _intervals(shares: Mapping[int, Sequence[float]]) -> Accuracies:
    return {p: found for p, some in shares.items() if (found := share_interval(some))}


def _exponential(logs: SeedInterval | None) -> SeedInterval | None:
    if logs is None:
        return None
    mean, low, high = (math.exp(x) if x < 700 else math.inf for x in logs[:3])
    return SeedInterval(mean, low, high, logs.n)


def _step_s(row: Row | None) -> float | None:
    """The median time of a training's steps."""
    return float(row["curve"][-1]["step_s"]) if row and row["curve"] else None


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
        both = [TrainingBudget.STEPS, TrainingBudget.TIME]
        return both if self.seconds is not None else both[:1]

    @property
    def took_s(self) -> float:
        """Seconds of all trainings, of the processor or of the wall."""
        return sum(row["curve"][-1]["seconds"] for row in self.rows if row["curve"])

    def accuracy(self, variant: str) -> float | None:
        """Of a variant with the most pairs, after the steps."""
        for each in self.results:
            if each.variant == variant:
                found = each.accuracy[TrainingBudget.STEPS].get(self.setting.most)
                return found and found.mean
        return None


def by_setting(found: Evidence) -> list[SettingResults]:
    """The settings in which the baseline was trained at all."""
    baseline = found.made["baseline"]
    settings: dict[str, list[Row]] = {}
    for row in found.rows:
        settings.setdefault(Setting.from_dict(row["setting"]).slug, []).append(row)
    made = []
    for slug, rows in settings.items():
        if any(row["variant"] == baseline and row["curve"] for row in rows):
            setting, seconds = (
                Setting.from_dict(rows[0]["setting"]),
                found.made["budgets"].get(slug),
            )
            results = [x for x in recall_results(rows, baseline) if any(x.accuracy.values())]
            made.append(SettingResults(slug, setting, rows, results, baseline, seconds))
    return made


def recall_conclusions(found: Evidence) -> dict[str, list[str]]:
    """The sentences, by setting; those of a scan are about all settings."""
    settings = by_setting(found)
    if found.made["scan"]:
        return {"scan": _conclude_scan(settings)}
    return {each.slug: conclude_setting(each) for each in settings}


def conclude_setting(of: SettingResults) -> list[str]:
    """The sentences of one setting; only one where nothing can be concluded."""
    if of.baseline not in [each.variant for each in of.results]:
        return [f"the baseline {of.baseline} was not trained to its end: nothing is concluded"]
    accuracies = [some for each in of.results for some in each.accuracy.values()]
    if all(found.n < 2 for some in accuracies for found in some.values()):
        return ["one seed gives no interval: nothing is concluded; --seeds 3 gives one"]
    sentences = [_conclude_standings(of, budget) for budget in of.budgets]
    sentences += [_conclude_capacity(of, budget) for budget in of.budgets]
    return [*sentences, *_conclude_time(of), *_conclude_state(of)]


def _budget_words(of: SettingResults, budget: TrainingBudget) -> str:
    if budget is TrainingBudget.STEPS:
        return f"after the same {of.setting.steps:,} steps"
    return f"in the same time ({of.seconds:.1f} s)"


def _hardest(of: SettingResults, budget: TrainingBudget) -> int | None:
    """The most pairs at which the baseline reaches the target."""
    (own,) = (each for each in of.results if each.variant == of.baseline)
    return max(pairs_at(own, budget, TargetStanding.REACHES), default=None)


def pairs_at(each: RecallResult, budget: TrainingBudget, standing: TargetStanding) -> list[int]:
    """The numbers of pairs with which a variant stands so to the target."""
    return [p for p, found in each.accuracy[budget].items() if found.standing is standing]


VERBS = {
    TargetStanding.REACHES: (f"reaches {GOAL}", f"reach {GOAL}"),
    TargetStanding.SHORT: ("falls short of it", "fall short of it"),
    TargetStanding.OPEN: ("can't be told", "can't be told"),
}


def _conclude_standings(of: SettingResults, budget: TrainingBudget) -> str:
    """All variants where the baseline is still known to reach the target."""
    when, pairs = _budget_words(of, budget), _hardest(of, budget)
    if pairs is None:
        return (
            f"{when} {of.baseline} itself is not known to reach {GOAL} with any number of pairs: "
            "what the others lack says nothing of them; more --steps, or fewer --pairs"
        )
    parts = []
    for standing, (verb, verb_many) in VERBS.items():
        names = [
            f"{each.variant} ({each.accuracy[budget][pairs].text})"
            for each in of.results
            if pairs in pairs_at(each, budget, standing)
        ]
        if names:
            parts.append(f"{verb if len(names) == 1 else verb_many}: {', '.join(names)}")
    by_chance = _percent(chance(pairs, of.setting.values))
    return f"{when}, with {pairs} pairs (by chance {by_chance}): {'; '.join(parts)}"


def _conclude_capacity(of: SettingResults, budget: TrainingBudget) -> str:
    """The numbers of pairs with which each reaches the target, and with which it may."""
    parts = []
    for each in of.results:
        if each.accuracy[budget]:
            reached = pairs_at(each, budget, TargetStanding.REACHES)
            part = f"{each.variant} {', '.join(map(str, reached)) or 'none'}"
            if perhaps := pairs_at(each, budget, TargetStanding.OPEN):
                part += f", perhaps {', '.join(map(str, perhaps))}"
            parts.append(part)
    return f"{_budget_words(of, budget)}, pairs recalled to {GOAL}: {'; '.join(parts)}"


def _conclude_time(of: SettingResults) -> Iterator[str]:
    """What recalls more or less in the same time than after the same steps, seed by seed."""
    if of.seconds is None:
        return
    pairs, gained = of.setting.most, []
    for each in of.results:
        by = each.gained.get(pairs)
        if by is not None and by.n > 1 and (by.low > 0 or by.high < 0):
            more = "more" if by.mean > 0 else "fewer"
            points = f"{100 * abs(by.mean):.1f} ± {100 * by.half:.1f} points {more}"
            gained.append(f"{each.variant} {points}")
    rest = "of the others no difference is known" if gained else "of nobody a difference is known"
    yield (
        f"with {pairs} pairs the same time gives other than the same steps: "
        f"{'; '.join([*gained, rest])}"
    )


def _conclude_state(of: SettingResults) -> Iterator[str]:
    """What needs the fewest numbers for what the baseline recalls."""
    pairs = _hardest(of, TrainingBudget.STEPS)
    if pairs is None:
        return
    reach = {
        each.variant: each.state_numbers
        for each in of.results
        if each.standing(TrainingBudget.STEPS, pairs) is TargetStanding.REACHES
        and each.state_numbers is not None
    }
    if (own := reach.get(of.baseline)) is None:
        return
    least, name = min((numbers, name) for name, numbers in reach.items())
    keeps = f"{own:,} numbers a head after {of.setting.seq} tokens"
    if len(reach) == 1:
        yield f"only {of.baseline} is known to reach {GOAL} with {pairs} pairs; it keeps {keeps}"
    elif least < own:
        yield (
            f"of those that reach {GOAL} with {pairs} pairs {name} keeps least: {least:,} numbers "
            f"a head; {of.baseline} keeps {keeps}"
        )
    else:
        yield f"nobody reaches {GOAL} with {pairs} pairs and keeps less than {of.baseline}: {keeps}"


def _conclude_scan(scan: Sequence[SettingResults]) -> list[str]:
    """The settings that tell the baseline from each other; of each width the best of all rates."""
    lines = []
    names = dict.fromkeys(each.variant for of in scan for each in of.results)
    for name in [name for name in names if name != scan[0].baseline]:
        apart, best = [], dict[tuple[int, int], float]()
        for of in scan:
            its = of.accuracy(name)
            if its is not None and (of.accuracy(of.baseline) or 0.0) >= TARGET > its:
                apart.append((of.took_s, of.slug))
            key = of.setting.seq, of.setting.width
            best[key] = max(best.get(key, 0.0), its or 0.0)
        what = f"in which {scan[0].baseline} is right {GOAL} of the time or more and {name} is not"
        if apart:
            slugs = ", ".join(slug for _, slug in sorted(apart))
            lines.append(f"settings {what}, the cheapest first: {slugs}")
        else:
            lines.append(f"there is no setting {what}")
        widths = "; ".join(f"width {w} ({n} tokens) {_percent(x)}" for (n, w), x in best.items())
        lines.append(f"at the best of all rates {name} is right: {widths}")
    return [*lines, "one seed a setting is a hint, no verdict: ask the setting for its seeds"]


BUSY = 1.1
"""From so many times the processor's seconds on, the wall's show that the machine was busy."""
MARKS = {TargetStanding.REACHES: " ✓", TargetStanding.SHORT: "  ", TargetStanding.OPEN: " ?"}
COLOURS = {TargetStanding.REACHES: GOOD, TargetStanding.SHORT: BAD}


def show_recall(found: Evidence) -> None:
    """Print the tables of every setting and their sentences, and what did not train."""
    out, conclusions = console(), recall_conclusions(found)
    settings = by_setting(found)
    if found.made["scan"]:
        show(replace(_scan_table(settings), title=""))
        _print_sentences(conclusions["scan"])
    else:
        for of in settings:
            out.print(f"\n[bold]{escape(of.slug)}[/]  {escape(_task(of.setting))}")
            for budget in of.budgets:
                out.print()
                show(replace(_budget_table(of, budget), title=""))
            _print_sentences(conclusions[of.slug])
    for line in recall_lines(found):
        out.print(escape(line), style=FAINT)


def _print_sentences(lines: Sequence[str]) -> None:
    console().print()
    for line in lines:
        console().print(escape(f"{line[0].upper()}{line[1:]}."))


def recall_tables(found: Evidence) -> list[Table]:
    """Of each setting one a budget, or one of a scan."""
    settings = by_setting(found)
    if found.made["scan"]:
        return [_scan_table(settings)] if settings else []
    return [_budget_table(of, budget) for of in settings for budget in of.budgets]


def recall_tasks(found: Evidence) -> list[str]:
    """The task of each setting."""
    return [f"{of.slug}: {_task(of.setting)}" for of in by_setting(found)]


def _task(setting: Setting) -> str:
    return (
        f"{setting.keys} keys, {setting.values} values, batches of {setting.batch}; tested on "
        f"{setting.tests} sequences of each number of pairs"
    )


def _scan_table(scan: Sequence[SettingResults]) -> Table:
    """A line a setting."""
    names = list(dict.fromkeys(each.variant for of in scan for each in of.results))
    heads = ["tokens", "width", "rate", *(f"{name}, %" for name in names), "seconds"]
    lines = []
    for of in scan:
        shares = [of.accuracy(name) for name in names]
        cells = ["" if x is None else f"{100 * x:.1f}" for x in shares]
        s = of.setting
        lines.append((s.seq, s.width, f"{s.rate:g}", *cells, f"{of.took_s:.0f}"))
    return Table("settings that were tried", columns(*heads, right=heads), lines)


def _budget_table(of: SettingResults, budget: TrainingBudget) -> Table:
    """A line a variant; after the steps with a step's cost, in the same time with the steps."""
    right = [f"{pairs} pairs, %" for pairs in of.setting.pairs]
    if budget is TrainingBudget.STEPS:
        name, more = f"{of.setting.steps:,} steps each", ["a step", "to softmax's", "state"]
    else:
        name, more = f"{of.seconds:.1f} s each", ["steps"]
    right += more
    lines = []
    for each in of.results:
        cells: list[str | Styled]
        cells = [_accuracy_cell(each.accuracy[budget].get(pairs)) for pairs in of.setting.pairs]
        if budget is TrainingBudget.STEPS:
            step = milliseconds(each.step_s.mean) if each.step_s else ""
            state = f"{each.state_numbers:,}" if each.state_numbers is not None else ""
            cells += [step, _ratio_cell(each.ratio), state]
        else:
            cells.append(f"{each.steps.mean:,.0f}" if each.steps else "")
        lines.append((each.variant, each.computes, *cells))
    heads = columns(name, "computes", *right, right=right, wrap=["computes"])
    return Table(f"right answers after {name} ({of.slug})", heads, lines)


def _accuracy_cell(found: SeedInterval | None) -> str | Styled:
    """``99.6 ± 0.3 ✓``"""
    if found is None:
        return "not there  "
    half = f" ± {100 * found.half:.1f}" if found.n > 1 else ""
    text = f"{100 * found.mean:.1f}{half}{MARKS[found.standing]}"
    return Styled(text, COLOURS.get(found.standing, ""))


def _ratio_cell(ratio: SeedInterval | None) -> str:
    """``1.31 [1.25, 1.37]``"""
    if ratio is None:
        return ""
    ends = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.n > 1 else ""
    return f"{ratio.mean:.2f}{ends}"


def recall_lines(found: Evidence) -> list[str]:
    """What did not train, how far a stopped run came, and what the words of the tables mean."""
    problems: dict[str, None] = {}
    for row in found.rows:
        if row["reason"]:
            remedy = f"; {row['remedy']}" if row["remedy"] else ""
            status = row["status"].replace("_", " ")
            problems[f"! {row['variant']}: {status}: {row['reason']}{remedy}"] = None
    lines = list(problems)
    if found.partial:
        lines.append(progress_words(found))
    lines += [
        f"right answers, ± the farther end of Student's 95 % interval over {_seeds(found)}; ✓ all "
        f"of it at {GOAL} or above, ? across it",
        f"time: {_clock_words(found)}, without looking at the test; state: numbers that the "
        "decoder keeps a head: its own memory, or the keys and values of all tokens, though a "
        "pattern may need fewer",
    ]
    if settings := by_setting(found):
        setting = settings[0].setting
        shares = ", ".join(f"{chance(p, setting.values):.1%} of {p}" for p in setting.pairs)
        lines.append(f"by chance, knowing the values of a sequence: {shares} pairs")
    return lines


def _seeds(found: Evidence) -> str:
    seeds = len(found.made["seeds"])
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def _clock_words(found: Evidence) -> str:
    looks = [row["curve"][-1] for row in found.rows if row["curve"]]
    loops = sum(look["seconds"] for look in looks)
    wall = sum(look["wall_s"] for look in looks) / loops if loops else 1.0
    busy = f" (the wall's were {wall:.1f} times as many: the machine was busy)"
    own = "the training's own loop, one thread's on a CPU by the processor's clock"
    return own + busy if wall > BUSY else own


def progress_words(found: Evidence) -> str:
    """``stopped before its end: 7 of 18 trainings; 1 of 3 that began have all 3 seeds``"""
    trained = [(row["variant"], str(row["setting"])) for row in found.rows if row["curve"]]
    seeds = len(found.made["seeds"])
    begun = set(trained)
    whole = sum(trained.count(each) == seeds for each in begun)
    of = f" of {found.made['trainings']}" if "trainings" in found.made else ""
    return (
        f"stopped before its end: {len(trained)}{of} trainings; {whole} of {len(begun)} that began "
        f"have all {_seeds(found)}"
    )
