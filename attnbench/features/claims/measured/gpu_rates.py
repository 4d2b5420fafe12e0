"""Rates of fused kernels on a GPU, counted as their authors count.

    forward  4 b h n^2 d     half of it where the mask is causal
    backward 5/2 of forward, since the scores are computed again; both: 7/2

Times are the ruler's: cold caches, one call a sample, the clocks as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.core.record import Record
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.ruler import ceilings, engine, problem, record, row
from attnbench.sweep.engine import Engine
from impls.problem import Problem

PHASES = {"forward": 1.0, "backward": 2.5, "train": 3.5}
SECONDS = 0.5
"""Of sampling a cell, at the most."""
CELLS_SHARE = 0.5
"""Of the time that is given; the rest is for starting and for the gate."""


def measure(asked: ClaimRequest) -> ClaimFindings:
    """TFLOP/s, a cell for each point."""
    with engine(asked, "cuda") as opened:
        return rates(opened, asked)


def rates(opened: Engine, asked: ClaimRequest) -> ClaimFindings:
    """The same, of a worker that is there."""
    limits = ceilings(
        opened, sorted({str(c["problem"]["dtype"]) for c in asked.cells.values()}), "cuda"
    )
    each_s = min(SECONDS, CELLS_SHARE * asked.seconds / len(asked.cells))
    figures: dict[str, ClaimFigure] = {}
    rows: list[list[str | float | None]] = []
    for name, said in asked.cells.items():
        of = problem(said["problem"])
        found = record(opened, row(said["variant"]), of, asked, each_s, limits=limits)
        figures[name] = _rate(found, of)
        rows.append([name, *_behind(found)])
    columns = ["point", "ms", "from", "to", "samples", "SM MHz", "kernels", "amiss"]
    return ClaimFindings(figures, (), [ClaimTable("cells", columns, rows)])


def flops(of: Problem) -> float:
    """By the authors' convention."""
    product = 4.0 * of.batch * of.heads * of.q_len * of.kv_len * of.head_dim
    return product * (0.5 if of.mask.is_causal(of.shape) else 1.0) * PHASES[of.phase]


def _rate(found: Record, of: Problem) -> ClaimFigure:
    if found.time is None:
        return ClaimFigure(None, why=f"{found.variant} at {of}: {found.status}: {found.reason}")
    work = flops(of) / 1e12
    return ClaimFigure(
        work / found.time.median_s, work / found.time.high_s, work / found.time.low_s
    )


def _behind(found: Record) -> Sequence[str | float | None]:
    """What a sceptic asks for."""
    if found.time is None:
        return [None] * 5 + [None, f"{found.status}: {found.reason}"]
    t: Any = found.time
    clocks: Mapping[str, float] = t.clocks
    return [
        1e3 * t.median_s,
        1e3 * t.low_s,
        1e3 * t.high_s,
        t.n,
        clocks.get("sm_mhz"),
        ", ".join(found.kernels[:2]),
        "; ".join(t.flags),
    ]
