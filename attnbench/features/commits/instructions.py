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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbench.core.checkout import Commit, laid_out
from attnbench.core.process import variables_of
from attnbench.features.commits.pairs import Open
from attnbench.sweep.holding import Refused
from attnbench.sweep.plan import Cell
from attnbench.sweep.presets import PRESETS
from impls.asked import CantBeDone
from impls.problem import Problem

LIMIT_S = 1800.0
"""For all cells of a commit under valgrind."""
COMPILERS = ("c++", "cc")
COMPILES = "it compiles code when it is called, and the compiler's instructions would count"
TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)
NEEDED = ("valgrind", "callgrind_control")
GRID = PRESETS["history"].with_(seq=("128",))
"""One small length on a CPU: a call under valgrind takes a hundred times as long."""


class NoCounter(CantBeDone):
    """Instructions can't be counted here; a sentence."""


@dataclass(frozen=True)
class Counted:
    """A cell's instructions in both commits; None where a commit has none, and why."""

    variant: str
    problem: Problem
    base: int | None
    head: int | None
    why_base: str
    why_head: str

    @property
    def change(self) -> float | None:
        """Head over base, less one."""
        return self.head / self.base - 1 if self.base and self.head else None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**vars(self), "problem": self.problem.to_dict(), "change": self.change}


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
        cells = [cell.to_dict() for cell in self.cells]
        return {"base": asdict(self.base), "head": asdict(self.head), "cells": cells}


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
    counters = []
    with ExitStack() as stack:
        for commit in (base, head):
            folder = stack.enter_context(laid_out(commit, root, bool(tables)))
            whys = _refusals(folder, cells, opened)
            counters.append(stack.enter_context(_counter(commit, folder, cells, whys, tables)))
        columns = [counter.wait() for counter in counters]
    found = [
        Counted(cell.variant.label, cell.problem, a, b, why_a, why_b)
        for cell, (a, why_a), (b, why_b) in zip(cells, *columns, strict=True)
    ]
    return InstructionCounts(base, head, tuple(found))


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


@dataclass
class _Counter:
    """A process under valgrind that counts the cells of one commit."""

    commit: Commit
    place: Path
    whys: Sequence[str]
    """Of each cell, why it is not counted, or nothing."""
    process: subprocess.Popen[bytes]

    def wait(self) -> list[tuple[int | None, str]]:
        """The instructions of each cell, or why there are none; raises NoCounter."""
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise NoCounter(
                f"commit {self.commit}: counting took longer than {LIMIT_S:.0f} s; give a shorter "
                "--seq or fewer variants"
            ) from None
        if status:
            lines = (self.place / "output").read_text(errors="replace").splitlines()
            said = [line for line in lines if line and not line.startswith("==")]
            raise NoCounter(
                f"commit {self.commit}: valgrind's process ended with status {status}: "
                f"{(said or ['it said nothing'])[-1]}"
            )
        answers = iter(json.loads((self.place / "answer").read_text()))
        return [self._answered({"why": why} if why else next(answers)) for why in self.whys]

    def _answered(self, answer: dict[str, Any]) -> tuple[int | None, str]:
        files = [self.place / f"counted.{number}" for number in answer.get("files", ())]
        totals = [int(n) for file in files for n in TOTALS.findall(file.read_text())]
        if len(totals) < len(files):
            raise NoCounter("callgrind left a file without totals; is valgrind older than 3.15?")
        return int(statistics.median(totals)) if totals else None, answer.get("why", "")


@contextmanager
def _counter(
    commit: Commit, folder: Path, cells: Sequence[Cell], whys: Sequence[str], tables: Sequence[str]
) -> Iterator[_Counter]:
    jobs = [
        {"variant": cell.variant.label, "problem": cell.problem.to_dict()}
        for cell, why in zip(cells, whys, strict=True)
        if not why
    ]
    command = [
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
        "--callgrind-out-file=counted",
        *(sys.executable, "-P", "-m", "attnbench.meter.instructions", "asked", "answer"),
    ]
    # the same hashes each time, or sets and dictionaries take other paths
    variables = {**variables_of(1, folder), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="attnbench-") as name:
        place, files = Path(name), [str(folder / table) for table in tables]
        (place / "asked").write_text(json.dumps({"jobs": jobs, "tables": files}))
        with (place / "output").open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=place,
                env=variables,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        try:
            yield _Counter(commit, place, whys, process)
        finally:
            process.kill()
            process.wait()
