"""One cell, asked of whoever measures it: whatever becomes of the worker, there is a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from attnbench.core.record import InvalidRecord, Record, Status
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.plan import Cell

CELL_LIMIT_S = 600.0
"""No cell may take longer: what hangs is ended, and says so."""
TWICE = "its worker died, and so did a new one that was asked for nothing else"
ONCE = "its worker died first, and it was measured in a new one: "


class Engine(Protocol):
    """Whoever starts a worker and asks it."""

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`WorkerLost` if there is none within the limit."""

    def close(self) -> None:
        """End the worker, whatever it is doing."""


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

    Whose worker dies is tried once more, alone: somebody before may have broken that one.
    ``limit_s``: how long it may take, where that is another than every cell's limit.
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
    limit = CELL_LIMIT_S if limit_s is None else limit_s
    try:
        return _asked(cell, job, engine, limit)
    except WorkerLost as lost:
        if lost.timed_out or lost.wrong:
            return _ended(cell, lost, job)
        first = lost
    engine.close()
    try:
        record = _asked(cell, job, engine, limit)
    except WorkerLost as lost:
        return _ended(cell, lost, job, note=TWICE)
    note = "; ".join(filter(None, [record.note, ONCE + first.reason]))
    return record.with_(note=note)


def _asked(cell: Cell, job: Mapping[str, Any], engine: Engine, limit_s: float) -> Record:
    answer = engine.ask({"job": job}, limit_s)
    try:
        record = _readable(Record.from_dict(answer["record"]))
        record.line()
    except (InvalidRecord, KeyError, TypeError, ValueError, RecursionError) as error:
        engine.close()
        said = f"the worker's answer is no record: {error}"
        raise WorkerLost(said, "", timed_out=False) from None
    if record.key != cell.key:
        engine.close()
        raise WorkerLost("the worker answered about another cell", "", timed_out=False)
    return record


def _ended(cell: Cell, lost: WorkerLost, job: Mapping[str, Any], note: str = "") -> Record:
    status = Status.TIMED_OUT if lost.timed_out else Status.CRASHED
    status = Status.WRONG if lost.wrong else status
    return _readable(
        Record.of(
            cell.variant,
            cell.problem,
            status,
            lost.reason,
            detail=lost.said,
            seed=job["seed"],
            note=note,
        )
    )


def _readable(record: Record) -> Record:
    """Texts come from whoever is measured, and are shown on terminals: what steers one is not."""
    return record.with_(
        reason=_plain(record.reason),
        remedy=_plain(record.remedy),
        note=_plain(record.note),
        detail=_plain(record.detail, "\n\t"),
    )


def _plain(text: str, besides: str = "") -> str:
    return "".join(c if c.isprintable() or c in besides else "?" for c in text)
