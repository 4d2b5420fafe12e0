"""Measuring for a choice: only what could win, and at the end the best in pairs.

Where a call takes long, all are tried on a shorter sequence first, and who is far behind there is
left out. A variant that keeps more than is allowed, by its own formula, isn't tried at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.comparison import Comparison
from attnbench.record import NOT_TRIED, Record
from attnbench.sweep.compare import compare_cells
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import Cell, Plan
from impls.loading import load_function
from impls.problem import InvalidProblem, Problem

LONG_S = 20.0
"""Where a cell is thought to take longer, a shorter sequence is tried first."""
SHORTER = 4
LEAST_KEYS = 64
HOPELESS = 8.0
"""Who takes so many times as long as the fastest on a quarter of the tokens won't win on all of
them, be its power of the length one less."""
NEAR = 1.15
"""Whose median is within this of the best goes into pairs with it."""
MOST_PAIRED = 2
PAIRS_S = 10.0
CALLS, MOST_S = 80, 120.0
"""Forty pairs are looked at first; what takes longer isn't begun."""


@dataclass(frozen=True)
class Held:
    """One held against the best, in pairs."""

    judged: str
    against: str
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"judged": self.judged, "against": self.against, **self.comparison.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Held:
        """Back from :meth:`to_dict`."""
        rest = {k: v for k, v in values.items() if k not in ("judged", "against")}
        return cls(values["judged"], values["against"], Comparison.from_dict(rest))


def within(plan: Plan, most: int | None) -> tuple[list[str], dict[str, int]]:
    """Who could be measured; and by their own formulas the bytes of those that need too many."""
    peaks = {c.variant.label: _peak(c) for c in plan.to_run}
    large = {name: peak for name, peak in peaks.items() if most and peak and peak > most}
    return [c.variant.label for c in plan.cells if c.variant.label not in large], large


def _peak(cell: Cell) -> int | None:
    if cell.variant.cost is None:
        return None
    peak: int | None = load_function(cell.variant.cost)(
        cell.problem, **cell.variant.chosen
    ).peak_bytes
    return peak


def shorter(plan: Plan) -> Problem | None:
    """What is tried first; None where that is not worth it, or the mask fits one length alone."""
    runs = plan.to_run
    if max((cell.guess_s for cell in runs), default=0.0) < LONG_S:
        return None
    problem = runs[0].problem
    if problem.inputs.startswith("captured:"):
        return None
    keys = problem.kv_len // SHORTER
    queries = 1 if problem.q_len == 1 else max(1, problem.q_len // SHORTER)
    try:
        return problem.with_(q_len=queries, kv_len=keys) if keys >= LEAST_KEYS else None
    except InvalidProblem:
        return None


def hopeful(records: Sequence[Record]) -> tuple[list[str], dict[str, float]]:
    """Who could win, after all were tried on a shorter sequence, the fastest first; and of the
    others how many times as long they took as the fastest.

    Who was not measured there may have been refused its length alone, and stays.
    """
    taken = {r.variant: r.time.median_s for r in records if r.time is not None}
    best = min(taken.values(), default=0.0)
    times = {name: taken[name] / best for name in sorted(taken, key=taken.__getitem__)}
    untried = [r.variant for r in records if r.status in NOT_TRIED]
    kept = [name for name, each in times.items() if each <= HOPELESS]
    return [*kept, *untried], {name: x for name, x in times.items() if x > HOPELESS}


def near_the_best(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Of some variants those that a median alone does not tell from the best, the best first; two
    at the least.
    """
    taken = {
        r.variant: r.time.median_s for r in records if r.time is not None and r.variant in names
    }
    order = sorted(taken, key=taken.__getitem__)
    near = [name for name in order if taken[name] <= NEAR * taken[order[0]]]
    return (near if len(near) > 1 else order[:2])[: MOST_PAIRED + 1]


def in_pairs(cells: Sequence[Cell], seconds: float, engine: LocalEngine,
             header: Mapping[str, Any], say: Callable[[str], None]) -> list[Held]:  # fmt: skip
    """The first of some cells against each of the others. ``seconds``: of a call of the first."""
    best, *others = cells
    if seconds * CALLS > MOST_S:
        say(f"no pairs: {CALLS} calls of {seconds:.2g} s are the fewest that decide anything")
        return []
    found = []
    for cell in others:
        (one,) = compare_cells(
            [cell], [best], engine, seed=header["seed"], margin=None, floors=header["noise"],
            budget_s=PAIRS_S, watch=lambda _: None,
        )  # fmt: skip
        if one.pairs is None:
            say(f"no pairs of {cell.variant.label}: {one.status}: {one.why}")
        else:
            held = Held(cell.variant.label, best.variant.label, one.pairs.comparison)
            found.append(held)
    return found
