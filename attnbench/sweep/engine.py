"""The worker that measures cells, and one cell's record, whatever becomes of the worker.

The parent never loads torch or a kernel. The worker measures many cells, and is replaced when it
dies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from attnbench.core.lock import lock_for
from attnbench.core.process import START_LIMIT_S as START_LIMIT_S
from attnbench.core.process import Worker
from attnbench.core.process import WorkerLost as WorkerLost
from attnbench.core.record import InvalidRecord, Record, Status
from attnbench.core.settings import Settings
from attnbench.sweep.plan import Cell

CELL_LIMIT_S = 600.0
"""No cell may take longer: what hangs is ended, and its record says so."""
TWICE = "its worker died, and so did a new one that was asked for nothing else"
ONCE = "its worker died first, and it was measured in a new one: "


class Engine(Protocol):
    """Starts a worker and asks it."""

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`WorkerLost` if there is none within the limit."""

    def close(self) -> None:
        """End the worker, whatever it is doing."""


class LocalEngine(Worker):
    """Asks a worker on this machine; starts one when there is none."""

    def __init__(self, settings: Settings, path: Path | None = None, **more: Any) -> None:
        """As of :class:`Worker`."""
        super().__init__("attnbench.sweep.worker", settings.threads, path=path, **more)
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
    bits: bool = False,
    limit_s: float | None = None,
) -> Record:
    """One cell's record; a worker that is lost costs this cell alone.

    A cell whose worker dies is tried once more in a new one: an earlier cell may have broken it.
    """
    job = {
        "variant": cell.variant.to_dict(),
        "problem": cell.problem.to_dict(),
        "timed": timed,
        "seed": header["seed"],
        "budget_s": header["budget_s"],
        "bits": bits,
        "energy": header.get("energy", False),
        "ceilings": header.get("ceilings", {}),
    }
    limit_s = CELL_LIMIT_S if limit_s is None else limit_s
    try:
        return _ask(cell, job, engine, limit_s)
    except WorkerLost as lost:
        if lost.timed_out or lost.wrong:
            return _ended(cell, lost, job)
        first = lost
    engine.close()
    try:
        record = _ask(cell, job, engine, limit_s)
    except WorkerLost as lost:
        return _ended(cell, lost, job, note=TWICE)
    note = "; ".join(filter(None, [record.note, ONCE + first.reason]))
    return record.with_(note=note)


def _ask(cell: Cell, job: Mapping[str, Any], engine: Engine, limit_s: float) -> Record:
    answer = engine.ask({"job": job}, limit_s)
    try:
        record = _printable(Record.from_dict(answer["record"]))
        record.line()
    except (InvalidRecord, KeyError, TypeError, ValueError, RecursionError) as error:
        engine.close()
        raise WorkerLost(f"the worker's answer is no record: {error}", "") from None
    if record.key != cell.key:
        engine.close()
        raise WorkerLost("the worker answered about another cell", "")
    return record


def lost_status(lost: WorkerLost) -> Status:
    """The status of what a worker was lost with."""
    if lost.wrong:
        return Status.WRONG
    return Status.TIMED_OUT if lost.timed_out else Status.CRASHED


def _ended(cell: Cell, lost: WorkerLost, job: Mapping[str, Any], note: str = "") -> Record:
    status, more = lost_status(lost), {"detail": lost.output, "seed": job["seed"], "note": note}
    return _printable(Record.of(cell.variant, cell.problem, status, lost.reason, **more))


def _printable(record: Record) -> Record:
    """The record without control characters: its texts come from what is measured."""
    texts = {name: getattr(record, name) for name in ("reason", "remedy", "note", "detail")}
    return record.with_(
        **{
            name: "".join(
                c if c.isprintable() or (name == "detail" and c in "\n\t") else "?" for c in text
            )
            for name, text in texts.items()
        }
    )
