"""Two commits in several processes, both in each.

Where the system put a process's memory makes the same code some hundredths faster or slower for as
long as the process lives. In one process that luck is the same for both commits. So each round
gives one median of log(head/base), and the interval is Student's of these; looks after 4, 8 and 16
rounds share the confidence. What can't be had in one process is measured in two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from attnbench.core import stats
from attnbench.core.checkout import Commit, Repository
from attnbench.core.machine import Machine, pace
from attnbench.core.record import NOT_TRIED
from attnbench.core.stats import Comparison, Pairs, StopRule, Verdict
from attnbench.features.commits.pairs import (
    WRONG,
    CommitCell,
    CommitsComparison,
    Open,
    blank_cell,
    compare_cell,
)
from attnbench.features.commits.rows import CellPlan
from attnbench.sweep.engine import Refused
from attnbench.sweep.plan import Cell, call_s, checks_s

LOOKS = (4, 8, 16)
"""Rounds in all at each look."""
BUDGET_S = 240.0
"""Seconds a cell, its checks included; after that no round begins."""
Begins = Callable[[int, Sequence[Cell], Cell], None]
USUAL_ROUNDS, ROUND_S = 12, 3.3
"""Between the second look and the last; and seconds of each round's process."""
PAIRS = 80
"""Of a cell in a round: four places in memory."""
CALL_TAKES = 8.0
"""So many times dense attention's, canaries and new places in memory included."""


@dataclass
class _Taken:
    """A cell, and what the rounds have given of it."""

    cell: Cell
    a_s: list[float] = field(default_factory=list)
    b_s: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    """Of log(b/a), one a round."""
    seconds: float = 0.0
    apart: bool = False
    """It can't be had in one process, and isn't tried there again."""
    ended: CommitCell | None = None


def compare_in_rounds(
    a: Commit,
    b: Commit,
    plan: CellPlan,
    opened: Open,
    *,
    margin: float,
    repository: Repository,
    budget_s: float = BUDGET_S,
    begins: Begins = lambda number, left, cell: None,
    watch: Callable[[CommitCell], None] = lambda cell: None,
) -> CommitsComparison:
    """Commit b against commit a; ``budget_s`` of pairs a cell, after which no round begins.

    ``begins`` is told of a round's number, the cells that have no verdict yet, and the one that is
    next; ``watch`` of each cell that has one.
    """
    found: list[CommitCell] = []
    if any(plan.unreadable):  # none of its rows can be measured
        statuses = ["failed" * bool(why) for why in plan.unreadable]
        names = ("why_a", "why_b", "status_a", "status_b")
        sides: dict[str, Any] = dict(zip(names, [*plan.unreadable, *statuses], strict=True))
        found = [replace(blank_cell(c), **sides) for c in plan.cells]
    else:
        with ExitStack() as stack:
            folders = [stack.enter_context(repository.laid_out(commit)) for commit in (a, b)]
            found = _at_ragged_lengths(plan.ragged, (a, b), folders, opened)
            bad = {cell.variant for cell in found}
            for cell in found:
                watch(cell)
            taken = [_Taken(cell) for cell in plan.cells if cell.variant.label not in bad]
            for number in range(1, LOOKS[-1] + 1):
                left = [one for one in taken if one.ended is None]
                some = [one.cell for one in left]
                if left:
                    begin = partial(begins, number, some)
                    _round(left, (a, b), folders, opened, margin, 1 - number % 2, begin)
                for one in left:
                    spent = one.seconds >= budget_s and number >= LOOKS[0]
                    if one.ended is None and (number in LOOKS or spent):
                        said, stop = judged(one.medians, margin, pairs=len(one.a_s)), "decided"
                        if said.verdict is Verdict.INCONCLUSIVE:
                            stop = "cap" if number == LOOKS[-1] else "budget" if spent else ""
                        if stop:
                            pairs = Pairs(said, one.a_s, one.b_s, stop, (a.name, b.name))
                            one.ended = replace(blank_cell(one.cell), pairs=pairs)
                    if one.ended is not None:
                        watch(one.ended)
        found += [one.ended for one in taken if one.ended is not None]
    every = zip(found, stats.corrected([cell.pairs for cell in found]), strict=True)
    cells = tuple(replace(cell, pairs=pairs) for cell, pairs in every)
    more = tuple(plan.added), tuple(plan.removed)
    return CommitsComparison(a, b, tuple(plan.changed), cells, margin, *more)


