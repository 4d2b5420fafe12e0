"""Claims about times: ratios of two variants in pairs, and published rates of kernels on GPUs.

GPU times are of cold caches, one call a sample. Rates are counted as their authors count:

    forward  4 b h n^2 d     half of it where the mask is causal
    backward 5/2 of forward, since the scores are computed again; both: 7/2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import impls
from attnbench.core.record import Record
from attnbench.core.settings import Settings
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.sweep.compare import Compared, compare_cell
from attnbench.sweep.engine import START_LIMIT_S, Engine, LocalEngine, engine_on, measure
from attnbench.sweep.plan import Cell
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

MARGIN = 0.01
PAIRS_SHARE, CELLS_SHARE = 0.7, 0.5
"""Shares of the time, of pairs and of rates; the rest is for starting and for the gate."""


def problem_of(values: Mapping[str, Any]) -> Problem:
    """A problem from some of its fields."""
    return Problem(**{**values, "mask": Mask.parse(str(values.get("mask", "none")))})


def cell_of(variant: Variant, problem: Problem) -> Cell:
    """A variant on a problem; raises InvalidProblem where it does not take it."""
    if (why := variant.supports(problem)) is not None:
        raise InvalidProblem(f"{variant.label} does not take {problem}: {why}")
    return Cell(variant, problem, None, 0.0)


def measure_cell(
    engine: Engine,
    variant: Variant,
    problem: Problem,
    request: ClaimRequest,
    budget_s: float = 0.0,
    ceilings: Mapping[str, Any] = {},
) -> Record:
    """The record of one cell, which is timed where there is a budget; raises InvalidProblem."""
    header = {"seed": request.seed, "budget_s": budget_s, "ceilings": dict(ceilings)}
    return measure(cell_of(variant, problem), header, engine, timed=budget_s > 0)


def compare(
    engine: LocalEngine,
    judged: Cell,
    against: Cell,
    request: ClaimRequest,
    seconds: float,
    margin: float = MARGIN,
) -> tuple[ClaimFigure, Compared, list[float | None]]:
    """The time of the first over that of the second.

    The ratio with its 99 % interval, or why there is none; the pairs; the milliseconds of a call of
    each.
    """
    result = compare_cell(judged, against, engine, request.seed, margin, (), seconds)
    c = result.comparison
    if c is None:
        why = f"{result.problem}: {result.status}: {result.why}"
        return ClaimFigure(None, why=why), result, [None, None]
    medians = [1e3 * seconds for seconds in reversed(c.medians)]
    return ClaimFigure(c.ratio, c.low, c.high), result, [*medians]


def measure_ratio(request: ClaimRequest) -> ClaimFindings:
    """For each point, the time of the variant judged over the other's."""
    figures, rows = dict[str, ClaimFigure](), list[Any]()
    seconds = PAIRS_SHARE * request.seconds / len(request.cells)
    with engine_on("cpu", Settings(threads=request.threads)) as engine:
        for name, cell in request.cells.items():
            problem, find = problem_of(cell["problem"]), impls.table().find
            judged, against = (cell_of(find(cell[key]), problem) for key in ("judged", "against"))
            ratio, result, ms = compare(engine, judged, against, request, seconds)
            figures[name], c = ratio, result.comparison
            pairs = [ratio.value, ratio.low, ratio.high, c.n if c else None]
            verdict = str(c.verdict) if c else result.why
            rows.append([name, cell["judged"], cell["against"], *ms, *pairs, verdict])
    columns = ["point", "judged", "against", "judged, ms", "against, ms"]
    columns += ["ratio", "from", "to", "pairs", "verdict at 1 %"]
    return ClaimFindings(figures, (), [ClaimTable("in pairs", columns, rows)])


PHASES = {"forward": 1.0, "backward": 2.5, "train": 3.5}
"""Work over that of a forward pass."""
SECONDS = 0.5


def measure_rates(request: ClaimRequest) -> ClaimFindings:
    """TFLOP/s, a cell for each point, with what speaks for it: samples, clocks, kernels, flags."""
    figures, rows = dict[str, ClaimFigure](), dict[str, list[Any]]()
    problems = {name: problem_of(cell["problem"]) for name, cell in request.cells.items()}
    each_s = min(SECONDS, CELLS_SHARE * request.seconds / len(request.cells))

    def by_shape(name: str) -> tuple[str, float]:
        """The phases of a problem after one another, training first: they share inputs."""
        return str(problems[name].with_(phase="forward")), -PHASES[problems[name].phase]

    with engine_on("cuda", Settings(threads=request.threads)) as engine:
        dtypes = sorted({problem.dtype for problem in problems.values()})
        ceilings = engine.ask({"ceilings": dtypes, "device": "cuda"}, START_LIMIT_S)["ceilings"]
        for name in sorted(problems, key=by_shape):
            problem, variant = problems[name], impls.table().find(request.cells[name]["variant"])
            record = measure_cell(engine, variant, problem, request, each_s, ceilings)
            if (time := record.time) is None:
                why = f"{record.variant} at {problem}: {record.status}: {record.reason}"
                figures[name] = ClaimFigure(None, why=why)
                rows[name] = [name, *[None] * 7, f"{record.status}: {record.reason}"]
                continue
            work = flops(problem) / 1e12
            low, high = work / time.high_s, work / time.low_s
            figures[name] = ClaimFigure(work / time.median_s, low, high)
            times = [1e3 * time.median_s, 1e3 * time.low_s, 1e3 * time.high_s]
            kernels, flags = ", ".join(record.kernels[:2]), "; ".join(time.doubts)
            hot = work / time.sustained_s if time.sustained_s else None
            rows[name] = [name, *times, time.n, time.clocks.get("sm_mhz"), hot, kernels, flags]
    columns = ["point", "ms", "from", "to", "samples", "SM MHz", "back to back, TFLOP/s"]
    columns += ["kernels", "notes"]
    table = ClaimTable("cells", columns, [rows[name] for name in request.cells])
    return ClaimFindings(figures, (), [table])


def flops(problem: Problem) -> float:
    """By the authors' convention."""
    p = problem
    product = 4.0 * p.batch * p.heads * p.q_len * p.kv_len * p.head_dim
    return product * (0.5 if p.mask.is_causal(p.shape) else 1.0) * PHASES[p.phase]
