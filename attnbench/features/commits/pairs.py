"""One cell of two commits of ``impls`` in pairs, and what comes of comparing all cells.

Each commit's ``impls`` is laid out in a folder of its own, beside a link to the ``attnbench`` that
runs now, and a worker started with that folder first on its path measures it. The rows are looked
up by their text in the commit's own table, so the commit itself reports what it lacks. Both sides
take turns, a call each, in random order, on the same cores, and get tensors at new addresses again
and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from attnbench.core.checkout import Commit
from attnbench.core.record import NOT_TRIED
from attnbench.core.stats import Comparison, Pairs, Side, StopRule, Verdict, compare, tally
from attnbench.sweep.engine import HoldingWorker, Refused
from attnbench.sweep.plan import Cell
from impls.problem import Problem

Open = Callable[[Path], AbstractContextManager[HoldingWorker]]
"""Starts a worker with a folder first on its path."""
T = TypeVar("T")


@dataclass(frozen=True)
class CommitCell:
    """The result of one cell: pairs, or which commit could not take it, and why."""

    variant: str
    problem: Problem
    pairs: Pairs | None = None
    why_a: str = ""
    why_b: str = ""
    status_a: str = ""
    status_b: str = ""
    """The status of a record of the side that could not take it."""

    @property
    def comparison(self) -> Comparison | None:
        """The verdict of the pairs; None where there are none."""
        return None if self.pairs is None else self.pairs.comparison

    @property
    def why(self) -> str:
        """Why there are no pairs, of either side."""
        return "; ".join(dict.fromkeys(filter(None, (self.why_a, self.why_b))))

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        pairs = self.pairs and self.pairs.to_dict()
        return {**vars(self), "problem": self.problem.to_dict(), "pairs": pairs}


class CommitVerdict(StrEnum):
    """What the second commit does to a cell, the gravest first."""

    WRONG = "wrong"
    LOST = "fails"
    WORSE = "worse"
    IMPROVED = "improved"
    MENDED = "works again"
    ADDED = "added"
    UNDECIDED = "can't tell"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    LEFT_OUT = "not measured"


FINDINGS = (CommitVerdict.WRONG, CommitVerdict.LOST, CommitVerdict.WORSE)
"""What a pull request should not do."""
VERDICTS = {
    Verdict.SLOWER: CommitVerdict.WORSE,
    Verdict.FASTER: CommitVerdict.IMPROVED,
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
        if cell.status_b in ("wrong", "implausible"):
            return CommitVerdict.WRONG
        if cell.comparison is not None:
            return VERDICTS[cell.comparison.verdict]
        if name in self.removed:
            return CommitVerdict.REMOVED
        if not cell.why_b:
            return CommitVerdict.ADDED if name in self.added else CommitVerdict.MENDED
        spared = cell.status_b in NOT_TRIED if name in self.added else cell.why_a
        return CommitVerdict.LEFT_OUT if spared else CommitVerdict.LOST

    def judged(self) -> list[tuple[CommitCell, CommitVerdict]]:
        """All cells with their verdicts, the gravest first."""
        order = list(CommitVerdict)
        both = [(cell, self.verdict(cell)) for cell in self.cells]
        return sorted(both, key=lambda each: order.index(each[1]))

    def reason(self, cell: CommitCell) -> str:
        """Why a cell has no pairs; nothing for a variant that was added."""
        if cell.comparison is not None or self.verdict(cell) is CommitVerdict.ADDED:
            return ""
        return cell.why_b or cell.why_a

    def counts(self) -> dict[str, int]:
        """How often each verdict was given."""
        verdicts = [verdict for _, verdict in self.judged()]
        return {str(each): verdicts.count(each) for each in CommitVerdict if each in verdicts}

    def counts_of_pairs(self) -> dict[str, int]:
        """How often each verdict of pairs was given, and how many cells only one commit took."""
        lost = sum(bool(c.why_b) and not c.why_a for c in self.cells)
        won = sum(bool(c.why_a) and not c.why_b for c in self.cells)
        return tally(cell.comparison for cell in self.cells) | {"worse": lost, "better": won}

    @property
    def exit_status(self) -> int:
        """1 for a finding; 2 where nothing could be said of any cell."""
        verdicts = set(self.counts())
        if verdicts & set(FINDINGS):
            return 1
        return 0 if verdicts - {CommitVerdict.LEFT_OUT} or self.added or self.removed else 2

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "a": asdict(self.a),
            "b": asdict(self.b),
            "paired": True,
            "margin": self.margin,
            "changed": list(self.changed),
            "cells": [
                {**cell.to_dict(), "said": str(verdict), "why": self.reason(cell)}
                for cell, verdict in self.judged()
            ],
            "counts": self.counts(),
            "added": list(self.added),
            "removed": list(self.removed),
        }


def compare_cell(
    cell: Cell, commits: Sequence[Commit], workers: Sequence[HoldingWorker], rule: StopRule
) -> CommitCell:
    """One cell, by a worker of each commit: both pass the gate, or there are no pairs."""
    blank = CommitCell(cell.variant.label, cell.problem)
    if cell.left_out is not None:
        reason, ended = cell.left_out.reason, str(cell.left_out.status)
        return replace(blank, why_a=reason, why_b=reason, status_a=ended, status_b=ended)
    sides, refusals = [], dict[int, Refused]()
    for number, worker in enumerate(workers):
        try:
            sides.append(_SideOf(number, worker.hold(blank.variant, blank.problem)))
        except Refused as refused:
            refusals[number] = refused
    if not refusals:
        try:
            return replace(blank, pairs=compare(sides[0], sides[1], rule))
        except Refused:
            refusals = {side.number: side.fell for side in sides if side.fell is not None}
    found: dict[str, Any] = {}
    for number, why in refusals.items():
        letter = "ab"[number]
        found[f"why_{letter}"] = f"commit {commits[number]}: {why}"
        found[f"status_{letter}"] = why.status
    return replace(blank, **found)


@dataclass
class _SideOf:
    """A side that keeps the reason why it could not go on."""

    number: int
    side: Side
    fell: Refused | None = None

    def fresh(self) -> None:
        self._tried(self.side.fresh)

    def sample(self) -> float:
        return self._tried(self.side.sample)

    def _tried(self, do: Callable[[], T]) -> T:
        try:
            return do()
        except Refused as refused:
            self.fell = refused
            raise
