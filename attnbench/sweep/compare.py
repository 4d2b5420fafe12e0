"""Two variants against each other on each problem of a grid, in pairs, in one worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnbench.comparison import Comparison, Verdict
from attnbench.pairs import Pairs, corrected
from attnbench.record import Status
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.plan import Cell
from impls.problem import Problem

START_AND_GATE_S = 300.0


@dataclass(frozen=True)
class Compared:
    """What became of one problem: pairs, or why there are none."""

    problem: Problem
    pairs: Pairs | None
    status: Status = Status.MEASURED
    why: str = ""
    """Who was stopped, and the reason, where there are no pairs."""

    @property
    def comparison(self) -> Comparison | None:
        """What the pairs say; None where there are none."""
        return None if self.pairs is None else self.pairs.comparison

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "problem": self.problem.to_dict(), "status": str(self.status), "why": self.why,
            "pairs": self.pairs and self.pairs.to_dict(),
        }  # fmt: skip


def compare_cells(judged: Sequence[Cell], against: Sequence[Cell], engine: LocalEngine, *,
                  seed: int, margin: float | None, floors: Sequence[Mapping[str, Any]],
                  budget_s: float,
                  watch: Callable[[Compared], None]) -> list[Compared]:  # fmt: skip
    """Problem after problem; a difference among many stands only after Holm's correction."""
    found = []
    for cell, other in zip(judged, against, strict=True):
        left_out = cell.left_out or other.left_out
        if left_out is not None:
            said = f"{left_out.variant}: {left_out.reason}"
            compared = Compared(cell.problem, None, left_out.status, said)
        else:
            compared = compare_cell(cell, other, engine, seed, margin, floors, budget_s)
        found.append(compared)
        watch(compared)
    pairs = corrected([c.pairs for c in found])
    return [replace(c, pairs=each) for c, each in zip(found, pairs, strict=True)]


def compare_cell(judged: Cell, against: Cell, engine: LocalEngine, seed: int, margin: float | None,
                 floors: Sequence[Mapping[str, Any]], budget_s: float,
                 limit_s: float = math.inf) -> Compared:  # fmt: skip
    """One problem, by itself; ``limit_s``: no answer is waited for any longer."""
    jobs = [
        {"variant": c.variant.to_dict(), "problem": c.problem.to_dict(), "seed": seed}
        for c in (against, judged)  # the ratio is of the second's time to the first's
    ]
    asked = {
        "compare": jobs, "margin": margin, "floors": [dict(f) for f in floors],
        "budget_s": budget_s,
    }  # fmt: skip
    try:
        answer = engine.ask(asked, min(limit_s, START_AND_GATE_S + 4 * budget_s))
    except WorkerLost as lost:
        status = Status.TIMED_OUT if lost.timed_out else Status.CRASHED
        status = Status.WRONG if lost.wrong else status
        return Compared(judged.problem, None, status, lost.reason)
    if "stopped" in answer:
        status = Status(answer["stopped"]["status"])
        return Compared(judged.problem, None, status, answer["stopped"]["why"])
    return Compared(judged.problem, Pairs.from_dict(answer["pairs"]))


def counts(found: Sequence[Compared]) -> dict[str, int]:
    """How many problems came to which verdict, or to none."""
    verdicts = [str(c.comparison.verdict) if c.comparison else str(c.status) for c in found]
    known = [str(v) for v in Verdict]
    order = [*known, *(v for v in dict.fromkeys(verdicts) if v not in known)]
    return {v: verdicts.count(v) for v in order if v in verdicts}
