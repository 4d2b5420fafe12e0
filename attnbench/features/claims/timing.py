"""What claims about times share: a worker, cells, and pairs of cells.

Everything timed passes the gate first, as everywhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import impls
from attnbench.core.lock import lock_for
from attnbench.core.record import Record
from attnbench.core.settings import Settings
from attnbench.features.claims.claim import (
    Cells,
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    ClaimTable,
)
from attnbench.sweep.compare import Compared, compare_cell
from attnbench.sweep.engine import Engine, LocalEngine, measure
from attnbench.sweep.plan import Cell
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

MARGIN = 0.01
"""The margin at which pairs decide."""
PAIRS_SHARE = 0.7
"""Of the time that is given; the rest is for starting and for the gate."""


@contextmanager
def open_engine(request: ClaimRequest, device: str = "cpu") -> Iterator[LocalEngine]:
    """A worker, and the device for it alone."""
    settings = Settings(threads=request.threads)
    with lock_for([device]), LocalEngine(settings, limited=device == "cpu") as engine:
        yield engine


def problem_of(values: Mapping[str, Any]) -> Problem:
    """A problem from some of its fields."""
    return Problem(**{**values, "mask": Mask.parse(str(values.get("mask", "none")))})


def _cell(variant: Variant, problem: Problem) -> Cell:
    """A cell; raises InvalidProblem where the row refuses the problem."""
    if (why := variant.supports(problem)) is not None:
        raise InvalidProblem(f"{variant.label} does not take {problem}: {why}")
    return Cell(variant, problem, None, 0.0)


def measure_cell(
    engine: Engine,
    variant: Variant,
    problem: Problem,
    request: ClaimRequest,
    budget_s: float,
    *,
    ceilings: Mapping[str, Any] | None = None,
    timed: bool = True,
) -> Record:
    """The record of one cell."""
    header = {"seed": request.seed, "budget_s": budget_s, "ceilings": dict(ceilings or {})}
    return measure(_cell(variant, problem), header, engine, timed=timed)


def compare(
    engine: LocalEngine,
    judged: Variant,
    against: Variant,
    problem: Problem,
    request: ClaimRequest,
    seconds: float,
    *,
    against_on: Problem | None = None,
    margin: float = MARGIN,
) -> tuple[ClaimFigure, Compared]:
    """The time of the first over that of the second, on one problem, or on one each.

    The ratio of pairs with its 99 % interval, or why there is none; and the pairs themselves.
    """
    sides = _cell(judged, problem), _cell(against, against_on or problem)
    found = compare_cell(*sides, engine, request.seed, margin, (), seconds)
    c = found.comparison
    if c is None:
        return ClaimFigure(None, why=f"{found.problem}: {found.status}: {found.why}"), found
    return ClaimFigure(c.ratio, c.low, c.high), found


def medians_ms(result: Compared) -> tuple[float | None, float | None]:
    """Milliseconds of a call: of the variant judged against, and of the one judged."""
    if result.pairs is None:
        return None, None
    a_s, b_s = statistics.median(result.pairs.a_s), statistics.median(result.pairs.b_s)
    return 1e3 * a_s, 1e3 * b_s


def measure_ratio(request: ClaimRequest) -> ClaimFindings:
    """For each point, the time of the variant judged over the other's."""
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    seconds = PAIRS_SHARE * request.seconds / len(request.cells)
    with open_engine(request) as engine:
        for name, cell in request.cells.items():
            judged, against = (impls.table().find(cell[key]) for key in ("judged", "against"))
            problem = problem_of(cell["problem"])
            ratio, found = compare(engine, judged, against, problem, request, seconds)
            figures[name] = ratio
            against_ms, judged_ms = medians_ms(found)
            c = found.comparison
            pairs = [ratio.value, ratio.low, ratio.high, c.n if c else None]
            verdict = str(c.verdict) if c else found.why
            times = [judged_ms, against_ms]
            rows.append([name, cell["judged"], cell["against"], *times, *pairs, verdict])
    columns = ["point", "judged", "against", "judged, ms", "against, ms"]
    columns += ["ratio", "from", "to", "pairs", "verdict at 1 %"]
    return ClaimFindings(figures, (), [ClaimTable("in pairs", columns, rows)])


def measure_saving(request: ClaimRequest) -> ClaimFindings:
    """For each point, the share of time that the variant judged saves; negative if it is slower."""
    found = measure_ratio(request)
    figures = {}
    for name, ratio in found.figures.items():
        low, high = ratio.interval
        saved = ClaimFigure(1 - (ratio.value or 0.0), 1 - high, 1 - low)
        figures[name] = ratio if ratio.value is None else saved
    return ClaimFindings(figures, (), found.tables)
