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
from typing import Any, Protocol

from attnbench.core.checkout import Commit
from attnbench.core.record import NOT_TRIED
from attnbench.core.stats import Comparison, Pairs, Side, StopRule, Verdict, compare, tally
from attnbench.sweep.holding import Refused
from attnbench.sweep.plan import Cell
from impls.problem import Problem


class CommitWorker(Protocol):
    """A process that measures one commit."""

    def hold(self, variant: str, problem: Problem) -> Side:
        """A variant ready to be timed, in place of the one before; raises :class:`Refused`."""

    def beside(self, folder: Path) -> CommitWorker:
        """The same process, of another folder."""


Open = Callable[[Path], AbstractContextManager[CommitWorker]]
"""Starts a worker with a folder first on its path."""


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
        return {
            "variant": self.variant,
            "problem": self.problem.to_dict(),
            "pairs": self.pairs and self.pairs.to_dict(),
            "why_a": self.why_a,
            "why_b": self.why_b,
            "status_a": self.status_a,
            "status_b": self.status_b,
        }


class CommitVerdict(StrEnum):
    """The verdict on a cell of a pull request, the gravest first."""

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
    """Commit b against commit a."""

    a: Commit
    b: Commit
    changed: tuple[str, ...]
    """Files that are not the same in both."""
    cells: tuple[CommitCell, ...]
    margin: float
    added: tuple[str, ...] = ()
    """Variants that only b has; where the tables were read."""
    removed: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """How often each verdict was given, and how many cells only one of them took."""
        lost = sum(bool(c.why_b) and not c.why_a for c in self.cells)
        won = sum(bool(c.why_a) and not c.why_b for c in self.cells)
        return tally(cell.comparison for cell in self.cells) | {"worse": lost, "better": won}

    @property
    def exit_status(self) -> int:
        """1 where b is slower or can't take what a took; 2 where nothing could be compared."""
        counts = self.counts()
        if counts[Verdict.SLOWER] or counts["worse"]:
            return 1
        return 0 if any(counts.values()) else 2

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "a": asdict(self.a),
            "b": asdict(self.b),
            "paired": True,
            "margin": self.margin,
            "changed": list(self.changed),
            "cells": [c.to_dict() for c in self.cells],
            "counts": self.counts(),
        }


class PullRequest(CommitsComparison):
    """The same as a review of head (b) against base (a), with a verdict on each cell."""

    def verdict(self, cell: CommitCell) -> CommitVerdict:
        """What head does to a cell."""
        name = cell.variant.split("?")[0]
        if cell.status_b in ("wrong", "implausible"):
            return CommitVerdict.WRONG
        if cell.comparison is not None:
            return VERDICTS[cell.comparison.verdict]
        if name in self.removed:
            return CommitVerdict.REMOVED
        if not cell.why_b:
            return CommitVerdict.ADDED if name in self.added else CommitVerdict.MENDED
        if name in self.added:
            unavailable = cell.status_b in NOT_TRIED
            return CommitVerdict.LEFT_OUT if unavailable else CommitVerdict.LOST
        return CommitVerdict.LEFT_OUT if cell.why_a else CommitVerdict.LOST

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

    @property
    def exit_status(self) -> int:
        """1 for a finding; 2 where nothing could be said of any cell."""
        verdicts = {verdict for _, verdict in self.judged()}
        if verdicts & set(FINDINGS):
            return 1
        return 0 if verdicts - {CommitVerdict.LEFT_OUT} or self.added or self.removed else 2

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        cells = [
            {**cell.to_dict(), "said": str(verdict), "why": self.reason(cell)}
            for cell, verdict in self.judged()
        ]
        more = {"cells": cells, "added": list(self.added), "removed": list(self.removed)}
        return {**super().to_dict(), **more}


def compare_cell(
    cell: Cell, commits: Sequence[Commit], workers: Sequence[CommitWorker], rule: StopRule
) -> CommitCell:
    """One cell, by a worker of each commit: both pass the gate, or there are no pairs."""
    blank = CommitCell(cell.variant.label, cell.problem)
    if cell.left_out is not None:
        reason, ended = cell.left_out.reason, str(cell.left_out.status)
        return replace(blank, why_a=reason, why_b=reason, status_a=ended, status_b=ended)
    sides: list[_SideOf] = []
    why, status = ["", ""], ["", ""]
    for number, worker in enumerate(workers):
        try:
            sides.append(_SideOf(number, worker.hold(blank.variant, blank.problem)))
        except Refused as refused:
            why[number], status[number] = f"commit {commits[number]}: {refused}", refused.status
    if not any(why):
        try:
            return replace(blank, pairs=compare(sides[0], sides[1], rule))
        except _Fell as fell:
            why[fell.number] = f"commit {commits[fell.number]}: {fell}"
            status[fell.number] = fell.status
    return replace(blank, why_a=why[0], why_b=why[1], status_a=status[0], status_b=status[1])


class _Fell(Exception):
    """A side that can't go on, and which it was."""

    def __init__(self, number: int, refused: Refused) -> None:
        super().__init__(str(refused))
        self.number, self.status = number, refused.status


class _SideOf:
    """A side that raises :class:`_Fell` where it can't go on."""

    def __init__(self, number: int, side: Side) -> None:
        self._number, self._side = number, side

    def fresh(self) -> None:
        try:
            self._side.fresh()
        except Refused as refused:
            raise _Fell(self._number, refused) from None

    def sample(self) -> float:
        try:
            return self._side.sample()
        except Refused as refused:
            raise _Fell(self._number, refused) from None
