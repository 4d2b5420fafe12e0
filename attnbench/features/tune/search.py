"""The options that make a variant fastest on a problem, by pairs against the best so far.

Options that are set together are tried together, one such set after another. The fastest was picked
because it looked best, so pairs of its own against the defaults decide whether it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.answer.search import Look, SizeSearch
from attnbench.core.format import counted, key_values, percent
from attnbench.core.machine import Machine, this_machine
from attnbench.core.stats import Comparison, Verdict
from attnbench.core.wire import plain
from attnbench.sweep.compare import Compared, compare_cell, pairs_guess_s
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import Cell, make_plan
from impls import Table
from impls.errors import CantBeDone
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Variant

if TYPE_CHECKING:
    from attnbench.sweep.presets import Preset

TRIAL_S, FINAL_S = 3.0, 10.0
"""Seconds of pairs a candidate, and of those that decide whether the options are kept."""
PATIENCE_S = 60.0
"""A trial may go on so long after all time is spent, before it is given up."""
Options = dict[str, Any]


class Trial(NamedTuple):
    """Some options against others, in pairs; ``final``: the pairs that decide."""

    options: Options
    against: Options
    final: bool
    compared: Compared

    @property
    def comparison(self) -> Comparison | None:
        """The time with the options over the time without; None where there are no pairs."""
        return self.compared.comparison

    @property
    def faster(self) -> bool:
        """Are the options faster by more than the margin?"""
        return self.comparison is not None and self.comparison.verdict is Verdict.FASTER


class Tuning(SizeSearch[Trial]):
    """One variant on one problem: what is searched is its candidates."""

    def __init__(self, row: Variant, problem: Problem, turn: int = 0) -> None:
        """``turn``: problems are tuned one after another."""
        self.groups = candidates(row, problem)
        """Candidates by the options that they set."""
        super().__init__(range(sum(map(len, self.groups)) + 1))
        self.usual = len(self.rungs)
        self.row, self.problem, self.place = row, problem, turn

    @property
    def turn(self) -> int:
        """Its place among the problems."""
        return self.place

    @property
    def trials(self) -> list[Trial]:
        """In the order in which they were made."""
        return [look.result for look in self.looks]

    @property
    def final(self) -> Trial | None:
        """The trial that decided; None where no candidate came so far."""
        return next((trial for trial in self.trials if trial.final), None)

    @property
    def best(self) -> Options:
        """The options that are faster than the defaults; none where the defaults stay."""
        return self.final.options if self.final and self.final.faster else {}

    @property
    def complete(self) -> bool:
        """Was all tried?"""
        tried = sum(not trial.final for trial in self.trials)
        return tried == len(self.rungs) - 1 and self.next() is None

    def next(self, left_s: float = inf) -> int | None:
        """The number of the next trial; None when the search is over. The last is of the best."""
        return len(self.looks) if self.choice(left_s) else None

    def choice(self, left_s: float = inf) -> tuple[Options, Options, bool] | None:
        """The options that are tried next, against which, and whether these pairs decide; where
        there is only time to decide, the best so far.
        """
        if self.final:
            return None
        best, trials = Options(), self.trials
        late = left_s < FINAL_S + 2 * max((look.took_s for look in self.looks), default=0.0)
        for group in self.groups:
            mine, trials = trials[: len(group)], trials[len(group) :]
            faster = {t.comparison.ratio: t.options for t in mine if t.faster and t.comparison}
            if len(mine) < len(group) and not (late and (best or faster)):
                return {**best, **group[len(mine)]}, best, False
            best = faster[min(faster)] if faster else best
        return (best, {}, True) if best else None

    def expect_s(self, size: int) -> float:
        """Nothing: a trial is begun as long as any time is left."""
        return 0.0

    @property
    def due(self) -> bool:
        """What is faster so far has to be decided on: without that all was for nothing."""
        choice = self.choice(0.0)
        return choice is not None and choice[2]

    def guess_s(self, size: int) -> float:
        """A guess at the seconds of a trial."""
        cell = cell_of(self, {})
        return pairs_guess_s(cell, cell, this_machine(), TRIAL_S)

    def words(self, size: int) -> str:
        """A trial in a few words."""
        options, _, _ = self.choice() or ({}, {}, False)
        return f"{cell_of(self, options).variant.label} {self.problem}"

    def peak_bytes(self, options: Options) -> int | None:
        """Memory with these options by the row's own formula; None where it has none."""
        if self.row.cost is None:
            return None
        cost = load_function(self.row.cost)(self.problem, **{**self.row.chosen, **options})
        peak: int | None = cost.peak_bytes
        return peak

    def sentence(self) -> str:
        """The result."""
        return self._result() + ("" if self.complete else "; it ended before all was tried")

    def _result(self) -> str:
        name, final = self.row.label, self.final
        if final and final.faster and (c := final.comparison):
            took = f"{c.ratio:.3f} [{c.low:.3f}, {c.high:.3f}] of the time"
            return f"with {key_values(final.options)} {name} takes {took}, in {c.n} pairs"
        margins = [trial.comparison.margin for trial in self.trials if trial.comparison]
        if not margins:
            return f"nothing is known of {name}: no candidate could be compared"
        why = f"of {counted(len(self.trials), 'candidate')} none is {percent(max(margins))} faster"
        if final:
            why = f"{key_values(final.options)} seemed faster, and was not when tried again"
        return f"{name} keeps its defaults: {why}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        trials = [
            {**plain(t.compared), "options": t.options, "against": t.against, "final": t.final}
            for t in self.trials
        ]
        return {
            "problem": plain(self.problem),
            "options": self.best,
            "complete": self.complete,
            "sentence": self.sentence(),
            "trials": trials,
        }


