"""The options that make a variant fastest on a problem, by pairs against the best so far.

Options that are set together are tried together, one such set after another. The fastest was picked
because it looked best, so pairs of its own against the defaults decide whether it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from attnbench.core.format import counted, key_values, percent
from attnbench.core.machine import Machine
from attnbench.core.stats import Comparison, Verdict
from attnbench.sweep.compare import Compared, compare_cell
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


@dataclass(frozen=True)
class CandidateTrial:
    """Some options against others, in pairs; ``final``: the pairs that decide."""

    options: Options
    against: Options
    compared: Compared
    final: bool = False

    @property
    def comparison(self) -> Comparison | None:
        """The time with the options over the time without; None where there are no pairs."""
        return self.compared.comparison

    @property
    def faster(self) -> bool:
        """Are the options faster by more than the margin?"""
        return self.comparison is not None and self.comparison.verdict is Verdict.FASTER

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        values = self.compared.to_dict()
        return {
            "options": self.options,
            "against": self.against,
            "final": self.final,
            **{name: values[name] for name in ("status", "why", "comparison")},
        }


Ask = Callable[["Tuning", Options, Options, float], Compared]
"""Pairs of some options against others, in so many seconds."""


@dataclass
class Tuning:
    """One variant on one problem: the candidates, and their trials."""

    row: Variant
    problem: Problem
    groups: list[list[Options]]
    """Candidates by the options that they set."""
    trials: list[CandidateTrial] = field(default_factory=list)
    over: bool = False
    """It has ended."""
    cut: bool = False
    """The time was spent before all was tried."""

    @property
    def final(self) -> CandidateTrial | None:
        """The trial that decided; None where no candidate came so far."""
        return next((trial for trial in self.trials if trial.final), None)

    @property
    def best(self) -> Options:
        """The options that are faster than the defaults; none where the defaults stay."""
        return self.final.options if self.final and self.final.faster else {}

    @property
    def ahead(self) -> int:
        """About how many trials are still to come."""
        if self.over:
            return 0
        return max(1, sum(map(len, self.groups)) + 1 - len(self.trials))

    def run(self, ask: Ask, left_s: Callable[[], float]) -> Iterator[CandidateTrial]:
        """Each trial as it ends; no candidate begins when no time is left."""
        best: Options = {}
        for group in self.groups:
            faster = dict[float, Options]()
            for options in ({**best, **each} for each in group):
                if left_s() <= 0:
                    self.cut = True
                    break
                trial = self._trial(ask, options, best, TRIAL_S)
                if trial.faster and trial.comparison:
                    faster[trial.comparison.ratio] = options
                yield trial
            best = faster[min(faster)] if faster else best
        if best:  # however late it is: without this all was for nothing
            yield self._trial(ask, best, {}, FINAL_S, final=True)
        self.over = True

    def _trial(
        self, ask: Ask, options: Options, against: Options, pairs_s: float, *, final: bool = False
    ) -> CandidateTrial:
        trial = CandidateTrial(options, against, ask(self, options, against, pairs_s), final)
        self.trials.append(trial)
        return trial

    def peak_bytes(self, options: Options) -> int | None:
        """Memory with these options by the row's own formula; None where it has none."""
        if self.row.cost is None:
            return None
        cost = load_function(self.row.cost)(self.problem, **{**self.row.chosen, **options})
        peak: int | None = cost.peak_bytes
        return peak

    def sentence(self) -> str:
        """The result."""
        late = "; it ended before all was tried" if self.cut or not self.over else ""
        return self._result() + late

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
        return {
            "problem": self.problem.to_dict(),
            "options": self.best,
            "complete": self.over and not self.cut,
            "sentence": self.sentence(),
            "trials": [trial.to_dict() for trial in self.trials],
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
    return [Tuning(c.variant, c.problem, candidates(row, c.problem)) for c in cells.to_run]


def pairs_by(
    engine: LocalEngine,
    seed: int,
    margin: float | None,
    floors: Sequence[Mapping[str, Any]],
    left_s: Callable[[], float],
) -> Ask:
    """Pairs of a variant with some options and with others, by one worker. Without a margin it is
    the noise floor's; where none is stored, the first trial of a problem measures it.
    """
    margins: dict[Problem, float] = {}

    def ask(tuning: Tuning, options: Options, against: Options, pairs_s: float) -> Compared:
        cells = [cell_of(tuning, each) for each in (options, against)]
        own = margins.get(tuning.problem, margin)
        limit_s = PATIENCE_S + max(0.0, left_s())
        compared = compare_cell(cells[0], cells[1], engine, seed, own, floors, pairs_s, limit_s)
        if not floors and compared.comparison:
            margins[tuning.problem] = compared.comparison.margin
        return compared

    return ask


def cell_of(tuning: Tuning, options: Options) -> Cell:
    """The variant of a tuning with some options."""
    row = tuning.row
    return Cell(replace(row, given={**row.given, **options}), tuning.problem, None, 0.0)


def tune(
    tunings: Sequence[Tuning], ask: Ask, seconds: float
) -> Iterator[tuple[Tuning, CandidateTrial | None]]:
    """One tuning after another, each with its share of the time that is left: every trial, and None
    when the tuning has ended.
    """
    left_s = countdown(seconds)
    for number, tuning in enumerate(tunings):
        own_s = countdown(left_s() / (len(tunings) - number))
        for trial in tuning.run(ask, own_s):
            yield tuning, trial
        yield tuning, None


def countdown(seconds: float) -> Callable[[], float]:
    """The seconds left of so many."""
    until = monotonic() + seconds
    return lambda: until - monotonic()
