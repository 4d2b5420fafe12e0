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

import io
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import attnbench
import impls
from attnbench.comparison import Comparison, Verdict, tally
from attnbench.pairs import Pairs, Rule, Side, compare, corrected
from attnbench.sweep.plan import Cell
from impls.asked import CantBeDone
from impls.problem import Problem
from impls.spec import INTERFACE

GIT_LIMIT_S = 60
FIRST = 80
"""Pairs before the first look."""


DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)


class BadCommit(CantBeDone):
    """A commit that can't be measured; a sentence with what to do."""


class Refused(Exception):
    """A commit can't take a cell: why, in a sentence."""

    def __init__(self, why: str, status: str = "") -> None:
        """``status``: that of a record that says the same, where there is one."""
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Commit:
    """A commit as it was asked for, and which one it is."""

    name: str
    sha: str
    subject: str

    def __str__(self) -> str:
        short = self.sha[:7]
        return short if self.sha.startswith(self.name) else f"{short} ({self.name})"


class Worker(Protocol):
    """A process that measures one commit."""

    def hold(self, variant: str, problem: Problem) -> Side:
        """A variant ready to be timed, in place of the one before; raises :class:`Refused`."""


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


def resolve(name: str, root: Path) -> Commit:
    """The commit that a name stands for in the checkout that holds ``impls``."""
    if _git(root, "rev-parse", "--git-dir") is None:
        raise BadCommit(
            f"{root} is no git checkout, so it has no commits to compare; run attnbench from a "
            "clone, or give two run folders or two variants"
        )
    sha = _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if not sha:
        raise BadCommit(
            f"{name!r} is no commit of {root}, nor a run folder, nor a variant; 'git log' there "
            "shows its commits, 'attnbench list' the variants"
        )
    found = sha.decode().strip()
    subject = _git(root, "log", "-1", "--format=%s", found) or b""
    return Commit(name, found, subject.decode(errors="replace").strip())


def changed(a: Commit, b: Commit, root: Path, whole: bool = False) -> list[str]:
    """The files of ``impls``, or of all there are, that two commits have otherwise."""
    where = "." if whole else "impls"
    names = _git(root, "diff", "--name-only", "--relative", a.sha, b.sha, "--", where)
    return (names or b"").decode(errors="replace").splitlines()


@contextmanager
def laid_out(commit: Commit, root: Path, whole: bool = False) -> Iterator[Path]:
    """A folder with the commit's ``impls`` and a link to the ``attnbench`` that runs now.

    ``whole``: with all that the commit holds. It is of a repository of one's own, whose row files
    stand beside the code that they name; ``impls`` is a link too where it has none.
    """
    packed = _git(root, "archive", "--format=zip", commit.sha, *([] if whole else ["impls"]))
    if packed is None:
        raise BadCommit(f"commit {commit} has no folder impls in {root}; give a later one")
    with tempfile.TemporaryDirectory(prefix="attnbench-") as name:
        folder = Path(name)
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            archive.extractall(folder)
        for package in (attnbench, impls)[: 1 + whole]:
            _link(package, folder, instead=package is attnbench)
        _check_interface(commit, folder)
        yield folder


def _link(package: ModuleType, folder: Path, *, instead: bool) -> None:
    """The package that runs now, in place of one that is there or where there is none."""
    here = Path(str(package.__file__)).resolve().parent
    place = folder / here.name
    if place.exists() and instead:
        shutil.rmtree(place)
    if not place.exists():
        place.symlink_to(here)


def _check_interface(commit: Commit, folder: Path) -> None:
    file = folder / "impls" / "spec.py"
    text = file.read_text() if file.exists() else ""
    said = re.search(r"^INTERFACE = (\d+)", text, re.MULTILINE)
    version = int(said[1]) if said else None
    if version != INTERFACE:
        has = "says none" if version is None else f"has version {version}"
        raise BadCommit(
            f"the table of commit {commit} {has} of the contract between table and ruler, and this "
            f"attnbench measures version {INTERFACE}; give a commit that has it"
        )


def _git(root: Path, *words: str) -> bytes | None:
    """What git says; None where it fails."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, timeout=GIT_LIMIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


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
