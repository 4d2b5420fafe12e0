"""Published rates of fused kernels on GPUs, counted as their authors count.

    forward  4 b h n^2 d     half of it where the mask is causal
    backward 5/2 of forward, since the scores are computed again; both: 7/2

Times are measured as everywhere: cold caches, one call a sample, the clocks as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import impls
from attnbench.core.record import Record
from attnbench.features.claims.claim import (
    Cells,
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    ClaimRule,
    ClaimTable,
)
from attnbench.features.claims.timing import measure_cell, open_engine, problem_of
from attnbench.sweep.engine import START_LIMIT_S, Engine
from impls.problem import Problem

TOLERANCE = 0.1
"""Of a published rate: clocks, drivers and versions differ."""
PHASES = {"forward": 1.0, "backward": 2.5, "train": 3.5}
"""Work over that of a forward pass."""
SECONDS = 0.5
"""Of sampling a cell, at the most."""
CELLS_SHARE = 0.5
"""Of the time that is given; the rest is for starting and for the gate."""
RULES = (
    "FLOPs by the source's convention: 4 b h n^2 d forward, half of it under a causal mask, 5/2 of "
    "that backward, 7/2 both. Our times are of cold caches and of the clocks as they stand, so 10 "
    "% either way is allowed; that is ours"
)


def claim_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``claims.toml`` about the rates of a variant on a kind of GPU, as any other row."""
    variant, of, points = row["variant"], row["of"], []
    for mask, phase, d, rates in row["rates"]:
        for batch, n, published in rates:
            heads = of["width"] // d
            problem = {"batch": batch, "heads": heads, "kv_heads": of.get("kv_heads", heads)}
            problem |= {"q_len": n, "kv_len": n, "head_dim": d, "v_head_dim": d}
            problem |= {"dtype": of["dtype"], "mask": mask, "phase": phase, "device": "cuda"}
            name = f"{mask} {phase} b{batch} h{heads} n{n} d{d}"
            says = f"{variant}, {mask}, {phase}, batch {batch}, {n:,} tokens, heads of {d}"
            words = [name, says, ClaimRule.NEAR, published, TOLERANCE, False, "TFLOP/s"]
            points.append([*words, {"variant": variant, "problem": problem}])
    return {
        **{key: row[key] for key in ("name", "statement", "source", "minutes")},
        "setting": f"{row['setting']}. {RULES}.",
        "points": points,
        "how": "gpu_rates:measure_rates",
        "needs": {"gpu": row["gpu"], "requires": ("torch>=2.9",), "variants": (variant,)},
        "timed": True,
    }


def measure_rates(request: ClaimRequest) -> ClaimFindings:
    """TFLOP/s, a cell for each point."""
    with open_engine(request, "cuda") as engine:
        return rates(engine, request)


def rates(engine: Engine, request: ClaimRequest) -> ClaimFindings:
    """The same, by an engine that is open."""
    dtypes = sorted({str(c["problem"]["dtype"]) for c in request.cells.values()})
    ceilings = engine.ask({"ceilings": dtypes, "device": "cuda"}, START_LIMIT_S)["ceilings"]
    each_s = min(SECONDS, CELLS_SHARE * request.seconds / len(request.cells))
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    for name, cell in request.cells.items():
        variant, problem = impls.table().find(cell["variant"]), problem_of(cell["problem"])
        record = measure_cell(engine, variant, problem, request, each_s, ceilings=ceilings)
        figures[name] = _figure(record, problem)
        rows.append([name, *_evidence(record)])
    columns = ["point", "ms", "from", "to", "samples", "SM MHz", "kernels", "amiss"]
    return ClaimFindings(figures, (), [ClaimTable("cells", columns, rows)])


def flops(problem: Problem) -> float:
    """By the authors' convention."""
    p = problem
    product = 4.0 * p.batch * p.heads * p.q_len * p.kv_len * p.head_dim
    return product * (0.5 if p.mask.is_causal(p.shape) else 1.0) * PHASES[p.phase]


def _figure(record: Record, problem: Problem) -> ClaimFigure:
    time = record.time
    if time is None:
        why = f"{record.variant} at {problem}: {record.status}: {record.reason}"
        return ClaimFigure(None, why=why)
    work = flops(problem) / 1e12
    return ClaimFigure(work / time.median_s, work / time.high_s, work / time.low_s)


def _evidence(record: Record) -> Cells:
    """What speaks for the rate or against it: samples, clocks, kernels, flags."""
    time = record.time
    if time is None:
        return [*[None] * 6, f"{record.status}: {record.reason}"]
    clock = time.clocks.get("sm_mhz")
    times = [1e3 * time.median_s, 1e3 * time.low_s, 1e3 * time.high_s]
    return [*times, time.n, clock, ", ".join(record.kernels[:2]), "; ".join(time.flags)]
