"""``attnbench profile``: one or two variants on one problem, profiled once they pass the gate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.core.disk import StoreError
from attnbench.core.machine import Machine
from attnbench.core.record import FINDINGS, Record, Status
from attnbench.sweep.engine import CELL_LIMIT_S, LocalEngine, WorkerLost
from attnbench.sweep.plan import Cell, Plan, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.problem import InvalidProblem

LENGTH = "1024"  # long enough that products weigh more than calling them
PHASES, MASKS = ("train", "forward", "decode", "backward"), ("causal", "none")
"""In order: the first that all variants serve is taken."""


class NotProfiled(Exception):
    """Why there is no profile, in a sentence; ``status`` is the program's exit status."""

    def __init__(self, record: Record) -> None:
        remedy = f" → {record.remedy}" if record.remedy else ""
        status = str(record.status).replace("_", " ")
        super().__init__(f"{record.variant} is not profiled ({status}): {record.reason}{remedy}")
        self.status = 1 if record.status in FINDINGS else 2


def plan(
    names: Sequence[str], table: Table, grid: Preset, changes: Mapping[str, Any], machine: Machine
) -> Plan:
    """A cell for each variant, all on the same problem; refuses more problems than one."""
    rows = [table.find(name) for name in names]
    grid = grid.with_(seq=(LENGTH,), variants=()).with_(**changes)
    if "phase" not in changes:
        grid = grid.with_(phase=(_first([row.on(grid.device, "phases") for row in rows], PHASES),))
    if "mask" not in changes:
        grid = grid.with_(mask=(_first([row.on(grid.device, "masks") for row in rows], MASKS),))
    if rows[0].level != rows[-1].level:
        raise InvalidProblem(
            f"{rows[0].label} works at level {rows[0].level} and {rows[-1].label} at "
            f"{rows[-1].level}: they are given different things, so neither is slower than the "
            "other; name two of one"
        )
    result = make_plan(table, names, grid, machine)
    problems = list(dict.fromkeys(cell.problem for cell in result.cells))
    if len(problems) > 1:
        raise InvalidProblem(
            f"profile takes one problem, and this grid has {len(problems)}: "
            f"{problems[0]}, {problems[1]}" + ", …" * (len(problems) > 2) + "; give one value each"
        )
    return result


def _first(served: Sequence[Sequence[str]], preferred: Sequence[str]) -> str:
    """If there is none, the plan refuses one of the variants."""
    return next((x for x in preferred if all(x in some for some in served)), preferred[0])


def folder_of(cells: Sequence[Cell], out: Path) -> Path:
    """Where the files go; the same question again replaces them."""
    names = "-against-".join(cell.variant.label for cell in cells)
    return out / _slug(f"{names} {cells[0].problem}").strip("-")


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)


def profiles(
    cells: Sequence[Cell], engine: LocalEngine, seed: int, folder: Path
) -> list[dict[str, Any]]:
    """The profile of each; raises :class:`NotProfiled` for the first that has none."""
    for cell in cells:
        if cell.left_out is not None:
            raise NotProfiled(cell.left_out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"can't write to {folder}: {error.strerror}; use another --out") from None
    return [_profile(cell, engine, seed, folder) for cell in cells]


def _profile(cell: Cell, engine: LocalEngine, seed: int, folder: Path) -> dict[str, Any]:
    trace = str((folder / f"trace-{_slug(cell.variant.label)}.json").resolve())
    sent = {"variant": cell.variant.to_dict(), "problem": cell.problem.to_dict()}
    question = {"profile": {**sent, "seed": seed, "timed": False}, "trace": trace}
    try:
        answer = engine.ask(question, CELL_LIMIT_S)
    except WorkerLost as lost:
        status = Status.TIMED_OUT if lost.timed_out else Status.CRASHED
        raise NotProfiled(
            Record.of(cell.variant, cell.problem, status, lost.reason, detail=lost.output)
        ) from None
    if "profile" not in answer:
        raise NotProfiled(Record.from_dict(answer["record"]))
    return {**answer["profile"], "trace": trace}
