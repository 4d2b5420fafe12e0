"""Two commits by the instructions of a call on a CPU: a figure that has next to no noise.

valgrind's callgrind counts them, so a machine that is busy or drifts is no matter, and a change of
a thousandth is seen. It is no time: instructions that wait for memory cost more than others, and
valgrind runs the code that torch has for processors without AVX-512. Every cell passes the gate
first, outside valgrind.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbench.core.checkout import Commit, laid_out
from attnbench.core.process import variables_of
from attnbench.features.commits.pairs import Open
from attnbench.features.commits.rounds import NoCommonCells
from attnbench.sweep.holding import Refused
from attnbench.sweep.plan import Cell
from attnbench.sweep.presets import PRESETS, Preset
from impls.asked import CantBeDone
from impls.problem import Problem

LIMIT_S = 1800.0
"""For all cells of a commit under valgrind."""
COMPILERS = ("c++", "cc")
COMPILES = "it compiles code when it is called, and the compiler's instructions would count"
TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)
NEEDED = ("valgrind", "callgrind_control")


class NoCounter(CantBeDone):
    """Instructions can't be counted here; a sentence."""


@dataclass(frozen=True)
class Counted:
    """A cell's instructions in both commits; None where a commit has none, and why."""

    variant: str
    problem: Problem
    base: int | None = None
    head: int | None = None
    why_base: str = ""
    why_head: str = ""

    @property
    def change(self) -> float | None:
        """Head over base, less one."""
        return self.head / self.base - 1 if self.base and self.head else None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "problem": self.problem.to_dict(), "change": self.change}


@dataclass(frozen=True)
class InstructionCounts:
    """All cells of two commits."""

    base: Commit
    head: Commit
    cells: tuple[Counted, ...]

    @property
    def exit_status(self) -> int:
        """1 where head can't do what base could; 2 where nothing was counted in both."""
        if any(c.base is not None and c.head is None for c in self.cells):
            return 1
        return 0 if any(c.change is not None for c in self.cells) else 2

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "base": asdict(self.base),
            "head": asdict(self.head),
            "cells": [cell.to_dict() for cell in self.cells],
        }


CellCount = tuple[int | None, str]
"""The instructions of a cell in one commit, or None and why there are none."""


def grid() -> Preset:
    """One small length on a CPU: a call under valgrind takes a hundred times as long."""
    return PRESETS["history"].with_(seq=("128",))


def require() -> None:
    """Raises a sentence where valgrind is not installed."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise NoCounter(
            f"instructions are counted by valgrind, and {' and '.join(missing)} can't be found; "
            "install it with 'apt-get install valgrind' or your system's own package"
        )


def count(
    base: Commit,
    head: Commit,
    cells: Sequence[Cell],
    opened: Open,
    root: Path,
    tables: Sequence[str] = (),
) -> InstructionCounts:
    """The instructions of every cell in both commits, which are counted side by side."""
    commits = (base, head)
    with ExitStack() as stack:
        folders = [stack.enter_context(laid_out(c, root, bool(tables))) for c in commits]
        whys = [_refusals(folder, cells, opened) for folder in folders]
        runs = [
            stack.enter_context(_valgrind(commit, folder, cells, why, tables))
            for commit, folder, why in zip(commits, folders, whys, strict=True)
        ]
        counts = [run() for run in runs]
    return InstructionCounts(
        base,
        head,
        tuple(
            Counted(cell.variant.label, cell.problem, a, b, why_a, why_b)
            for cell, (a, why_a), (b, why_b) in zip(cells, *counts, strict=True)
        ),
    )


def _refusals(folder: Path, cells: Sequence[Cell], opened: Open) -> list[str]:
    """Why a commit's cells are not counted; nothing for those that pass the gate."""
    found = []
    with opened(folder) as worker:
        for cell in cells:
            why = cell.left_out.reason if cell.left_out else ""
            if not why and set(COMPILERS) & set(cell.variant.requires):
                why = COMPILES
            if not why:
                try:
                    worker.hold(cell.variant.label, cell.problem)
                except Refused as refused:
                    why = str(refused)
            found.append(why)
    return found


@contextmanager
def _valgrind(
    commit: Commit, folder: Path, cells: Sequence[Cell], why: Sequence[str], tables: Sequence[str]
) -> Iterator[Callable[[], list[CellCount]]]:
    """A process under valgrind that counts the cells of one commit; yields how to wait for it.

    ``why``: of each cell, why it is not counted, or nothing.
    """
    jobs = [
        {"variant": cell.variant.label, "problem": cell.problem.to_dict()}
        for cell, refusal in zip(cells, why, strict=True)
        if not refusal
    ]
    command = [
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
        "--callgrind-out-file=counted",
        *(sys.executable, "-P", "-m", "attnbench.meter.instructions", "asked", "answer"),
    ]
    # the same hashes each time, or sets and dictionaries take other paths
    variables = {**variables_of(1, folder), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="attnbench-") as name, ExitStack() as stack:
        place = Path(name)
        files = [str(folder / table) for table in tables]
        (place / "asked").write_text(json.dumps({"jobs": jobs, "tables": files}))
        output = stack.enter_context((place / "output").open("w"))
        process = subprocess.Popen(
            command,
            cwd=place,
            env=variables,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield lambda: _counts(commit, process, place, why)


def _counts(
    commit: Commit, process: subprocess.Popen[bytes], place: Path, why: Sequence[str]
) -> list[CellCount]:
    """Wait for the counts of all cells; raises NoCounter where the process failed."""
    try:
        status = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NoCounter(
            f"commit {commit}: counting took longer than {LIMIT_S:.0f} s; give a shorter --seq "
            "or fewer variants"
        ) from None
    if status:
        lines = (place / "output").read_text(errors="replace").splitlines()
        said = [line for line in lines if line and not line.startswith("==")]
        raise NoCounter(
            f"commit {commit}: valgrind's process ended with status {status}: "
            f"{(said or ['it said nothing'])[-1]}"
        )
    answers = iter(json.loads((place / "answer").read_text()))
    found: list[CellCount] = []
    for refusal in why:
        one = {"why": refusal} if refusal else next(answers)
        files = [place / f"counted.{number}" for number in one.get("files", ())]
        found.append((_median(files) if files else None, one.get("why", "")))
    return found


def _median(files: Sequence[Path]) -> int:
    totals = [TOTALS.search(file.read_text()) for file in files]
    if not all(totals):
        raise NoCommonCells("callgrind left a file without totals; is valgrind older than 3.15?")
    return int(statistics.median(int(found[1]) for found in totals if found))
