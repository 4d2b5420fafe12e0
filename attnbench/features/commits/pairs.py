"""One cell of two commits of ``impls`` in pairs, both measured with this checkout's ruler.

Each commit's ``impls`` is laid out in a folder of its own, beside a link to the ``attnbench`` that
runs now, and a worker started with that folder first on its path measures it. The rows are looked
up by their text in the commit's own table, so what a commit has not, it says. Both sides take
turns, a call each, in random order, on the same cores, and get tensors elsewhere again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from attnbench.core.checkout import Commit
from attnbench.core.stats import Comparison, Pairs, Side, StopRule, Verdict, compare, tally
from attnbench.sweep.plan import Cell
from impls.problem import Problem


class Refused(Exception):
    """A commit can't take a cell: why, in a sentence."""

    def __init__(self, why: str, status: str = "") -> None:
        """``status``: that of a record that says the same, where there is one."""
        super().__init__(why)
        self.status = status


class Worker(Protocol):
    """A process that measures one commit."""

    def hold(self, variant: str, problem: Problem) -> Side:
        """A variant ready to be timed, in place of the one before; raises :class:`Refused`."""

    def beside(self, folder: Path) -> Worker:
        """The same process, of another folder."""


Open = Callable[[Path], AbstractContextManager[Worker]]
"""Starts a worker with a folder first on its path."""


@dataclass(frozen=True)
class CommitCell:
    """What became of one cell: pairs, or which commit could not take it."""

    variant: str
    problem: Problem
    pairs: Pairs | None = None
    why_a: str = ""
    why_b: str = ""
    status_a: str = ""
    status_b: str = ""
    """What a record would say of the side that could not take it."""

    @property
    def comparison(self) -> Comparison | None:
        """What the pairs say; None where there are none."""
        return None if self.pairs is None else self.pairs.comparison

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


@dataclass(frozen=True)
class CommitsComparison:
    """What can be said of commit b against commit a."""

    a: Commit
    b: Commit
    changed: tuple[str, ...]
    """Files of ``impls`` that are not the same in both."""
    cells: tuple[CommitCell, ...]
    margin: float

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


def compared(
    cell: Cell, commits: Sequence[Commit], workers: Sequence[Worker], rule: StopRule
) -> CommitCell:
    """One cell, by a worker of each commit: both pass the gate, or there are no pairs."""
    blank = CommitCell(cell.variant.label, cell.problem)
    if cell.left_out is not None:
        reason, ended = cell.left_out.reason, str(cell.left_out.status)
        return replace(blank, why_a=reason, why_b=reason, status_a=ended, status_b=ended)
    sides: list[Side] = []
    why, status = [], []
    for commit, worker in zip(commits, workers, strict=True):
        try:
            sides.append(worker.hold(blank.variant, blank.problem))
            why.append("")
            status.append("")
        except Refused as refused:
            why.append(f"commit {commit}: {refused}")
            status.append(refused.status)
    if any(why):
        return replace(blank, why_a=why[0], why_b=why[1], status_a=status[0], status_b=status[1])
    named = [_Named(side, commit) for side, commit in zip(sides, commits, strict=True)]
    try:
        return replace(blank, pairs=compare(named[0], named[1], rule))
    except _Fell as fell:
        said = f"commit {fell.commit}: {fell}"
        if fell.commit is commits[0]:
            return replace(blank, why_a=said, status_a=fell.status)
        return replace(blank, why_b=said, status_b=fell.status)


class _Fell(Exception):
    """A side that can't go on, and whose it was."""

    def __init__(self, commit: Commit, refused: Refused) -> None:
        super().__init__(str(refused))
        self.commit, self.status = commit, refused.status


class _Named:
    """A side that says whose it is when it can't go on."""

    def __init__(self, side: Side, commit: Commit) -> None:
        self._side, self._commit = side, commit

    def fresh(self) -> None:
        try:
            self._side.fresh()
        except Refused as refused:
            raise _Fell(self._commit, refused) from None

    def sample(self) -> float:
        try:
            return self._side.sample()
        except Refused as refused:
            raise _Fell(self._commit, refused) from None
