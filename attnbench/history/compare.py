"""What a pull request does to the variants: two commits in pairs, and a word for each cell.

Which variants there are, each commit says itself. Every cell passes the gate in both before a pair
is taken, so what is wrong is never called faster; what can't be imported costs its own rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnbench.comparison import Verdict
from attnbench.machine import Machine
from attnbench.record import NOT_TRIED
from attnbench.sweep.checkout import Commit, changed, laid_out
from attnbench.sweep.commits import CommitCell, CommitsComparison, Open
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import Preset
from attnbench.sweep.rounds import compare_in_rounds
from impls import Table, UnknownVariant
from impls.asked import CantBeDone
from impls.options import InvalidRow
from impls.spec import Variant

READ_LIMIT_S = 120
READ = """
import json, sys
from pathlib import Path
from impls import table
rows = table(sys.argv[2:]).rows.values()
with open(sys.argv[1], "w") as file:
    json.dump([row.to_dict() for row in rows], file)
"""
"""Run where a commit lies: its rows, as data."""


class NothingToCompare(CantBeDone):
    """Two commits have nothing in common that was asked for; a sentence."""


class Unreadable(Exception):
    """The table of a commit can't be read: why."""


class Said(StrEnum):
    """What is said of a cell of a pull request, the gravest first."""

    WRONG = "wrong"
    LOST = "fails"
    WORSE = "worse"
    IMPROVED = "improved"
    MENDED = "works again"
    ADDED = "added"
    UNTOLD = "can't tell"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    LEFT_OUT = "not measured"


FINDINGS = (Said.WRONG, Said.LOST, Said.WORSE)
"""What a pull request should not do."""
VERDICTS = {
    Verdict.SLOWER: Said.WORSE, Verdict.FASTER: Said.IMPROVED, Verdict.EQUIVALENT: Said.UNCHANGED,
    Verdict.INCONCLUSIVE: Said.UNTOLD,
}  # fmt: skip
NOT_RIGHT = ("wrong", "implausible")


@dataclass(frozen=True)
class Change:
    """A cell, and what is said of it."""

    cell: CommitCell
    said: Said

    @property
    def why(self) -> str:
        """Whose words explain it, where there are no pairs."""
        if self.cell.comparison is not None or self.said is Said.ADDED:
            return ""
        return self.cell.why_b or self.cell.why_a

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**self.cell.to_dict(), "said": str(self.said), "why": self.why}


@dataclass(frozen=True)
class Changes:
    """What a commit does to the variants of another."""

    compared: CommitsComparison
    added: tuple[str, ...]
    """Variants that only the later commit has."""
    removed: tuple[str, ...]

    @property
    def cells(self) -> tuple[Change, ...]:
        """All cells, the gravest first."""
        made = [Change(cell, self._said(cell)) for cell in self.compared.cells]
        return tuple(sorted(made, key=lambda each: list(Said).index(each.said)))

    def _said(self, cell: CommitCell) -> Said:
        name = cell.variant.split("?")[0]
        if cell.status_b in NOT_RIGHT:
            return Said.WRONG
        if cell.comparison is not None:
            return VERDICTS[cell.comparison.verdict]
        if name in self.removed:
            return Said.REMOVED
        if not cell.why_b:
            return Said.ADDED if name in self.added else Said.MENDED
        if name in self.added or cell.why_a:
            failed = cell.status_b not in NOT_TRIED and name in self.added
            return Said.LOST if failed else Said.LEFT_OUT
        return Said.LOST

    def counts(self) -> dict[str, int]:
        """How often each word fell."""
        words = [each.said for each in self.cells]
        return {str(word): words.count(word) for word in Said if word in words}

    @property
    def exit_status(self) -> int:
        """1 for a finding; 2 where nothing could be said of any cell."""
        words = {each.said for each in self.cells}
        if words & set(FINDINGS):
            return 1
        return 0 if words - {Said.LEFT_OUT} or self.added or self.removed else 2

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **self.compared.to_dict(), "cells": [each.to_dict() for each in self.cells],
            "counts": self.counts(), "added": list(self.added), "removed": list(self.removed),
        }  # fmt: skip


