"""Which options make a variant fastest on a problem: candidates in pairs against what holds so far.

Options that are set together are tried together, one such set after another. Each round holds all
candidates left against the best options so far, keeps the better half of those that may be faster,
and gives the next round more pairs. What is left at the end was picked because it looked best, so
pairs of its own against the defaults decide whether it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from attnbench.core.format import counted, key_values, percent
from attnbench.core.machine import Machine
from attnbench.core.stats import Comparison, Verdict
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

FIRST_S, MORE, ROUNDS = 1.0, 3.0, 3
"""Seconds of pairs a candidate in the first round, how many times as many in the next, and the most
rounds."""
FINAL_S = 10.0
"""Seconds of pairs that decide whether the options are kept."""
PATIENCE_S = 60.0
"""How long a trial may go on after all time is spent, before it is given up."""
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
        """Of the time with the options to the time without them; None where there are no pairs."""
        return self.compared.comparison

    @property
    def faster(self) -> bool:
        """Whether the options are faster by more than the margin."""
        return self.comparison is not None and self.comparison.verdict is Verdict.FASTER

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "options": self.options,
            "against": self.against,
            "final": self.final,
            "status": str(self.compared.status),
            "why": self.compared.why,
            "comparison": self.comparison and self.comparison.to_dict(),
        }


Ask = Callable[[Options, Options, float], Compared]
"""Pairs of some options against others, in so many seconds."""


@dataclass
class Tuning:
    """One variant on one problem: what is to be tried, and what came of it."""

    row: Variant
    problem: Problem
    groups: list[list[Options]]
    """Candidates by the options that they set."""
    trials: list[CandidateTrial] = field(default_factory=list)
    over: bool = False
    """Whether it has ended."""
    cut: bool = False
    """Whether the time was spent before all was tried."""

    @property
    def final(self) -> CandidateTrial | None:
        """The trial that decided; None where no candidate came so far."""
        return next((trial for trial in self.trials if trial.final), None)

    @property
    def kept(self) -> Options:
        """The options that are faster than the defaults; none where the defaults stay."""
        return self.final.options if self.final and self.final.faster else {}

    @property
    def ahead(self) -> int:
        """About how many trials are still to come."""
        if self.over:
            return 0
        wanted = sum(len(group) + len(group) // 2 for group in self.groups) + 1
        return max(1, wanted - len(self.trials))

    def run(self, ask: Ask, left_s: Callable[[], float]) -> Iterator[CandidateTrial]:
        """Each trial as it ends; no candidate is begun when no time is left."""
        best: Options = {}
        for group in self.groups:
            hopeful = [{**best, **options} for options in group]
            for number in range(ROUNDS):
                results: list[CandidateTrial] = []
                for options in hopeful:
                    if left_s() <= 0:
                        self.cut = True
                        break
                    compared = ask(options, best, FIRST_S * MORE**number)
                    results.append(CandidateTrial(options, best, compared))
                    self.trials.append(results[-1])
                    yield results[-1]
                left = better_half(results)
                hopeful = [trial.options for trial in left]
                if not left or (len(left) == 1 and left[0].faster) or self.cut:
                    break
            if left and left[0].faster:
                best = left[0].options
            if self.cut:
                break
        if best:  # however late it is: without this all was for nothing
            trial = CandidateTrial(best, {}, ask(best, {}, FINAL_S), final=True)
            self.trials.append(trial)
            yield trial
        self.over = True

    def peak_bytes(self, options: Options) -> int | None:
        """Memory with these options by the row's own formula; None where it has none."""
        if self.row.cost is None:
            return None
        chosen = {**self.row.chosen, **options}
        peak: int | None = load_function(self.row.cost)(self.problem, **chosen).peak_bytes
        return peak

    def sentence(self) -> str:
        """What came of it."""
        late = "; it ended before all was tried" if self.cut or not self.over else ""
        return self._found() + late

    def _found(self) -> str:
        name, final = self.row.label, self.final
        if final and final.faster and (c := final.comparison):
            took = f"{c.ratio:.3f} [{c.low:.3f}, {c.high:.3f}] of the time"
            return f"with {key_values(final.options)} {name} takes {took}, in {c.n} pairs"
        if not any(trial.comparison for trial in self.trials):
            return f"nothing is known of {name}: no candidate could be compared"
        stays = f"{name} keeps its defaults"
        if final:
            return (
                f"{stays}: {key_values(final.options)} seemed faster, and was not when tried again"
            )
        margin = max(t.comparison.margin for t in self.trials if t.comparison)
        tried = len({tuple(trial.options.items()) for trial in self.trials})
        return f"{stays}: of {counted(tried, 'candidate')} none is {percent(margin)} faster"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "problem": self.problem.to_dict(),
            "options": self.kept,
            "complete": self.over and not self.cut,
            "sentence": self.sentence(),
            "trials": [trial.to_dict() for trial in self.trials],
        }