def candidates(row: Variant, problem: Problem) -> list[list[Options]]:
    """The options to try for a row on a problem, but for its defaults; a list for those that are
    set together.
    """
    groups = []
    for names, values in row.tunes.items():
        several = names.split()
        values = load_function(values)(problem) if isinstance(values, str) else values
        each = (value if len(several) > 1 else (value,) for value in values)
        some = (dict(zip(several, value, strict=True)) for value in each)
        groups.append([x for x in some if any(x[name] != row.options[name] for name in several)])
    return [group for group in groups if group]


def plan(table: Table, name: str, grid: Preset, machine: Machine) -> list[Tuning]:
    """A tuning for each problem of a grid that the variant takes; raises CantBeDone where it has
    nothing to tune, or takes none.
    """
    row = table.find(name)
    if not row.tunes:
        able = ", ".join(each.name for each in table.rows.values() if each.tunes)
        raise CantBeDone(
            f"{row.name} has nothing to tune: no option of it changes its speed alone; these have "
            f"some: {able}"
        )
    if fixed := sorted(row.tunable & row.given.keys()):
        raise CantBeDone(f"{row.label} sets {fixed[0]}, which is to be tuned: leave it out")
    cells = make_plan(table, [name], grid, machine)
    if not cells.to_run:
        first = next(cell.left_out for cell in cells.cells if cell.left_out is not None)
        raise CantBeDone("; ".join(filter(None, [first.reason, first.remedy])))
    return [Tuning(c.variant, c.problem, n) for n, c in enumerate(cells.to_run)]


def pairs_by(
    engine: LocalEngine, seed: int, margin: float | None, floors: Sequence[Mapping[str, Any]]
) -> Callable[[Tuning, int, float], Look[Trial] | None]:
    """A trial, by one worker. Without a margin it is the noise floor's; where none is stored, the
    first trial of a problem measures it.
    """
    margins: dict[Problem, float] = {}

    def ask(tuning: Tuning, number: int, left_s: float) -> Look[Trial] | None:
        if (choice := tuning.choice(left_s)) is None:
            return None
        options, against, final = choice
        cells = [cell_of(tuning, each) for each in (options, against)]
        how = engine, seed, margins.get(tuning.problem, margin), floors
        pairs_s = FINAL_S if final else TRIAL_S
        compared = compare_cell(cells[0], cells[1], *how, pairs_s, PATIENCE_S + max(0.0, left_s))
        if not floors and compared.comparison:
            margins[tuning.problem] = compared.comparison.margin
        return Look(number, Trial(options, against, final, compared), None)

    return ask


def cell_of(tuning: Tuning, options: Options) -> Cell:
    """The variant of a tuning with some options."""
    row = tuning.row
    return Cell(row.with_(given={**row.given, **options}), tuning.problem, None, 0.0)
