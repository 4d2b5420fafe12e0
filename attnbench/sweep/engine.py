"""The worker that measures cells, and one cell's record, whatever becomes of the worker.

The parent never loads torch or a kernel. The worker measures many cells, and is replaced when it
dies. One that holds a variant lets its calls take turns with those of another worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from attnbench.core.lock import lock_for
from attnbench.core.process import START_LIMIT_S as START_LIMIT_S
from attnbench.core.process import Worker
from attnbench.core.process import WorkerLost as WorkerLost
from attnbench.core.record import InvalidRecord, Record, Status, read_record
from attnbench.core.settings import ALLOCATORS, Settings
from attnbench.core.wire import Job, plain
from attnbench.sweep.plan import Cell
from impls.problem import Problem

CELL_LIMIT_S = 600.0
"""No cell may take longer: what hangs is ended, and its record says so."""
HOLD_LIMIT_S, TURN_LIMIT_S = 600.0, 300.0
"""For building and judging a variant that is held; for a call of it."""
TWICE = "its worker died, and so did a new one that was asked for nothing else"
ONCE = "its worker died first, and it was measured in a new one: "


class Engine(Protocol):
    """Starts a worker and asks it."""

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`WorkerLost` if there is none within the limit."""

    def close(self) -> None:
        """End the worker, whatever it is doing."""

    def stop(self) -> None:
        """From another thread: lose the worker, whatever it is doing, and start no other one."""


