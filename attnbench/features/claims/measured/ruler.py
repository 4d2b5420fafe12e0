"""The ruler's workers, asked on behalf of a claim: cells, and pairs of cells.

What is timed passes the gate first, as everywhere. No stopwatch of our own.
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
from attnbench.features.claims.claim import ClaimFigure, ClaimRequest
from attnbench.sweep.compare import Compared, compare_cell
from attnbench.sweep.engine import START_LIMIT_S, Engine, LocalEngine, measure
from attnbench.sweep.plan import Cell
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

MARGIN = 0.01
"""Pairs stop once they decide at this margin, if no other is asked for."""


@contextmanager
def engine(asked: ClaimRequest, device: str = "cpu") -> Iterator[LocalEngine]:
    """A worker of its own, and the device for it alone."""
    settings = Settings(threads=asked.threads)
    with lock_for([device]), LocalEngine(settings, limited=device == "cpu") as opened:
        yield opened


def row(label: str) -> Variant:
    """A row of the table by its name and options."""
    return impls.table().find(label)


def problem(values: Mapping[str, Any]) -> Problem:
    """A problem from some of its fields."""
    return Problem(**{**values, "mask": Mask.parse(str(values.get("mask", "none")))})


def cell(variant: Variant, of: Problem) -> Cell:
    """A cell to be asked for; raises a sentence where the row refuses the problem."""
    if (why := variant.supports(of)) is not None:
        raise InvalidProblem(f"{variant.label} does not take {of}: {why}")
    return Cell(variant, of, None, 0.0)


def ceilings(opened: Engine, dtypes: list[str], device: str) -> dict[str, Any]:
    """What the device can do, for the ruler's own doubts."""
    answer: dict[str, Any] = opened.ask({"ceilings": dtypes, "device": device}, START_LIMIT_S)
    return dict(answer["ceilings"])


def record(
    opened: Engine,
    variant: Variant,
    of: Problem,
    asked: ClaimRequest,
    budget_s: float,
    *,
    limits: Mapping[str, Any] | None = None,
    timed: bool = True,
) -> Record:
    """One cell."""
    header = {"seed": asked.seed, "budget_s": budget_s, "ceilings": dict(limits or {})}
    return measure(cell(variant, of), header, opened, timed=timed)


def pairs(
    opened: LocalEngine,
    judged: Variant,
    against: Variant,
    of: Problem,
    asked: ClaimRequest,
    seconds: float,
    *,
    against_on: Problem | None = None,
    margin: float = MARGIN,
) -> Compared:
    """The first's time over the second's, on one problem, or on one each."""
    sides = cell(judged, of), cell(against, against_on or of)
    return compare_cell(*sides, opened, asked.seed, margin, (), seconds)


def ratio(found: Compared) -> ClaimFigure:
    """Of pairs: the ratio and its 99 % interval; or why there is none."""
    c = found.comparison
    if c is None:
        return ClaimFigure(None, why=f"{found.problem}: {found.status}: {found.why}")
    return ClaimFigure(c.ratio, c.low, c.high)


def medians(found: Compared) -> tuple[float | None, float | None]:
    """Seconds of a call of each: the one judged against, the one judged."""
    if found.pairs is None:
        return None, None
    return statistics.median(found.pairs.a_s), statistics.median(found.pairs.b_s)
