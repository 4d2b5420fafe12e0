"""``attnbench limits``: how long a sequence, or how large a batch, each variant takes in a budget.

A variant passes its whole gate where that is cheap, then its search proposes sizes and a worker
looks at each. Everybody gets a first look before anybody gets a second, the cheapest first, and a
look is begun only where it is expected to end in time: what the wall clock cuts short is wide
brackets, never blanks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, Protocol

from attnbench.machine import Machine
from attnbench.measure.probed import Probed
from attnbench.parts import InvalidRecord
from attnbench.record import Record, Status
from attnbench.sweep.asking import CELL_LIMIT_S, Engine, measure
from attnbench.sweep.bracket import Search
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.growth import MEMORY, TIME, Budget, Look, Sizes
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
FINDINGS = (Status.WRONG, Status.FAILED, Status.CRASHED, Status.IMPLAUSIBLE)
CALLS = 4.5
"""Calls that a look makes: a first, some timed ones, one under the memory meter."""
UNKNOWN_S = 1.5
"""A guess at a look of a variant that nobody has looked at."""
PATIENCE_S, PATIENCE_CALLS = 20.0, 20.0
"""How long a look may take before it is given up: for building and checking, and in calls as long
as a call may take."""
IN_TURN = 3
"""So many times everybody is asked before anybody is again: the gate, and two looks."""
GRACE_S = 5.0
"""By how much the last look may be late."""


class Watcher(Protocol):
    """Whoever shows the progress."""

    def looked(self, limit: Limit, said: str, left_s: float) -> None:
        """Something was found out about a variant in a phase."""


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


# ---- asking a worker ---------------------------------------------------------------------------


class Hunt:
    """Looks at limits in turn until all are found, the wall clock is spent or somebody stops it."""

    def __init__(self, limits: Sequence[Limit], engine: Engine, budget: Budget, seed: int,
                 watcher: Watcher, *, now: Callable[[], float] = monotonic) -> None:  # fmt: skip
        self.limits, self._engine, self._budget, self._seed = limits, engine, budget, seed
        self._watcher, self._now = watcher, now

    def run(self, seconds: float) -> Iterator[Limit]:
        """Each limit as something new is known of it."""
        until = self._now() + seconds
        while (limit := self._next(until - self._now())) is not None:
            started = self._now()
            if limit.gated is None:
                said = self._gate(limit, until - started)
            else:
                said = self._look(limit, until - started)
            self._watcher.looked(limit, said, max(0.0, until - self._now()))
            yield limit

    def _next(self, left_s: float) -> Limit | None:
        """Who was looked at least often, at first; then the cheapest that can still be done."""
        if left_s <= 0:
            return None
        known = [
            (min(limit.turn, IN_TURN), limit.guess_s(), limit)
            for limit in self.limits
            if limit.open
        ]
        fits = [each for each in known if each[1] <= left_s]
        return min(fits, key=lambda each: each[:2], default=(0, 0.0, None))[2]

    def _gate(self, limit: Limit, left_s: float) -> str:
        header = {"seed": self._seed, "budget_s": 0.0}
        most = min(CELL_LIMIT_S, left_s + GRACE_S)
        record = measure(limit.gate, header, self._engine, timed=False, limit_s=most)
        limit.gated = record
        if record.status is Status.MEASURED:
            return "the gate holds"
        if record.status is Status.TIMED_OUT and most < CELL_LIMIT_S:
            limit.gated, limit.closed = None, Look(0, "", "the wall clock was spent", ran=False)
        else:
            limit.closed = Look(0, str(record.status), record.reason, ran=True)
        return f"{limit.closed.why or 'stopped'}: {limit.closed.reason}"

    def _look(self, limit: Limit, left_s: float) -> str:
        size = limit.search.next()
        assert size is not None
        began = self._now()
        look = self._asked(limit, size, left_s)
        if look is None:
            limit.closed = Look(0, "", "the wall clock was spent", ran=False)
            return "given up: the wall clock was spent"
        calls = CALLS * (look.time_s or 0.0)
        limit.spent_s[size] = max(0.0, self._now() - began - calls)
        limit.search.hear(look)
        return said(look, limit.by)

    def _asked(self, limit: Limit, size: int, left_s: float, *,
               again: bool = False) -> Look | None:  # fmt: skip
        """What a worker says of a size; None where only the wall clock ended it."""
        problem, patience = limit.at(size), PATIENCE_S + PATIENCE_CALLS * self._budget.seconds
        job = {"variant": limit.variant.to_dict(), "problem": problem.to_dict(), "seed": self._seed,
               "timed": False}  # fmt: skip
        expected = limit.search.growth.formula_at(size)
        question = {"probe": job, "max_time_s": self._budget.seconds, "expected": expected}
        limit_s = min(patience, left_s + GRACE_S)
        try:
            found = Probed.from_dict(self._engine.ask(question, limit_s)["probe"])
        except (InvalidRecord, KeyError, TypeError, ValueError) as error:
            self._engine.close()
            return Look(size, str(Status.CRASHED), f"the worker's answer is no probe: {error}")
        except WorkerLost as lost:
            return _lost(lost, size, limit_s, cut=limit_s < patience)
        if found.status is Status.OUT_OF_MEMORY and not again:
            self._engine.close()  # what others left in its heap may have been in the way
            return self._asked(limit, size, left_s, again=True)
        return _judged(found, size, self._budget)


def _lost(lost: WorkerLost, size: int, limit_s: float, *, cut: bool) -> Look | None:
    if lost.wrong:
        return Look(size, str(Status.WRONG), lost.reason)
    if not lost.timed_out:
        return Look(size, str(Status.CRASHED), lost.reason, more={"detail": lost.said})
    return None if cut else Look(size, TIME, f"given up after {limit_s:.0f} s")


def _judged(found: Probed, size: int, budget: Budget) -> Look:
    """Whether what was found is within the budgets."""
    if found.status is not Status.MEASURED:
        return Look(size, str(found.status), found.reason, more=found.to_dict())
    why, reason = "", ""
    if found.time_s is not None and found.time_s > budget.seconds:
        why, reason = TIME, "a call took longer"
    elif found.peak_bytes is not None and found.peak_bytes > budget.peak_bytes:
        why, reason = MEMORY, "observed"
    return Look(size, why, reason, found.time_s, found.peak_bytes, more=found.to_dict())


def said(look: Look, by: By) -> str:
    """What came of a look, in a few words."""
    figures = [] if look.time_s is None else [f"{look.time_s * 1e3:.3g} ms"]
    if look.peak_bytes is not None:
        figures.append(f"{look.peak_bytes / 2**20:.3g} MiB")
    if not look.why:
        what = "holds"
    elif look.why in (MEMORY, TIME):
        what = f"over the {look.why}"
    else:
        what = f"{look.why.replace('_', ' ')}: {look.reason}"
    return f"{by} {look.size:,}: {', '.join([what, *figures])}"
