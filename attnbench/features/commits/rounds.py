"""Two commits in pairs, in several processes, both commits in each.

Where the system put a process's memory makes the same code some hundredths faster or slower for as
long as the process lives. In one process that luck is the same for both commits. So each round
gives one median of log(head/base), and the interval is Student's of these; looks after 4, 8 and 16
rounds share the confidence. What can't be had in one process is measured in two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from msgspec import structs

from attnbench.core import stats
from attnbench.core.checkout import Commit, Repository
from attnbench.core.machine import Machine, pace
from attnbench.core.record import NOT_TRIED
from attnbench.core.stats import Comparison, StopRule, Verdict
from attnbench.core.wire import plain
from attnbench.features.commits.rows import CellPlan
from attnbench.sweep.compare import Compared, corrected, pairs_guess_s
from attnbench.sweep.engine import HoldingWorker, Refused
from attnbench.sweep.plan import Cell

LOOKS = (4, 8, 16)
"""Rounds in all at each look."""
BUDGET_S = 240.0
"""Seconds a cell, its checks included; after that no round begins."""
PAIRS = 80
"""Pairs of a cell in a round: four places in memory."""
USUAL_ROUNDS, ROUND_S = 12, 3.3
"""Rounds that most comparisons take; and seconds of each round's process."""
CALL_TAKES = 12
"""So many times as long as in other pairs, canaries and new places in memory included."""
Open = Callable[[Path], AbstractContextManager[HoldingWorker]]
"""Starts a worker with a folder first on its path."""


# ---- results -------------------------------------------------------------------------------------


class CommitVerdict(StrEnum):
    """The second commit's effect on a cell, the gravest first."""

    WRONG = "wrong"
    LOST = "fails"
    SLOWER = "slower"
    FASTER = "faster"
    MENDED = "works again"
    ADDED = "added"
    UNDECIDED = "can't tell"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    LEFT_OUT = "not measured"


WRONG = ("wrong", "implausible")
"""The statuses that are :attr:`CommitVerdict.WRONG`."""
FINDINGS = (CommitVerdict.WRONG, CommitVerdict.LOST, CommitVerdict.SLOWER)
"""Verdicts that a pull request should not have."""
VERDICTS = {
    Verdict.SLOWER: CommitVerdict.SLOWER,
    Verdict.FASTER: CommitVerdict.FASTER,
    Verdict.EQUIVALENT: CommitVerdict.UNCHANGED,
    Verdict.INCONCLUSIVE: CommitVerdict.UNDECIDED,
}


@dataclass(frozen=True)
class CommitsComparison:
    """Commit b, or head, against commit a, or base."""

    a: Commit
    b: Commit
    changed: Sequence[str]
    """Files that are not the same in both."""
    cells: Sequence[Compared]
    margin: float
    added: Sequence[str] = ()
    """Variants that only b has; where the tables were read."""
    removed: Sequence[str] = ()

    def verdict(self, cell: Compared) -> CommitVerdict:
        """The effect of b on a cell."""
        name = cell.variant.split("?")[0]
        if cell.status in WRONG:
            return CommitVerdict.WRONG
        if cell.comparison is not None:
            return VERDICTS[cell.comparison.verdict]
        if name in self.removed:
            return CommitVerdict.REMOVED
        if not cell.why:
            return CommitVerdict.ADDED if name in self.added else CommitVerdict.MENDED
        spared = cell.status in NOT_TRIED if name in self.added else cell.why_a
        return CommitVerdict.LEFT_OUT if spared else CommitVerdict.LOST

    def judged(self) -> list[tuple[Compared, CommitVerdict]]:
        """All cells with their verdicts, the gravest first."""
        order = list(CommitVerdict)
        rows = [(cell, self.verdict(cell)) for cell in self.cells]
        return sorted(rows, key=lambda row: order.index(row[1]))

    def counts(self) -> dict[str, int]:
        """The number of cells by verdict."""
        verdicts = [verdict for _, verdict in self.judged()]
        return {str(each): verdicts.count(each) for each in CommitVerdict if each in verdicts}

    @property
    def exit_status(self) -> int:
        """1 for a finding; 2 where nothing could be said of any cell."""
        verdicts = set(self.counts())
        if verdicts & set(FINDINGS):
            return 1
        return 0 if verdicts - {CommitVerdict.LEFT_OUT} or self.added or self.removed else 2

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        cells = [{**plain(cell), "said": str(said)} for cell, said in self.judged()]
        values = msgspec.to_builtins(replace(self, cells=()))
        return {**values, "cells": cells, "counts": self.counts()}


# ---- measuring -----------------------------------------------------------------------------------


@dataclass
class CellRounds:
    """A cell, and what its rounds measured."""

    cell: Cell
    a_s: list[float] = field(default_factory=list)
    b_s: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    """Medians of log(b/a), one a round."""
    seconds: float = 0.0
    apart: bool = False
    """It can't be had in one process, and isn't tried there again."""
    result: Compared | None = None

    def add(self, round_: Compared, seconds: float) -> None:
        """A round's result: pairs, or what ends it."""
        self.seconds += seconds
        if (pairs := round_.comparison) is None:
            self.result = round_
            return
        self.a_s += pairs.a_s
        self.b_s += pairs.b_s
        logs = (math.log(b / a) for a, b in zip(pairs.a_s, pairs.b_s, strict=True))
        self.medians.append(statistics.median(logs))

    def look(self, number: int, margin: float, budget_s: float) -> None:
        """Decide after a round if that is a look, or the last one that the budget allows."""
        spent = self.seconds >= budget_s and number >= LOOKS[0]
        if self.result is not None or not (number in LOOKS or spent):
            return
        comparison, stop = judge(self.medians, margin, pairs=len(self.a_s)), "decided"
        if comparison.verdict is Verdict.INCONCLUSIVE:
            stop = "cap" if number == LOOKS[-1] else "budget" if spent else ""
        if stop:
            pairs = structs.replace(comparison, a_s=self.a_s, b_s=self.b_s, stop=stop)
            self.result = _blank(self.cell).with_(comparison=pairs)


