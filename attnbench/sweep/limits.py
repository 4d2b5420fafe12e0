"""``attnbench limits``: how long a sequence, or how large a batch, each variant takes in a budget.

Here is what is to be found out, and what cannot be: a limit for each variant and phase, with the
search that its formulas begin. :mod:`attnbench.sweep.hunt` asks a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from attnbench.machine import Machine
from attnbench.record import Record, Status
from attnbench.sweep.bracket import Search
from attnbench.sweep.growth import Budget, Look, Sizes
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.loading import load_function
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

By = Literal["seq", "batch"]
GATE_SEQ = "256"
"""Where the whole gate is passed, if the sequence is what is searched."""
BATCH_SEQ = "1024"
"""How long each sequence is, if the batch is what is searched."""
SEQ = Sizes(step=64, shortest=64, longest=1 << 22, start=1024)
BATCH = Sizes(step=1, shortest=1, longest=1 << 20, start=1)
RANKS = "it runs over several processes, and limits looks at one"
CALLS = 4.5
"""Calls that a look makes: a first, some timed ones, one under the memory meter."""
UNKNOWN_S = 1.5
"""A guess at a look of a variant that nobody has looked at."""


@dataclass
class Limit:
    """A variant in one phase: its gate, its search, and where nothing could be searched, why."""

    variant: Variant
    problem: Problem
    """At the length where the gate is passed."""
    gate: Cell
    by: By
    search: Search
    gated: Record | None = None
    closed: Look | None = None
    """Why there is no search, or no more of it."""
    spent_s: dict[int, float] = field(default_factory=dict)
    """Wall time of each look, by size, its calls left out."""

    def at(self, size: int) -> Problem:
        """The problem of that size."""
        return sized(self.problem, self.by, size)

    @property
    def turn(self) -> int:
        """How often somebody looked at it, the gate counted."""
        return (self.gated is not None) + len(self.search.looks)

    @property
    def open(self) -> bool:
        """Whether there is anything left to find out."""
        return self.closed is None and not (self.gated is not None and self.search.done)

    def guess_s(self) -> float:
        """Seconds that the next look will take."""
        if self.gated is None:
            return 0.0
        size, looks = self.search.next(), self.search.looks
        if size is None:
            return 0.0
        if not looks:
            return UNKNOWN_S
        last = looks[-1].size
        beside = self.spent_s.get(last, UNKNOWN_S) * max(1.0, size / last)
        return CALLS * self.search.growth.guess_s(size) + beside


def sized(problem: Problem, by: By, size: int) -> Problem:
    """The same problem with another length, or another batch."""
    if by == "batch":
        return problem.with_(batch=size)
    if problem.phase == "decode":
        return problem.with_(kv_len=size)
    return problem.with_(q_len=size, kv_len=size)


def plan(table: Table, names: Sequence[str], grid: Preset, by: By, budget: Budget,
         machine: Machine) -> list[Limit]:  # fmt: skip
    """A limit for each variant and phase; of all variants those that can run here."""
    wide = [name for name in ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype",
                              "inputs", "seq") if len(getattr(grid, name)) > 1]  # fmt: skip
    if wide:
        raise InvalidProblem(
            f"limits takes one value of {', '.join(wide)}: what is searched is the {by} alone, and "
            "only --phase and --mask may have several values"
        )
    if any(x.startswith("captured:") for x in grid.inputs):
        raise InvalidProblem("captured inputs have one length and one batch; limits changes both")
    made = make_plan(table, names, grid, machine)
    cells = made.cells if names else [cell for cell in made.to_run if not cell.variant.ranks]
    return [_limit(cell, by, budget) for cell in cells]


def _limit(cell: Cell, by: By, budget: Budget) -> Limit:
    sizes = _sizes(cell.problem, by)
    limit = Limit(cell.variant, cell.problem, cell, by, Search(budget, sizes, *_cost(cell, by)))
    if (out := cell.left_out) is not None:
        limit.closed = Look(0, str(out.status), out.reason, ran=False)
    elif cell.variant.ranks:
        limit.closed = Look(0, str(Status.UNSUPPORTED), RANKS, ran=False)
    return limit


def _sizes(problem: Problem, by: By) -> Sizes:
    if by == "batch":
        _refuse_misfit(problem, by, 2)
        return BATCH
    for size in (SEQ.shortest, SEQ.shortest + SEQ.step):
        _refuse_misfit(problem, by, size)
    return SEQ


def _refuse_misfit(problem: Problem, by: By, size: int) -> None:
    """A mask that stands for one length, or for one batch, can't be stretched."""
    try:
        sized(problem, by, size)
    except InvalidProblem as wrong:
        other = "--by batch" if by == "seq" else "--by seq"
        raise InvalidProblem(
            f"limits can't search the {by} under this mask: at {size}, {wrong}; use {other}, or a "
            "mask that fits any size"
        ) from None


def _cost(cell: Cell, by: By) -> tuple[Callable[[int], int | None], Callable[[int], float | None]]:
    """The row's formulas by size: bytes at the worst instant, and operations."""
    variant, path = cell.variant, cell.variant.cost

    def cost(size: int) -> Any:
        if path is None:
            return None
        try:
            return load_function(path)(sized(cell.problem, by, size), **variant.chosen)
        except Exception:  # a formula may refuse what its variant does
            return None

    def expected(size: int) -> int | None:
        found = cost(size)
        return None if found is None else found.peak_bytes

    def work(size: int) -> float | None:
        found = cost(size)
        return None if found is None else float(found.flops)

    return expected, work
