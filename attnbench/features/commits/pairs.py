"""What comes of comparing two commits of ``impls`` cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnbench.core.checkout import Commit
from attnbench.core.record import NOT_TRIED
from attnbench.core.stats import StopRule, Verdict, compare
from attnbench.sweep.compare import Compared
from attnbench.sweep.engine import HoldingWorker, Refused
from attnbench.sweep.plan import Cell

Open = Callable[[Path], AbstractContextManager[HoldingWorker]]
"""Starts a worker with a folder first on its path."""


@dataclass(frozen=True)
class CommitCell(Compared):
    """A variant in two commits: pairs, or which commit could not take it, and why."""

    variant: str = ""
    computes: str = ""
    why_a: str = ""
    why_b: str = ""
    status_a: str = ""
    status_b: str = ""
    """The status of a record of the side that could not take it."""


class CommitVerdict(StrEnum):
    """What the second commit does to a cell, the gravest first."""

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
"""The statuses that :attr:`CommitVerdict.WRONG` is given for."""
FINDINGS = (CommitVerdict.WRONG, CommitVerdict.LOST, CommitVerdict.SLOWER)
"""What a pull request should not do."""
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
    changed: tuple[str, ...]
    """Files that are not the same in both."""
    cells: tuple[CommitCell, ...]
    margin: float
    added: tuple[str, ...] = ()
    """Variants that only b has; where the tables were read."""
    removed: tuple[str, ...] = ()

    def verdict(self, cell: CommitCell) -> CommitVerdict:
        """What b does to a cell."""
        name = cell.variant.split("?")[0]
        if cell.status_b in WRONG:
            return CommitVerdict.WRONG
        if cell.comparison is not None:
            return VERDICTS[cell.comparison.verdict]
        if name in self.removed:
            return CommitVerdict.REMOVED
        if not cell.why_b:
            return CommitVerdict.ADDED if name in self.added else CommitVerdict.MENDED
        spared = cell.status_b in NOT_TRIED if name in self.added else cell.why_a
        return CommitVerdict.LEFT_OUT if spared else CommitVerdict.LOST

    def judged(self) -> list[tuple[CommitCell, CommitVerdict, str]]:
        """All cells with their verdicts, the gravest first, and why there are no pairs."""
        order, found = list(CommitVerdict), []
        for cell in self.cells:
            verdict, why = self.verdict(cell), cell.why_b or cell.why_a
            quiet = cell.comparison is not None or verdict is CommitVerdict.ADDED
            found.append((cell, verdict, "" if quiet else why))
        return sorted(found, key=lambda each: order.index(each[1]))

    def counts(self) -> dict[str, int]:
        """How often each verdict was given."""
        verdicts = [verdict for _, verdict, _ in self.judged()]
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
        sides = ("variant", "computes", "why_a", "why_b", "status_a", "status_b")
        cells = []
        for cell, verdict, why in self.judged():
            own = {"problem": cell.problem.to_dict(), "pairs": cell.pairs and cell.pairs.to_dict()}
            both = {name: getattr(cell, name) for name in sides}
            cells.append({**own, **both, "said": str(verdict), "why": why})
        ends = {"a": asdict(self.a), "b": asdict(self.b)}
        return {**vars(self), **ends, "paired": True, "cells": cells, "counts": self.counts()}


def blank_cell(cell: Cell) -> CommitCell:
    """A cell of which nothing is known yet."""
    return CommitCell(cell.problem, variant=cell.variant.label, computes=cell.variant.computes)


def compare_cell(
    cell: Cell, commits: Sequence[Commit], workers: Sequence[HoldingWorker], rule: StopRule
) -> CommitCell:
    """One cell, by a worker of each commit: both pass the gate, or there are no pairs.

    The rows are looked up by their text in the commit's own table, which says what it lacks.
    """
    blank = blank_cell(cell)
    if cell.left_out is not None:
        why, status = cell.left_out.reason, str(cell.left_out.status)
        return replace(blank, why=why, why_a=why, why_b=why, status_a=status, status_b=status)
    sides, refusals = [], dict[int, Refused]()
    for number, worker in enumerate(workers):
        try:
            sides.append(worker.hold(blank.variant, blank.problem))
        except Refused as refused:
            refusals[number] = refused
    if not refusals:
        try:
            return replace(blank, pairs=compare(sides[0], sides[1], rule))
        except Refused as refused:
            refusals[int(refused.by is workers[1])] = refused
    whys = {number: f"commit {commits[number]}: {why}" for number, why in refusals.items()}
    found: dict[str, Any] = {"why": "; ".join(dict.fromkeys(whys.values()))}
    for number, why in whys.items():
        letter = "ab"[number]
        found |= {f"why_{letter}": why, f"status_{letter}": refusals[number].status}
    return replace(blank, **found)
