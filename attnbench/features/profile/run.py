"""``attnbench profile``: one or two variants on one problem, profiled by a worker once the gate has
let them pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attnbench.core.disk import StoreError
from attnbench.core.machine import Machine
from attnbench.core.record import FINDINGS, Record, Status
from attnbench.sweep.engine import CELL_LIMIT_S, LocalEngine, WorkerLost
from attnbench.sweep.plan import Cell, Plan, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.problem import InvalidProblem
from impls.spec import Variant

LENGTH = "1024"
"""Long enough that products weigh more than calling them."""
PREFERRED = ("train", "forward", "decode", "backward")
"""Of the phases that a variant serves, the first of these."""
MASKS = ("causal", "none")
"""Likewise."""


class NotProfiled(Exception):
    """Why there is no profile, in a sentence; ``status`` is what the program ends with."""

    def __init__(self, record: Record) -> None:
        remedy = f" → {record.remedy}" * bool(record.remedy)
        status = str(record.status).replace("_", " ")
        super().__init__(f"{record.variant} is not profiled ({status}): {record.reason}{remedy}")
        self.status = 1 if record.status in FINDINGS else 2


def plan(
    names: Sequence[str], table: Table, grid: Preset, changes: Mapping[str, Any], machine: Machine
) -> Plan:
    """A cell for each variant, all on the same problem; refuses more problems than one."""
    rows = [table.find(name) for name in names]
    asked = grid.with_(seq=(LENGTH,), variants=()).with_(**changes)
    if "phase" not in changes:
        asked = asked.with_(phase=(_first(rows, asked.device, "phases", PREFERRED),))
    if "mask" not in changes:
        asked = asked.with_(mask=(_first(rows, asked.device, "masks", MASKS),))
    levels = list(dict.fromkeys(row.level for row in rows))
    if len(levels) > 1:
        raise InvalidProblem(
            f"{rows[0].label} works at level {levels[0]} and {rows[1].label} at {levels[1]}: "
            "they are given different things, so neither is slower than the other; name two of one"
        )
    made = make_plan(table, names, asked, machine)
    problems = list(dict.fromkeys(cell.problem for cell in made.cells))
    if len(problems) > 1:
        raise InvalidProblem(
            f"profile takes one problem, and this grid has {len(problems)}: "
            f"{problems[0]}, {problems[1]}" + ", …" * (len(problems) > 2) + "; give one value each"
        )
    return made


def _first(
    rows: Sequence[Variant], device: str, what: Literal["phases", "masks"], preferred: Sequence[str]
) -> str:
    """What all of the variants serve; where there is no such thing, the plan says who does not."""
    served = [row.on(device, what) for row in rows]
    return next((x for x in preferred if all(x in some for some in served)), preferred[0])


def folder_of(cells: Sequence[Cell], out: Path) -> Path:
    """Where the files of such a question go; asked again, they are replaced."""
    names = "-against-".join(cell.variant.label for cell in cells)
    return out / re.sub(r"[^A-Za-z0-9.]+", "-", f"{names} {cells[0].problem}").strip("-")


def trace_of(cell: Cell, folder: Path) -> Path:
    """The file of one variant's trace."""
    return folder / f"trace-{re.sub(r'[^A-Za-z0-9.]+', '-', cell.variant.label)}.json"


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
    return [_profile(cell, engine, seed, trace_of(cell, folder).resolve()) for cell in cells]


def _profile(cell: Cell, engine: LocalEngine, seed: int, trace: Path) -> dict[str, Any]:
    job = {
        "variant": cell.variant.to_dict(),
        "problem": cell.problem.to_dict(),
        "seed": seed,
        "timed": False,
    }
    try:
        answer = engine.ask({"profile": job, "trace": str(trace)}, CELL_LIMIT_S)
    except WorkerLost as lost:
        status = Status.TIMED_OUT if lost.timed_out else Status.CRASHED
        raise NotProfiled(
            Record.of(cell.variant, cell.problem, status, lost.reason, detail=lost.output)
        ) from None
    if "profile" not in answer:
        raise NotProfiled(Record.from_dict(answer["record"]))
    return {**answer["profile"], "trace": str(trace)}
