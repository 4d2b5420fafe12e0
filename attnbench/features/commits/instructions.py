"""Two commits by the instructions of a call on a CPU, as valgrind counts them: next to no noise.

It is no time: instructions that wait for memory cost more than others, and valgrind runs the code
for processors without AVX-512. Every cell passes the gate first, outside valgrind.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.core.checkout import Commit, Repository
from attnbench.core.format import roughly
from attnbench.core.machine import pace
from attnbench.core.process import Program, variables_of
from attnbench.features.commits.pairs import Open
from attnbench.sweep.compare import starting_s
from attnbench.sweep.engine import Refused
from attnbench.sweep.plan import Cell
from attnbench.sweep.presets import PRESETS
from impls.errors import CantBeDone
from impls.problem import Problem

LIMIT_S = 1800.0
"""For all cells of a commit under valgrind."""
COMPILES = "it compiles code when it is called, and the compiler's instructions would count"
TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)
NEEDED = ("valgrind", "callgrind_control")
GRID = PRESETS["history"].with_(seq=("128",))
"""One small length on a CPU: a call under valgrind takes a hundred times as long."""


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


def exit_status(cells: Sequence[Counted]) -> int:
    """1 where head can't do what base could; 2 where nothing was counted in both."""
    if any(c.base is not None and c.head is None for c in cells):
        return 1
    return 0 if any(c.change is not None for c in cells) else 2


def require() -> None:
    """Raise CantBeDone where valgrind is not installed."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise CantBeDone(
            f"{' and '.join(missing)} can't be found; 'apt-get install valgrind' installs it"
        )


HELD_S, LOADED_S, COUNTED_S = 1.0, 90.0, 5.0
"""Of a cell that passes the gate; for valgrind to load torch; and of a cell that is counted."""


def guesses(cells: Sequence[Cell]) -> list[float]:
    """Seconds of each step of :func:`count`."""
    held_s = starting_s() + pace() * HELD_S * len(cells)
    return [held_s, held_s, pace() * (LOADED_S + COUNTED_S * len(cells))]


def count(
    commits: tuple[Commit, Commit],
    cells: Sequence[Cell],
    opened: Open,
    repository: Repository,
    step: Callable[[str], None] = lambda what: None,
) -> list[Counted]:
    """The instructions of every cell, side by side; raises CantBeDone where valgrind fails."""
    counting: list[tuple[Commit, Path, list[str], Program]] = []
    with ExitStack() as stack:
        for commit in commits:
            step(f"the correctness check of each variant in {commit}")
            folder = stack.enter_context(repository.laid_out(commit))
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attnbench-")))
            whys, jobs = [], []
            with opened(folder) as worker:
                for cell in cells:
                    why = COMPILES if {"c++", "cc"} & set(cell.variant.requires) else ""
                    why = cell.left_out.reason if cell.left_out else why
                    try:
                        if not why:
                            worker.hold(cell.variant.label, cell.problem)
                            problem = cell.problem.to_dict()
                            jobs.append({"variant": cell.variant.label, "problem": problem})
                    except Refused as refused:
                        why = str(refused)
                    whys.append(why)
            files = [str(folder / table) for table in repository.tables]
            (place / "asked").write_text(json.dumps({"jobs": jobs, "tables": files}))
            command = [
                *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
                "--callgrind-out-file=counted",
                *(sys.executable, "-P", "-m", "attnbench.meter.probe", "asked", "answer"),
            ]
            # the same hashes each time, or sets and dictionaries take other paths
            variables = {**variables_of(1, folder), "PYTHONHASHSEED": "0"}
            program = Program(command, folder=place, variables=variables)
            counting.append((commit, place, whys, stack.enter_context(program)))
        step("valgrind loads torch, then counts each cell")
        columns = [_counts(*each) for each in counting]
    return [
        Counted(cell.variant.label, cell.problem, a, b, why_a, why_b)
        for cell, (a, why_a), (b, why_b) in zip(cells, *columns, strict=True)
    ]


def _counts(
    commit: Commit, place: Path, whys: Sequence[str], program: Program
) -> list[tuple[int | None, str]]:
    """The instructions of each cell, or why there are none; raises CantBeDone."""
    if (status := program.wait(LIMIT_S)) != 0:
        how = f"ended with status {status}: {program.last_line()}"
        how = f"took longer than {roughly(LIMIT_S)}; give fewer variants" if status is None else how
        raise CantBeDone(f"commit {commit}: valgrind's process {how}")
    answers, found = iter(json.loads((place / "answer").read_text())), list[Any]()
    for why in whys:
        answer = {"why": why} if why else next(answers)
        files = [place / f"counted.{number}" for number in answer.get("files", ())]
        totals = [int(n) for file in files for n in TOTALS.findall(file.read_text())]
        found.append((int(statistics.median(totals)) if totals else None, answer.get("why", "")))
    return found
