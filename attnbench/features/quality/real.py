"""What isn't exact, on each layer's q, k and v and on made-up ones: asked here, without torch.

The inputs are problems as any other, so the gate judges each cell, in the worker that judges every
cell: its implementation error against its own definition, its distance from softmax, its skill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.core.machine import Machine
from attnbench.core.process import Worker, WorkerLost
from attnbench.core.record import Record, Status
from attnbench.core.settings import Settings
from attnbench.features.quality.pretrained import Texts
from attnbench.sweep.engine import Engine, measure
from attnbench.sweep.plan import Cell, Plan, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.asked import CantBeDone
from impls.problem import Problem

CAPTURING = "attnbench.features.quality.real_worker"
LIMIT_S, CELL_LIMIT_S = 300.0, 120.0
MADE_UP = ("normal", "peaky", "outliers")
"""Inputs of the same shape, drawn from a seed."""


class NotCaptured(CantBeDone):
    """The model's own inputs could not be had; a sentence."""


def capture(
    texts: Texts, seq: int, batch: int, dtype: str, device: str, folder: Path, settings: Settings
) -> list[tuple[str, Problem]]:
    """By source: the problems, the made-up ones first, then the model's layers."""
    question = {
        "texts": list(texts.texts),
        "seq": seq,
        "batch": batch,
        "dtype": dtype,
        "device": device,
        "folder": str(folder),
    }
    found: dict[str, Any] = {}
    try:
        with Worker(CAPTURING, settings.threads, limited=False, forks=True) as worker:
            for stage in worker.messages(question, LIMIT_S):
                if why := stage.get("refused") or stage.get("failed"):
                    raise NotCaptured(f"the model's layers could not be read: {why}")
                found |= stage["captured"]
    except WorkerLost as lost:
        raise NotCaptured(f"the model's layers could not be read: {lost}") from None
    whole = Problem(
        batch=batch,
        heads=found["heads"],
        kv_heads=found["heads"],
        q_len=seq,
        kv_len=seq,
        head_dim=found["head_dim"],
        v_head_dim=found["head_dim"],
        dtype=dtype,
        device=device,
    )
    made = [(kind, whole.with_(inputs=kind)) for kind in MADE_UP]
    return made + [
        (f"layer {number}", whole.with_(inputs=f"captured:{file}"))
        for number, file in enumerate(found["files"])
    ]


def planned(
    table: Table, names: Sequence[str], sources: Sequence[tuple[str, Problem]], machine: Machine
) -> Plan:
    """The cells: every variant named, or all that are not exact; those that take it."""
    names = names or [
        row.name
        for row in table.rows.values()
        if row.level == "core" and not row.ranks and not row.exact
    ]
    problems = [problem for _, problem in sources]
    grid = Preset("real inputs", device=problems[0].device, level=("core",))
    return make_plan(table, names, grid, machine, problems)


def judged(
    plan: Plan, sources: Sequence[tuple[str, Problem]], engine: Engine, seed: int
) -> Iterator[dict[str, Any]]:
    """A row a cell, as it ends."""
    names = {problem: source for source, problem in sources}
    header = {"seed": seed, "budget_s": 0.0}
    for cell in plan.cells:
        record = cell.left_out or measure(cell, header, engine, timed=False, limit_s=CELL_LIMIT_S)
        yield row_of(record, cell, names[cell.problem])


def row_of(record: Record, cell: Cell, source: str) -> dict[str, Any]:
    """What a record says of one source, in plain values; a file that is gone is not named."""
    error = (record.error or {}).get("forward")
    distance = record.distance
    if record.status is Status.MEASURED and distance is None and error is not None:
        distance_of: Mapping[str, Any] = {"relative": error.relative, "cosine": error.cosine}
    else:
        distance_of = distance.to_dict() if distance else {}
    return {
        "variant": record.variant,
        "family": record.family,
        "computes": record.computes,
        "source": source,
        "status": _status(record.status),
        "reason": record.reason,
        "remedy": record.remedy,
        "error": error.to_dict() if error else None,
        "distance": distance_of.get("relative"),
        "cosine": distance_of.get("cosine"),
        "skill": distance_of.get("skill"),
        "entropy": record.entropy,
        "problem": cell.problem.with_(inputs="normal").slug,
    }


def _status(status: Status) -> str:
    return "refused" if status is Status.UNSUPPORTED else str(status)