def better_half(results: Sequence[CandidateTrial]) -> list[CandidateTrial]:
    """Those that may be the fastest, the better half of all at the most, the best first."""
    pairs = [(t.comparison, t) for t in results if t.comparison is not None]
    hopeful = [(c, t) for c, t in pairs if c.verdict in (Verdict.FASTER, Verdict.INCONCLUSIVE)]
    least = min((c.high for c, _ in hopeful), default=0.0)
    left = sorted((x for x in hopeful if x[0].low <= least), key=lambda x: x[0].ratio)
    return [trial for _, trial in left[: max(1, len(results) // 2)]]


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
    cells = make_plan(table, [name], grid, machine).cells
    left_out = [cell.left_out for cell in cells if cell.left_out is not None]
    if len(left_out) == len(cells):
        first = left_out[0]
        raise CantBeDone("; ".join(filter(None, [first.reason, first.remedy])))
    some = [cell for cell in cells if cell.left_out is None]
    return [Tuning(cell.variant, cell.problem, candidates(row, cell.problem)) for cell in some]


@dataclass
class CandidatePairs:
    """Pairs of a variant with some options and with others, by one worker."""

    tuning: Tuning
    engine: LocalEngine
    seed: int
    margin: float | None
    """None: the noise floor's. Where none is stored, the first trial measures it."""
    floors: Sequence[Mapping[str, Any]]
    left_s: Callable[[], float]

    def __call__(self, options: Options, against: Options, pairs_s: float) -> Compared:
        """The pairs of one trial, or why there are none."""
        judged, other = (self._cell(each) for each in (options, against))
        limit_s = PATIENCE_S + max(0.0, self.left_s())
        how = self.engine, self.seed, self.margin, self.floors, pairs_s, limit_s
        compared = compare_cell(judged, other, *how)
        if self.margin is None and not self.floors and compared.comparison:
            self.margin = compared.comparison.margin
        return compared

    def _cell(self, options: Options) -> Cell:
        row = self.tuning.row
        return Cell(replace(row, given={**row.given, **options}), self.tuning.problem, None, 0.0)


def guess_s(tuning: Tuning, machine: Machine, *, floor: bool = False) -> float:
    """A guess at the seconds of a trial."""
    cell = Cell(tuning.row, tuning.problem, None, 0.0)
    return pairs_guess_s(cell, cell, machine, FIRST_S, floor=floor)


def tune(
    tunings: Sequence[Tuning],
    server: Callable[[Tuning], Ask],
    seconds: float,
) -> Iterator[tuple[Tuning, CandidateTrial | None]]:
    """One tuning after another, each with its share of the time that is left: every trial, and None
    when the tuning has ended.
    """
    left_s = countdown(seconds)
    for number, tuning in enumerate(tunings):
        own_s = countdown(left_s() / (len(tunings) - number))
        for trial in tuning.run(server(tuning), own_s):
            yield tuning, trial
        yield tuning, None


def countdown(seconds: float) -> Callable[[], float]:
    """How many seconds are left of so many."""
    until = monotonic() + seconds
    return lambda: until - monotonic()
