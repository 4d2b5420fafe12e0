"""What models recall: for each setting a table a budget, and what the intervals say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape
from rich.table import Table as Grid

from attnbench.core.format import milliseconds
from attnbench.features.quality.recall import Setting, chance
from attnbench.features.quality.recall_verdicts import (
    GOAL,
    TARGET,
    Recalled,
    SeedInterval,
    TargetStanding,
    TrainingBudget,
    by_setting,
    conclusions,
    recalled,
)
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put

if TYPE_CHECKING:
    from attnbench.core.evidence import Evidence


class Tried(NamedTuple):
    """One setting: everybody in it, and the processor's or the wall's seconds of all trainings."""

    setting: Setting
    found: Sequence[Recalled]
    """The baseline first."""
    seconds: float

    def right(self, each: Recalled) -> float | None:
        """How often somebody is right with the most pairs, after the steps."""
        at = each.accuracy[TrainingBudget.STEPS].get(self.setting.most)
        return at and at.mean


def tried(
    settings: Iterator[tuple[str, Setting, Sequence[Mapping[str, Any]]]], baseline: str
) -> list[Tried]:
    """The settings of a scan, as they were tried."""
    return [
        Tried(
            setting,
            recalled(rows, baseline),
            sum(row["curve"][-1]["seconds"] for row in rows if row["curve"]),
        )
        for _, setting, rows in settings
    ]


def table(scan: Sequence[Tried]) -> Grid:
    """A line a setting."""
    names = list(dict.fromkeys(each.variant for one in scan for each in one.found))
    columns = ["tokens", "width", "rate", *(f"{name}, %" for name in names), "seconds"]
    made = grid(*map(escape, columns), right=columns)
    for one in scan:
        by_name = {each.variant: one.right(each) for each in one.found}
        cells = ["" if (x := by_name.get(name)) is None else f"{100 * x:.1f}" for name in names]
        s = one.setting
        made.add_row(str(s.seq), str(s.width), f"{s.rate:g}", *cells, f"{one.seconds:.0f}")
    return made


def scan_words(scan: Sequence[Tried]) -> list[str]:
    """The settings that tell the baseline from each other; of each width the best of all rates."""
    lines = []
    names = dict.fromkeys(each.variant for one in scan for each in one.found[1:])
    for name in names:
        pairs = [(one, _of(one, name)) for one in scan]
        apart = [
            (one.seconds, one.setting.slug)
            for one, its in pairs
            if its is not None and (one.right(one.found[0]) or 0.0) >= TARGET > its
        ]
        own = scan[0].found[0].variant
        what = f"in which {own} is right {GOAL} of the time or more and {name} is not"
        if apart:
            slugs = ", ".join(slug for _, slug in sorted(apart))
            lines.append(f"settings {what}, the cheapest first: {slugs}")
        else:
            lines.append(f"there is no setting {what}")
        best: dict[tuple[int, int], float] = {}
        for one, its in pairs:
            key = one.setting.seq, one.setting.width
            best[key] = max(best.get(key, 0.0), its or 0.0)
        some = "; ".join(f"width {w} ({n} tokens) {100 * x:.1f} %" for (n, w), x in best.items())
        lines.append(f"at the best of all rates {name} is right: {some}")
    return [*lines, "one seed a setting is a hint, no verdict: ask the setting for its seeds"]


def _of(one: Tried, name: str) -> float | None:
    return next((one.right(each) for each in one.found if each.variant == name), None)


BUSY = 1.1
"""So many times the processor's seconds the wall's are where others had it too."""
MARKS = {TargetStanding.REACHES: " ✓", TargetStanding.SHORT: "  ", TargetStanding.OPEN: " ?"}
COLOURS = {TargetStanding.REACHES: GOOD, TargetStanding.SHORT: BAD, TargetStanding.OPEN: ""}


def show(found: Evidence) -> None:
    """The tables of every setting and their sentences, and what did not train."""
    out, words = console(), said(found)
    if found.made["scan"]:
        put(table(_tried(found)))
        _say(words["scan"])
    else:
        for slug, setting, each in _of_settings(found):
            out.print(f"\n[bold]{escape(slug)}[/]  {escape(_task(setting))}")
            for made in _budgets(found, slug, setting, each):
                out.print()
                put(made)
            _say(words[slug])
    for line in recall_lines(found):
        out.print(escape(line), style=FAINT)


def _say(lines: Sequence[str]) -> None:
    console().print()
    for line in lines:
        console().print(escape(f"{line[0].upper()}{line[1:]}."))


def recall_tables(found: Evidence) -> list[tuple[str, Grid]]:
    """The tables by their titles: of each setting one a budget, or one of a scan."""
    if found.made["scan"]:
        tried = _tried(found)
        return [("settings that were tried", table(tried))] if tried else []
    return [
        (f"right answers after {made.columns[0].header} ({slug})", made)
        for slug, setting, each in _of_settings(found)
        for made in _budgets(found, slug, setting, each)
    ]


def recall_lines(found: Evidence) -> list[str]:
    """What did not train, what was asked, and what the words of the tables mean."""
    return [*_amiss(found.rows), *_foot(found)]


def recall_tasks(found: Evidence) -> list[str]:
    """What was asked in each setting."""
    return [f"{slug}: {_task(setting)}" for slug, setting, _ in settings(found)]


def _of_settings(found: Evidence) -> Iterator[tuple[str, Setting, list[Recalled]]]:
    """Each setting with whoever was trained in it."""
    for slug, setting, some in settings(found):
        each = recalled(some, found.made["baseline"])
        yield slug, setting, [one for one in each if any(one.accuracy.values())]


def _budgets(
    found: Evidence, slug: str, setting: Setting, each: Sequence[Recalled]
) -> Iterator[Grid]:
    """A table after the same steps, and one in the same time where there was one."""
    seconds = found.made["budgets"].get(slug)
    for budget in [TrainingBudget.STEPS] + [TrainingBudget.TIME] * (seconds is not None):
        yield _grid(each, setting, budget, seconds)


def _tried(found: Evidence) -> list[Tried]:
    return tried(settings(found), found.made["baseline"])


def said(found: Evidence) -> dict[str, list[str]]:
    """The sentences, by setting; those of a scan are about all of them."""
    if found.made["scan"]:
        return {"scan": scan_words(_tried(found))}
    return {
        slug: conclusions(each, found.made["baseline"], setting, found.made["budgets"].get(slug))
        for slug, setting, each in _of_settings(found)
    }


def settings(found: Evidence) -> Iterator[tuple[str, Setting, Sequence[Mapping[str, Any]]]]:
    """Each setting with its rows, if the baseline was trained in it at all."""
    for slug, rows in by_setting(found.rows).items():
        if any(row["variant"] == found.made["baseline"] and row["curve"] for row in rows):
            yield slug, Setting.from_dict(rows[0]["setting"]), rows


def _task(setting: Setting) -> str:
    return (
        f"{setting.keys} keys, {setting.values} values, batches of {setting.batch}; tested on "
        f"{setting.tests} sequences of each number of pairs"
    )


def _grid(
    found: Sequence[Recalled], setting: Setting, budget: TrainingBudget, seconds: float | None
) -> Grid:
    """A line a variant; the first table says what a step costs, the second how many there were."""
    steps = budget is TrainingBudget.STEPS
    name = f"{setting.steps:,} steps each" if steps else f"{seconds:.1f} s each"
    columns = [f"{pairs} pairs, %" for pairs in setting.pairs]
    more = ["a step", "to softmax's", "state"] if steps else ["steps"]
    made = grid(name, "computes", *columns, *more, right=[*columns, *more], words=["computes"])
    for each in found:
        cells = [_cell(each, budget, pairs) for pairs in setting.pairs]
        facts = _facts(each) if steps else [_steps(each)]
        made.add_row(escape(each.variant), each.computes, *cells, *facts)
    return made


def _cell(each: Recalled, budget: TrainingBudget, pairs: int) -> str:
    """``99.6 ± 0.3 ✓``"""
    found = each.accuracy[budget].get(pairs)
    if found is None:
        return "not there  "
    standing = each.standing(budget, pairs)
    half = f" ± {100 * found.half:.1f}" if found.n > 1 else ""
    text, colour = f"{100 * found.mean:.1f}{half}{MARKS[standing]}", COLOURS[standing]
    return f"[{colour}]{text}[/]" if colour else text


def _facts(each: Recalled) -> list[str]:
    step = milliseconds(each.step_s.mean) if each.step_s else ""
    state = f"{each.state_numbers:,}" if each.state_numbers is not None else ""
    return [step, _ratio(each.ratio), state]


def _ratio(ratio: SeedInterval | None) -> str:
    """``1.31 [1.25, 1.37]``"""
    if ratio is None:
        return ""
    range_ = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.n > 1 else ""
    return f"{ratio.mean:.2f}{range_}"


def _steps(each: Recalled) -> str:
    return f"{each.steps.mean:,.0f}" if each.steps else ""


def _amiss(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What did not train, or not to its end: each sentence once."""
    said: dict[str, None] = {}
    for row in rows:
        if row["reason"]:
            remedy = f"; {row['remedy']}" if row["remedy"] else ""
            status = row["status"].replace("_", " ")
            said[f"! {row['variant']}: {status}: {row['reason']}{remedy}"] = None
    return list(said)