def _blank(cell: Cell) -> Compared:
    variant = cell.variant
    return Compared(problem=cell.problem, variant=variant.label, computes=variant.computes)


def compare_in_rounds(
    a: Commit,
    b: Commit,
    plan: CellPlan,
    opened: Open,
    *,
    margin: float,
    repository: Repository,
    budget_s: float = BUDGET_S,
    begins: Callable[[int, int], None] = lambda number, left: None,
    watch: Callable[[Compared], None] = lambda cell: None,
) -> CommitsComparison:
    """Commit b against commit a; ``budget_s`` of pairs a cell, after which no round begins.

    ``begins`` gets a round's number and how many cells have no verdict yet; ``watch`` each cell
    that has one.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(repository.laid_out(commit)) for commit in (a, b)]
        cells = _at_ragged_lengths(plan.ragged, (a, b), folders, opened)
        for cell in cells:
            watch(cell)
        bad = {cell.variant for cell in cells}
        taking = [CellRounds(cell) for cell in plan.cells if cell.variant.label not in bad]
        for number in range(1, LOOKS[-1] + 1):
            if not (left := [one for one in taking if one.result is None]):
                break
            begins(number, len(left))
            _round(left, (a, b), folders, opened, margin, 1 - number % 2)
            for one in left:
                one.look(number, margin, budget_s)
                if one.result is not None:
                    watch(one.result)
    cells += [one.result for one in taking if one.result is not None]
    return CommitsComparison(a, b, plan.changed, corrected(cells), margin, plan.added, plan.removed)


def _at_ragged_lengths(
    cells: Sequence[Cell], commits: Sequence[Commit], folders: Sequence[Path], opened: Open
) -> list[Compared]:
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
    results = []
    for cell in refused.values():  # each in new processes, which nothing has spoiled
        with opened(folders[0]) as base, opened(folders[1]) as head:
            one = compare_cell(cell, commits, [base, head], StopRule(1.0, first=1, cap=1))
        if one.status in WRONG or (one.why and not one.why_a):
            results.append(one)
    return results


def _round(
    left: Sequence[CellRounds],
    commits: Sequence[Commit],
    folders: Sequence[Path],
    opened: Open,
    margin: float,
    host: int,
) -> None:
    """All cells that are left, in a new process; whose own it is changes each time."""
    rule = StopRule(margin, first=PAIRS, cap=PAIRS)
    with opened(folders[host]) as own:
        other = own.beside(folders[1 - host])
        together = [other, own] if host else [own, other]
        for one in left:
            start = perf_counter()
            cell = None if one.apart else compare_cell(one.cell, commits, together, rule)
            if cell is None or (cell.comparison is None and one.cell.left_out is None):
                one.apart = True  # in two processes it shows whose fault it was, if any's
                with ExitStack() as stack:
                    order = (host, 1 - host)
                    workers = {n: stack.enter_context(opened(folders[n])) for n in order}
                    cell = compare_cell(one.cell, commits, [workers[0], workers[1]], rule)
            one.add(cell, perf_counter() - start)


def compare_cell(
    cell: Cell, commits: Sequence[Commit], workers: Sequence[HoldingWorker], rule: StopRule
) -> Compared:
    """One cell, by a worker of each commit: both pass the gate, or there are no pairs.

    The rows are looked up by their text in the commit's own table, which says what it lacks.
    """
    blank = _blank(cell)
    if cell.left_out is not None:
        why, status = cell.left_out.reason, str(cell.left_out.status)
        return blank.with_(why_a=why, why=why, status_a=status, status=status)
    refusals = dict[int, Refused]()
    for number, worker in enumerate(workers):
        try:
            worker.hold(blank.variant, blank.problem)
        except Refused as refused:
            refusals[number] = refused
    if not refusals:
        try:
            return blank.with_(comparison=stats.compare(workers[0], workers[1], rule))
        except Refused as refused:
            refusals[int(refused.by is workers[1])] = refused
    for number, end in ((0, "_a"), (1, "")):
        if refusal := refusals.get(number):
            why = f"commit {commits[number]}: {refusal}"
            blank = blank.with_(**{f"why{end}": why, f"status{end}": refusal.status})
    return blank


def judge(medians: Sequence[float], margin: float, pairs: int) -> Comparison:
    """The verdict of some rounds together, at a look's share of the confidence."""
    n, middle = len(medians), statistics.mean(medians)
    error = max(statistics.stdev(medians) / math.sqrt(n), 1e-9)
    tail, edge = (1 - stats.VERDICT_CONFIDENCE) / len(LOOKS) / 2, math.log1p(margin)
    half = stats.student_quantile(1 - tail, n - 1) * error
    low, high = middle - half, middle + half
    verdict = stats.verdict_of(low, high, edge)
    p = min(1.0, 2 * len(LOOKS) * (1 - stats.student((abs(middle) - edge) / error, n - 1)))
    ratio, low, high = (math.exp(x) for x in (middle, low, high))
    return Comparison(verdict, ratio, low, high, margin, math.expm1(edge + half), pairs, p, True)


def round_s(cells: Sequence[Cell], machine: Machine) -> float:
    """A guess at the seconds of a round: both commits' checks of each cell, then pairs."""
    each = (pairs_guess_s(cell, cell, machine, math.inf, CALL_TAKES * PAIRS) for cell in cells)
    return ROUND_S * pace() + sum(each)
