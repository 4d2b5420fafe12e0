"""Limits found by asking a worker.

A variant passes its whole gate where that is cheap, then its search proposes sizes and a worker
looks at each. Everybody gets a first look before anybody gets a second, the cheapest first, and a
look is begun only where it is expected to end in time: what the wall clock cuts short is wide
brackets, never blanks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Protocol

from attnbench.measure.probed import Probed
from attnbench.parts import InvalidRecord
from attnbench.record import Status
from attnbench.sweep.asking import CELL_LIMIT_S, Engine, measure
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.growth import MEMORY, TIME, Budget, Look
from attnbench.sweep.limits import CALLS, By, Limit

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