def _at_ragged_lengths(
    cells: Sequence[Cell], commits: Sequence[Commit], folders: Sequence[Path], opened: Open
) -> list[CommitCell]:
    """The first of each variant's cells that head is wrong on, or fails on and base does not."""
    refused: dict[str, Cell] = {}
    if cells:
        with opened(folders[1]) as head:
            for cell in cells:
                try:
                    if cell.variant.label not in refused:
                        head.hold(cell.variant.label, cell.problem)
                except Refused as why:
                    if why.status not in NOT_TRIED:
                        refused[cell.variant.label] = cell
    found = []
    for cell in refused.values():  # each in new processes, which nothing has spoiled
        with opened(folders[0]) as base, opened(folders[1]) as head:
            one = compare_cell(cell, commits, [base, head], StopRule(1.0, first=1, cap=1))
        if one.status_b in WRONG or (one.why_b and not one.why_a):
            found.append(one)
    return found


def _round(
    left: Sequence[_Taken],
    commits: Sequence[Commit],
    folders: Sequence[Path],
    opened: Open,
    margin: float,
    host: int,
    begin: Callable[[Cell], None],
) -> None:
    """All cells that are left, in a new process; whose own it is changes each time."""
    rule = StopRule(margin, first=PAIRS, cap=PAIRS)
    with opened(folders[host]) as own:
        other = own.beside(folders[1 - host])
        together = [other, own] if host else [own, other]
        for one in left:
            begin(one.cell)
            start = perf_counter()
            seen = None if one.apart else compare_cell(one.cell, commits, together, rule)
            if seen is None or (seen.pairs is None and one.cell.left_out is None):
                one.apart = True  # in two processes it shows whose fault it was, if any's
                with ExitStack() as stack:
                    order = (host, 1 - host)
                    workers = {n: stack.enter_context(opened(folders[n])) for n in order}
                    seen = compare_cell(one.cell, commits, [workers[0], workers[1]], rule)
            one.seconds += perf_counter() - start
            if seen.pairs is None:
                one.ended = seen
                continue
            a_s, b_s = seen.pairs.a_s, seen.pairs.b_s
            one.a_s += a_s
            one.b_s += b_s
            one.medians.append(
                statistics.median(math.log(y / x) for x, y in zip(a_s, b_s, strict=True))
            )


def guess_s(cell: Cell, machine: Machine) -> float:
    """Of a cell in a round: both commits' are checked, then pairs taken; and of its process."""
    if cell.left_out is not None:
        return 0.0
    checks = 2 * checks_s(cell.variant, cell.problem, machine)
    return checks + 2 * PAIRS * CALL_TAKES * call_s(cell.problem, machine)


def ahead_s(machine: Machine, number: int, left: Sequence[Cell], cell: Cell | None) -> float:
    """A guess at the seconds from a cell of a round on, that cell included."""
    todo = left if cell is None else left[next(n for n, one in enumerate(left) if one is cell) :]
    rest = next(most for most in (USUAL_ROUNDS, *LOOKS) if most >= number) - number
    whole = ROUND_S * pace() + sum(guess_s(one, machine) for one in left)
    return sum(guess_s(one, machine) for one in todo) + rest * whole


def judged(medians: Sequence[float], margin: float, pairs: int) -> Comparison:
    """What some rounds say together, at a look's share of the confidence."""
    n, middle = len(medians), statistics.mean(medians)
    error = max(statistics.stdev(medians) / math.sqrt(n), 1e-9)
    tail, edge = (1 - stats.VERDICT_CONFIDENCE) / len(LOOKS) / 2, math.log1p(margin)
    half = stats.student_quantile(1 - tail, n - 1) * error
    low, high = middle - half, middle + half
    verdict = stats.verdict_of(low, high, edge)
    p = min(1.0, 2 * len(LOOKS) * (1 - stats.student((abs(middle) - edge) / error, n - 1)))
    ratio, low, high = (math.exp(x) for x in (middle, low, high))
    return Comparison(verdict, ratio, low, high, margin, math.expm1(edge + half), pairs, p)
