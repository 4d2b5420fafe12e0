"""Two commits of ``impls`` against each other in pairs, both measured with this checkout's ruler.

Each commit's ``impls`` is laid out in a folder of its own, beside a link to the ``attnbench`` that
runs now, and a worker started with that folder first on its path measures it. The rows are looked
up by their text in the commit's own table, so what a commit has not, it says. The two processes
take turns, a call each, in random order, and on the same cores. What lasts as long as a place in
memory does would pass for a difference between them, so both get tensors elsewhere again and again,
no verdict rests on fewer than four places, and a difference counts only if two other processes show
it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import impls
from attnbench.comparison import Comparison, Verdict, tally
from attnbench.pairs import Pairs, Rule, Side, compare, corrected
from attnbench.sweep.checkout import Commit, changed, laid_out, resolve
from attnbench.sweep.plan import Cell
from impls.problem import Problem

FIRST = 80
"""Pairs before the first look."""


DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)


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
    again: Comparison | None = None
    """The same in two other processes, where the first two seemed to differ."""

    @property
    def comparison(self) -> Comparison | None:
        """What the pairs say; None where there are none."""
        return None if self.pairs is None else self.pairs.comparison

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "variant": self.variant, "problem": self.problem.to_dict(),
            "pairs": self.pairs and self.pairs.to_dict(), "why_a": self.why_a, "why_b": self.why_b,
            "status_a": self.status_a, "status_b": self.status_b,
            "again": self.again and self.again.to_dict(),
        }  # fmt: skip


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
            "a": asdict(self.a), "b": asdict(self.b), "paired": True, "margin": self.margin,
            "changed": list(self.changed), "cells": [c.to_dict() for c in self.cells],
            "counts": self.counts(),
        }  # fmt: skip


def compare_commits(
    a: str, b: str, cells: Sequence[Cell], opened: Open, *, rule: Rule,
    watch: Callable[[CommitCell], None] = lambda cell: None, root: Path | None = None,
    whole: bool = False,
) -> CommitsComparison:  # fmt: skip
    """Commit b against commit a on some cells; raises :class:`BadCommit`.

    ``whole``: of a repository of one's own, see :func:`laid_out`.
    """
    root = root or Path(impls.__file__).parents[1]
    commits = [resolve(name, root) for name in (a, b)]
    rule = replace(rule, first=max(rule.first, FIRST))
    found = []
    with ExitStack() as stack:
        folders = [stack.enter_context(laid_out(commit, root, whole)) for commit in commits]
        workers = [stack.enter_context(opened(folder)) for folder in folders]
        for cell in cells:
            seen = compared(cell, commits, workers, rule)
            if seen.comparison is not None and seen.comparison.verdict in DIFFERENT:
                with ExitStack() as others:
                    workers_again = [others.enter_context(opened(folder)) for folder in folders]
                    seen = _confirmed(seen, compared(cell, commits, workers_again, rule))
            found.append(seen)
            watch(seen)
    files = changed(commits[0], commits[1], root, whole)
    return CommitsComparison(
        commits[0], commits[1], tuple(files), tuple(_together(found)), rule.margin
    )


def compared(cell: Cell, commits: Sequence[Commit], workers: Sequence[Worker],
             rule: Rule) -> CommitCell:  # fmt: skip
    """One cell in one worker of each commit: both pass the gate, or there are no pairs."""
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


def _confirmed(seen: CommitCell, again: CommitCell) -> CommitCell:
    """A difference that other processes do not show is none that can be told."""
    if seen.pairs is None or again.comparison is None:
        return replace(again, pairs=None)
    verdict = seen.pairs.comparison.verdict
    if again.comparison.verdict is not verdict:
        verdict = Verdict.INCONCLUSIVE
    told = replace(seen.pairs.comparison, verdict=verdict)
    return replace(seen, pairs=replace(seen.pairs, comparison=told), again=again.comparison)


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


def _together(cells: Sequence[CommitCell]) -> Iterator[CommitCell]:
    """The cells with Holm's correction over all that have pairs."""
    for cell, pairs in zip(cells, corrected([c.pairs for c in cells]), strict=True):
        yield replace(cell, pairs=pairs)