def _clock(found: Evidence) -> str:
    """Whose seconds they are, and what the wall's were."""
    looks = [row["curve"][-1] for row in found.rows if row["curve"]]
    loops = sum(look["seconds"] for look in looks)
    wall = sum(look["wall_s"] for look in looks) / loops if loops else 1.0
    busy = f" (the wall's were {wall:.1f} times as many: the machine was busy)" * (wall > BUSY)
    return f"the training's own loop, one thread's on a CPU by the processor's clock{busy}"


def _foot(found: Evidence) -> list[str]:
    setting = next((setting for _, setting, _ in settings(found)), None)
    seeds = len(found.made["seeds"])
    lines = [
        f"right answers, ± the farther end of Student's 95 % interval over "
        f"{seeds} seed{'s' * (seeds > 1)}; ✓ all of it at {GOAL} or above, ? across it",
        f"time: {_clock(found)}, without looking at the test; state: numbers that the decoder "
        "keeps a head: its own memory, or the keys and values of all tokens, though a pattern may "
        "need fewer",
    ]
    if found.partial:
        lines.insert(0, part(found))
    if setting is not None:
        guess = ", ".join(f"{chance(p, setting.values):.1%} of {p}" for p in setting.pairs)
        lines.append(f"by chance, knowing the values of a sequence: {guess} pairs")
    return lines


def part(found: Evidence) -> str:
    """How far it came that was stopped: ``stopped before its end: 7 of 18 trainings; …``."""
    trained = [(row["variant"], str(row["setting"])) for row in found.rows if row["curve"]]
    seeds = len(found.made["seeds"])
    whole = sum(trained.count(each) == seeds for each in dict.fromkeys(trained))
    of = f" of {found.made['trainings']}" if "trainings" in found.made else ""
    return (
        f"stopped before its end: {len(trained)}{of} trainings; {whole} of "
        f"{len(set(trained))} that began have all {seeds} seed{'s' * (seeds > 1)}"
    )