def compare(base: Commit, head: Commit, asked: Sequence[str], grid: Preset, machine: Machine,
            opened: Open, *, margin: float, budget_s: float, root: Path,
            tables: Sequence[str] = (),
            plan: Callable[[Sequence[Cell]], None] = lambda cells: None,
            watch: Callable[[CommitCell], None] = lambda cell: None) -> Changes:  # fmt: skip
    """What head does to the variants of base; raises a sentence where that can't be asked.

    ``asked``: variants; those of the grid, and whatever was touched, if none. ``tables``: row files
    of a repository of one's own, by their path in it: each commit's own are read.
    """
    rows, broken = [], []
    for commit in (base, head):
        try:
            rows.append(rows_of(commit, root, tables))
            broken.append("")
        except Unreadable as why:
            rows.append({})
            broken.append(f"commit {commit}: {why}")
    if all(broken):
        raise NothingToCompare(f"{broken[0]}; {broken[1]}; give commits whose table can be read")
    files = changed(base, head, root, bool(tables))
    lost = [] if any(broken) else sorted(set(rows[0]) - set(rows[1]))
    new = [] if any(broken) else [name for name in rows[1] if name not in rows[0]]
    names = list(asked) or _touched(rows, grid, files, new, tables)
    cells = _cells(rows, names, grid, machine)
    plan(cells)
    if any(broken):
        compared = _all_lost(base, head, cells, broken, tuple(files), margin)
    else:
        compared = compare_in_rounds(
            base, head, cells, opened, margin=margin, budget_s=budget_s, watch=watch, root=root,
            whole=bool(tables),
        )  # fmt: skip
    return Changes(compared, tuple(new), tuple(lost))


def cells_of_both(base: Commit, head: Commit, asked: Sequence[str], grid: Preset, machine: Machine,
                  root: Path, tables: Sequence[str] = ()) -> list[Cell]:  # fmt: skip
    """The cells that :func:`compare` has; raises a sentence where a table can't be read."""
    try:
        rows = [rows_of(commit, root, tables) for commit in (base, head)]
    except Unreadable as why:
        raise NothingToCompare(f"{why}; give commits whose table can be read") from None
    new = [name for name in rows[1] if name not in rows[0]]
    files = changed(base, head, root, bool(tables))
    return _cells(rows, list(asked) or _touched(rows, grid, files, new, tables), grid, machine)


def rows_of(commit: Commit, root: Path, tables: Sequence[str] = ()) -> dict[str, Variant]:
    """The rows of a commit by name, as it lists them itself; raises :class:`Unreadable`."""
    with laid_out(commit, root, bool(tables)) as folder, tempfile.TemporaryDirectory() as name:
        answer = Path(name) / "rows.json"
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        files = [str(folder / table) for table in tables]
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", READ, str(answer), *files], capture_output=True,
                env={**os.environ, "PYTHONPATH": path}, timeout=READ_LIMIT_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unreadable(f"its table was still importing after {READ_LIMIT_S} s") from None
        if done.returncode or not answer.exists():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            said = (last or [f"it ended with status {done.returncode}"])[0]
            raise Unreadable(f"its table can't be read: {said.replace(str(folder) + os.sep, '')}")
        sent = json.loads(answer.read_text())
    # where the files lie is another folder each time
    rows = [Variant.from_dict(_elsewhere(row, str(folder))) for row in sent]
    return {row.name: row for row in rows}


def _elsewhere(row: Mapping[str, Any], folder: str) -> dict[str, Any]:
    return {
        key: value.replace(folder + os.sep, "") if isinstance(value, str) else value
        for key, value in row.items()
    }


def _touched(rows: Sequence[Mapping[str, Variant]], grid: Preset, files: Iterable[str],
             new: Iterable[str], tables: Sequence[str]) -> list[str]:  # fmt: skip
    """The grid's variants, those that are new, and those whose own file changed."""
    either = {**rows[0], **rows[1]}
    if tables:
        return [name for name, row in either.items() if row.origin in tables]
    own = [name for name, row in either.items() if _file(row) in set(files)]
    names = [name for name in grid.variants if name.split("?")[0] in either]
    return list(dict.fromkeys([*names, *own, *new]))


def _file(row: Variant) -> str:
    return row.build.split(":")[0].replace(".", "/") + ".py"


def _cells(rows: Sequence[Mapping[str, Variant]], names: Sequence[str], grid: Preset,
           machine: Machine) -> list[Cell]:  # fmt: skip
    """The cells of some variants, as either commit would plan them.

    Only what neither would measure is left out: what one of them can't do any more must be seen.
    """
    found: dict[str, Cell] = {}
    for name in names:
        why: Exception | None = None
        planned = 0
        for table in (Table(dict(each)) for each in rows):
            try:
                cells = make_plan(table, [name], grid, machine).cells
            except (UnknownVariant, InvalidRow) as error:
                why = error
                continue
            planned += len(cells)
            for cell in cells:
                before = found.get(cell.key)
                if before is None or cell.left_out is None or before.left_out is not None:
                    found[cell.key] = cell
        if why is not None and not planned:
            raise why
    return list(found.values())


def _all_lost(base: Commit, head: Commit, cells: Sequence[Cell], broken: Sequence[str],
              files: tuple[str, ...], margin: float) -> CommitsComparison:  # fmt: skip
    """One commit has no table that could be read: none of its rows can be measured."""
    status = ["failed" if why else "" for why in broken]
    lost = tuple(
        CommitCell(c.variant.label, c.problem, why_a=broken[0], why_b=broken[1],
                   status_a=status[0], status_b=status[1])
        for c in cells
    )  # fmt: skip
    return CommitsComparison(base, head, files, lost, margin)