class LocalEngine(Worker):
    """Asks a worker on this machine; starts one when there is none."""

    def __init__(
        self,
        settings: Settings,
        path: Path | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """As of :class:`Worker`."""
        own = {**ALLOCATORS[settings.allocator], **(variables or {})}
        module = "attnbench.sweep.worker"
        super().__init__(module, settings.threads, path=path, variables=own, **more)
        self.settings = settings

    def _start(self) -> None:
        super()._start()
        self.ask({"apply": asdict(self.settings)}, START_LIMIT_S)


@contextmanager
def engine_on(device: str, settings: Settings) -> Iterator[LocalEngine]:
    """An engine that has the device to itself; on a CPU its memory is limited."""
    with lock_for([device]), LocalEngine(settings, limited=device == "cpu") as engine:
        yield engine


def measure(
    cell: Cell,
    header: Mapping[str, Any],
    engine: Engine,
    *,
    timed: bool = True,
    bits_s: float = 0.0,
    limit_s: float | None = None,
) -> Record:
    """One cell's record; a worker that is lost costs this cell alone.

    A cell whose worker dies is tried once more in a new one: an earlier cell may have broken it.
    """
    job = Job(
        cell.variant,
        cell.problem,
        seed=header["seed"],
        budget_s=header["budget_s"],
        timed=timed,
        bits_s=bits_s,
        energy=header.get("energy", False),
        ceilings=header.get("ceilings", {}),
    )
    limit_s, first = CELL_LIMIT_S if limit_s is None else limit_s, ""
    while True:
        try:
            record = _record_of(cell, engine.ask({"job": plain(job)}, limit_s), engine)
        except WorkerLost as lost:
            if first or lost.timed_out or lost.wrong:
                more = {"detail": lost.output, "seed": job.seed, "note": TWICE * bool(first)}
                record = Record.of(cell.variant, cell.problem, lost_status(lost), lost.reason)
                return _printable(record.with_(**more))
            first = lost.reason
            engine.close()
        else:
            notes = [record.note, ONCE + first] if first else [record.note]
            return record.with_(note="; ".join(filter(None, notes)))


def _record_of(cell: Cell, answer: Mapping[str, Any], engine: Engine) -> Record:
    """The record that a worker answered with; one that answers something else is lost."""
    why = "the worker answered about another measurement"
    try:
        record = _printable(read_record(answer["record"]))
        if record.key == cell.key:
            return record
    except (InvalidRecord, KeyError, TypeError) as error:
        why = f"the worker's answer is no record: {error}"
    engine.close()
    raise WorkerLost(why, "")


def lost_status(lost: WorkerLost) -> Status:
    """The status of what a worker was lost with."""
    if lost.wrong:
        return Status.WRONG
    return Status.TIMED_OUT if lost.timed_out else Status.CRASHED


def _printable(record: Record) -> Record:
    """The record without control characters: its texts come from what is measured."""
    texts = {}
    for name in ("reason", "remedy", "note", "detail"):
        allowed = "\n\t" if name == "detail" else ""
        text = getattr(record, name)
        texts[name] = "".join(c if c.isprintable() or c in allowed else "?" for c in text)
    return record.with_(**texts)


class Refused(Exception):
    """A worker can't hold a variant: why, and the status of a record for the same reason."""

    def __init__(self, why: str, status: str = "", by: object = None) -> None:
        super().__init__(why)
        self.status, self.by = status, by


class HoldingWorker:
    """A worker that holds one variant at a time.

    ``tables``: row files in the folder whose rows it may be asked for too. What it can't do
    raises :class:`Refused`.
    """

    def __init__(
        self,
        engine: LocalEngine,
        seed: int,
        budget_s: float,
        folder: Path,
        tables: Sequence[str] = (),
    ) -> None:
        self._engine, self._folder, self._tables = engine, folder, tables
        self._seed, self._budget_s = seed, budget_s
        self._where: dict[str, str] = {}

    def beside(self, folder: Path) -> HoldingWorker:
        """The same process, of another folder than the one in which it looks first."""
        other = HoldingWorker(self._engine, self._seed, self._budget_s, folder, self._tables)
        other._where = {"beside": str(folder)}
        return other

    def hold(self, variant: str, problem: Problem) -> HoldingWorker:
        """Look the variant up, build and judge it; this worker, for its calls."""
        question: dict[str, Any] = {"variant": variant, "problem": plain(problem)}
        question |= {"seed": self._seed, "budget_s": self._budget_s}
        if self._tables:
            question["tables"] = [str(self._folder / table) for table in self._tables]
        self.ask({"hold": question}, HOLD_LIMIT_S)
        return self

    def fresh(self) -> None:
        """Tensors at other addresses, warmed up."""
        self.ask({"fresh": True}, TURN_LIMIT_S)

    def sample(self) -> float:
        """Seconds of one call."""
        return self.samples(1)[0]

    def samples(self, count: int) -> list[float]:
        """Seconds of each of some calls, after one that warms up what others have cooled."""
        return [float(s) for s in self.ask({"sample": count}, TURN_LIMIT_S)["seconds"]]

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`Refused` with what it, or its end, says."""
        try:
            answer = self._engine.ask({**question, **self._where}, limit_s)
        except WorkerLost as lost:
            last = lost.output.strip().splitlines()[-1:]
            raise Refused("; ".join([lost.reason, *last]), str(lost_status(lost)), self) from None
        if "refused" in answer:
            raise Refused(str(answer["refused"]), str(answer.get("status", "")), self)
        if "wrong" in answer:
            raise Refused(str(answer["wrong"]), "wrong", self)
        return answer


def open_worker(
    settings: Settings,
    seed: int,
    budget_s: float,
    tables: Sequence[str] = (),
    *,
    device: str = "cpu",
) -> Callable[[Path], AbstractContextManager[HoldingWorker]]:
    """Opens workers with these settings, each with a folder first on its path.

    They run on the same few cores, the last ones: two processes that take turns would else sit on a
    core each, and one of these may be shared with somebody who is busy: the same code then seemed a
    third slower than itself.
    """
    limited = device == "cpu"  # of a GPU's memory the address space is no measure

    @contextmanager
    def opened(folder: Path) -> Iterator[HoldingWorker]:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(before)[-settings.threads :])
        try:
            with LocalEngine(settings, path=folder, limited=limited) as engine:
                yield HoldingWorker(engine, seed, budget_s, folder, tables)
        finally:
            os.sched_setaffinity(0, before)

    return opened
