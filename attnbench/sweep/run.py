"""A sweep from plan to records: cell after cell, each written down as it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from types import FrameType
from typing import Any, Protocol

from attnbench.record import InvalidRecord, Record, Status
from attnbench.store import RunFolder
from attnbench.sweep.engine import START_LIMIT_S, LocalEngine, WorkerLost
from attnbench.sweep.plan import Cell, Plan
from attnbench.sweep.plausible import Known

CELL_LIMIT_S = 600.0
"""No cell may take longer: what hangs is ended, and says so."""


class Watcher(Protocol):
    """Whoever shows the progress."""

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A cell has ended; about so many seconds are left."""


class Stopped(Exception):
    """The user asked to stop; what was measured is kept."""


class Interrupt:
    """Ctrl-C: the first lets the cell end, the second does not."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Catch Ctrl-C inside the block."""
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("stopping after this cell; Ctrl-C again stops at once")


def sweep(plan: Plan, done: dict[str, Record], folder: RunFolder, engine: LocalEngine,
          watcher: Watcher, interrupt: Interrupt) -> None:  # fmt: skip
    """Measure what is not done. ``folder`` holds every record when this returns or raises."""
    for cell in plan.cells:
        if cell.left_out is not None and cell.key not in done:
            folder.append(replace(cell.left_out, run=folder.name))
    todo = [c for c in plan.to_run if c.key not in done]
    if not todo:
        return
    with interrupt.watching():
        if "ceilings" not in folder.header:
            folder.header["ceilings"] = _ceilings(plan, engine)
            folder.save_header()
        eta, known, first = Eta([c.guess_s for c in todo]), Known(done.values()), First()
        for number, cell in enumerate(todo, 1):
            record = measure(cell, folder.header, engine, bits=first.of(cell))
            record = known.doubt(record)
            folder.append(replace(record, run=folder.name))
            watcher.cell(record, number, len(todo), eta.after(cell.guess_s))
            if interrupt.asked:
                raise Stopped


def check_cells(plan: Plan, engine: LocalEngine, seed: int, watcher: Watcher) -> list[Record]:
    """Every cell through the gate alone."""
    header = {"seed": seed, "budget_s": 0.0}
    eta, total, records = Eta([c.guess_s for c in plan.to_run]), len(plan.to_run), []
    done, first = 0, First()
    for cell in plan.cells:
        record = cell.left_out or measure(cell, header, engine, timed=False, bits=first.of(cell))
        records.append(record)
        if cell.left_out is None:
            done += 1
            watcher.cell(record, done, total, eta.after(cell.guess_s))
    return records


def measure(cell: Cell, header: dict[str, Any], engine: LocalEngine, *,
            timed: bool = True, bits: bool = False,
            limit_s: float | None = None) -> Record:  # fmt: skip
    """One cell's record; a worker that is lost costs this cell alone.

    ``limit_s``: how long it may take, where that is another than every cell's limit.
    """
    job = {
        "variant": cell.variant.to_dict(), "problem": cell.problem.to_dict(), "timed": timed,
        "seed": header["seed"], "budget_s": header["budget_s"], "bits": bits,
        "energy": header.get("energy", False),
        "ceilings": header.get("ceilings", {}),
    }  # fmt: skip
    try:
        answer = engine.ask({"job": job}, CELL_LIMIT_S if limit_s is None else limit_s)
        record = Record.from_dict(answer["record"])
        if record.key != cell.key:
            engine.close()
            raise WorkerLost("the worker answered about another cell", "", timed_out=False)
        return record
    except (InvalidRecord, KeyError) as error:
        engine.close()
        lost = WorkerLost(f"the worker's answer is no record: {error}", "", timed_out=False)
        return _lost(cell, lost, header)
    except WorkerLost as lost:
        return _lost(cell, lost, header)


def _lost(cell: Cell, lost: WorkerLost, header: dict[str, Any]) -> Record:
    status = Status.TIMED_OUT if lost.timed_out else Status.CRASHED
    status = Status.WRONG if lost.wrong else status
    return Record.of(
        cell.variant, cell.problem, status, lost.reason, detail=lost.said, seed=header["seed"]
    )


def _ceilings(plan: Plan, engine: LocalEngine) -> dict[str, Any]:
    problems = [c.problem for c in plan.to_run]
    question = {
        "ceilings": sorted({p.dtype for p in problems}), "device": problems[0].device,
    }  # fmt: skip
    answer: dict[str, Any] = engine.ask(question, START_LIMIT_S)["ceilings"]
    return answer


class First:
    """Which cells are tried for the same bits: a variant's first in each phase."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def of(self, cell: Cell) -> bool:
        """Whether this is one of them."""
        what = (cell.variant.label, cell.problem.phase)
        new = what not in self._seen
        self._seen.add(what)
        return new


class Eta:
    """Seconds left: the guesses of what is to come, corrected by how the guesses fared."""

    def __init__(self, guesses: list[float]) -> None:
        self._left = sum(guesses)
        self._guessed = 0.0
        self._start = monotonic()

    def after(self, guess: float) -> float:
        """The estimate when a cell with this guess has just ended."""
        self._left -= guess
        self._guessed += guess
        return max(0.0, self._left * (monotonic() - self._start) / self._guessed)
