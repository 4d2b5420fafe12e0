"""How far each variant goes: the longest length, or the largest batch, within a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import monotonic
from typing import Any

import msgspec

from attnbench.answer.search import GRACE_S, By, fresh_if_full, in_turn, refuse_several, sized
from attnbench.core import format
from attnbench.core.machine import Machine, pace
from attnbench.core.record import FINDINGS, InvalidRecord, Probed, Record, Status
from attnbench.sweep.engine import CELL_LIMIT_S, Engine, WorkerLost, lost_status, measure
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.loading import load_function
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

MEMORY, TIME = "memory", "time"
EXACT = 0.02
"""A formula that comes this near to every measured peak may rule sizes out."""
AIM = 0.92
"""The share of the time that is aimed at: a size that holds tells more than one that does not."""
AHEAD, CHEAP = 4, 1 << 17
"""A formula counts rows, so it is computed no further than so many times the longest look, or this.
"""
LEAST, MOST = 1.0, 2.5
"""A cost grows with a power of the size between these."""
LEAP = 32
"""At most so many times what held is tried next."""
NEAR = 0.25
"""The share of a bracket, on a logarithmic scale, that a look keeps from its ends."""


@dataclass(frozen=True)
class CallBudget:
    """What a call may take."""

    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Sizes:
    """The sizes that may be tried: multiples of a step, no finer than a sixteenth."""

    step: int
    longest: int
    shortest: int
    start: int
    """The first to be tried."""
    power: float = 2.0
    """With which a cost is thought to grow, as long as one size alone is known."""

    def down(self, size: float) -> int:
        """The largest of them that is not above."""
        if size >= self.longest:
            return self.longest
        return max(self.shortest, int(size) // self.step * self.step)

    def width(self, size: int) -> int:
        """How near two sizes need not come."""
        return max(self.step, size // 16 // self.step * self.step)


@dataclass(frozen=True)
class SizeResult:
    """The result of one size. ``why`` it does not hold: memory, time or a status; empty if it does.

    One that did not run was ruled out by an exact formula.
    """

    size: int
    why: str = ""
    reason: str = ""
    time_s: float | None = None
    peak_bytes: int | None = None
    ran: bool = True
    probe: dict[str, Any] = field(default_factory=dict)


class LimitSearch:
    """The search of one variant in one phase: what holds, what does not, and what to try next.

    The sizes to try come from how the time and the memory grew so far, or from the row's formulas.
    """

    def __init__(
        self, budget: CallBudget, sizes: Sizes, expected: Callable[[int], int | None]
    ) -> None:
        """``expected``: the formula's bytes for a size; None if unknown."""
        self.budget, self.sizes, self.formula_at = budget, sizes, cache(expected)
        self.looks: list[SizeResult] = []

    @property
    def held(self) -> SizeResult | None:
        """The longest that ran and held."""
        good = [look for look in self.looks if not look.why]
        return max(good, key=lambda look: look.size, default=None)

    @property
    def failed(self) -> SizeResult | None:
        """The shortest that does not hold: as it ran, or the first that an exact formula puts over
        the budget.
        """
        bad, held, step = [look for look in self.looks if look.why], self.held, self.sizes.step
        if held is not None and self.formula_holds():
            size = self._by_formula(1.0, self._horizon())
            if size is not None and held.size <= size < self.sizes.down(self._horizon()):
                peak, said = self.formula_at(size + step), "predicted by its formula"
                beyond = SizeResult(size + step, MEMORY, said, peak_bytes=peak, ran=False)
                bad.append(beyond)
        return min(bad, key=lambda look: look.size, default=None)

    def formula_holds(self) -> bool:
        """Whether the formula was exact at every size that ran."""
        ratios = self._ratios()
        return bool(ratios) and all(abs(ratio - 1) <= EXACT for ratio in ratios)

    def _ratios(self) -> list[float]:
        """What was measured over what the formula says."""
        peaks = [(look.peak_bytes, self.formula_at(look.size)) for look in self.looks]
        return [peak / formula for peak, formula in peaks if peak and formula]

    def next(self) -> int | None:
        """The size to run; None where the bracket is as narrow as it need be.

        It is never near an end of a bracket that was run, so that this shrinks even if the times
        are noise; but a formula that rules out is taken at its word.
        """
        held, failed, sizes = self.held, self.failed, self.sizes
        if held is None and failed is None:
            size = self._by_formula(1.0, sizes.start)
            return sizes.start if size is None else max(sizes.shortest, size)
        known = [self._memory_size(self._horizon()), self._time_size(AIM)]
        aim = min((size for size in known if size is not None), default=None)
        if aim is None:  # the middle, or twice as long
            low = held.size if held else sizes.shortest
            aim = math.sqrt(low * failed.size) if failed else 2.0 * low
        if failed is None:
            assert held is not None
            low = max(held.size + sizes.width(held.size), min(sizes.down(aim), held.size * LEAP))
            return min(low, sizes.longest) if held.size < sizes.longest else None
        if held is None:
            middle = math.sqrt(sizes.shortest * failed.size)
            aim = middle if len(self.looks) > 2 else min(aim, middle * 2)
            below = max(sizes.shortest, failed.size - sizes.step)
            return min(sizes.down(aim), below) if failed.size > sizes.shortest else None
        return self._between(held, failed, aim)

    def _between(self, held: SizeResult, failed: SizeResult, aim: float) -> int | None:
        sizes = self.sizes
        width = sizes.width(held.size) if failed.ran else sizes.step
        low, high = held.size + sizes.width(held.size), failed.size - width
        if failed.size - held.size <= width:
            return None
        if high < low:
            return sizes.down((held.size + failed.size) // 2)
        if failed.ran:
            ratio = failed.size / held.size
            aim = held.size * min(max(aim / held.size, ratio**NEAR), ratio ** (1 - NEAR))
        return min(max(sizes.down(aim), low), high)

    def reaches(self, what: str) -> int | None:
        """The longest that one budget, ``memory`` or ``time``, would hold; None if unknown."""
        longest = self.sizes.longest
        size = self._memory_size(longest) if what == MEMORY else self._time_size(1.0)
        if size is None:
            return None
        held, failed = self.held, self.failed
        if failed is not None and failed.why == what:
            size = min(float(size), failed.size - self.sizes.step)
        return self.sizes.down(max(size, held.size if held else 0))

    # ---- how memory and time grow --------------------------------------------------------------

    def _horizon(self) -> int:
        """How far the formulas are computed during the search."""
        longest = max((look.size for look in self.looks), default=self.sizes.start)
        return min(self.sizes.longest, max(AHEAD * longest, CHEAP))

    def _memory_size(self, most: int) -> float | None:
        """What the memory budget alone would hold; formulas are computed up to ``most``."""
        points = sorted((x.size, float(x.peak_bytes)) for x in self.looks if x.peak_bytes)
        if (ratios := self._ratios()) or not points:
            return self._by_formula(ratios[-1] if ratios else 1.0, most)
        size, peak = points[-1]
        return float(size * (self.budget.peak_bytes / peak) ** (1 / self._power(points[-2:])))

    def _by_formula(self, scale: float, most: int) -> int | None:
        """The largest size within the memory budget; below the shortest it is 0."""
        sizes, budget = self.sizes, self.budget.peak_bytes

        def fits(size: int) -> bool:
            peak = self.formula_at(size)
            return peak is not None and scale * peak <= budget

        if self.formula_at(sizes.shortest) is None:
            return None
        if not fits(sizes.shortest):
            return 0
        low, high = sizes.shortest, sizes.shortest * 2
        while high < most and fits(high):  # it may cost as much as its size: not far beyond
            low, high = high, high * 2
        high = min(high, sizes.down(most))
        if fits(high):
            return high
        while high - low > sizes.step:
            size = max(sizes.down((low + high) // 2), low + sizes.step)
            low, high = (size, high) if fits(size) else (low, size)
        return low

    def _growth(self) -> tuple[int, float, float] | None:
        """The longest size that has a time, the time, and its power of the size: from two looks
        where they are far enough apart.
        """
        times = sorted((look.size, look.time_s) for look in self.looks if look.time_s)
        if not times:
            return None
        before = [point for point in times if point[0] * 1.5 <= times[-1][0]]
        return *times[-1], self._power([*before[-1:], times[-1]])

    def _time_size(self, share: float) -> float | None:
        """What a share of the time budget alone would hold."""
        if (growth := self._growth()) is None:
            return None
        size, seconds, power = growth
        return float(size * (share * self.budget.seconds / seconds) ** (1 / power))

    def guess_s(self, size: int) -> float:
        """Seconds of a call; 0 where none was timed."""
        if (growth := self._growth()) is None:
            return 0.0
        last, seconds, power = growth
        return float(seconds * (size / last) ** power)

    def _power(self, points: Sequence[tuple[int, float]]) -> float:
        """Of the size, by two points."""
        if len(points) < 2:
            return self.sizes.power
        (a, x), (b, y) = points
        return min(max(math.log(y / x) / math.log(b / a), LEAST), MOST)


# ---- the variants and what is asked of each ------------------------------------------------------

GATE_SEQ = "256"
"""The length at which the whole gate is passed, if the sequence is what is searched."""
BATCH_SEQ = "1024"
"""The length of each sequence, if the batch is what is searched."""
SEQ = Sizes(step=64, shortest=64, longest=1 << 22, start=1024)
BATCH = Sizes(step=1, shortest=1, longest=1 << 20, start=1, power=1.0)
AXES = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "inputs", "seq")
RANKS = "it runs over several processes, and limits looks at one"
CALLS = 4.5
"""Calls that a look makes: a first, some timed ones, one under the memory meter."""
UNKNOWN_S = 1.5
"""A guess at the first look of a variant."""
USUAL_LOOKS, USUAL_SHARE, BESIDE_S = 7, 0.5, 0.25
"""So many looks a search takes as a rule, with calls of this share of what one may take, and so
many seconds besides."""
IN_TURN = 3
"""So many times each limit has its turn before the cheapest comes first: the gate, two looks."""
GATE = 0
"""Stands for the gate where a size is asked for."""


@dataclass
class Limit:
    """A variant in one phase: the problem at which its gate is passed, its search, or why it is
    closed; and the wall time of each look without its calls, by size.
    """

    gate: Cell
    by: By
    search: LimitSearch
    gated: Record | None = None
    closed: SizeResult | None = None
    spent_s: dict[int, float] = field(default_factory=dict)

    @property
    def variant(self) -> Variant:
        """Whose limit it is."""
        return self.gate.variant

    @property
    def problem(self) -> Problem:
        """At the size where the gate is passed."""
        return self.gate.problem

    @property
    def turn(self) -> int:
        """The gate and the looks so far, up to where the cheapest comes first."""
        return min((self.gated is not None) + len(self.search.looks), IN_TURN)

    def next(self, left_s: float = math.inf) -> int | None:
        """The size to try, :data:`GATE` before any; None where nothing is left to find out."""
        if self.closed is not None:
            return None
        return GATE if self.gated is None else self.search.next()

    def expect_s(self, size: int) -> float:
        """Seconds that a look takes."""
        if size == GATE:
            return 0.0
        if not self.search.looks:
            return UNKNOWN_S * pace()
        last = self.search.looks[-1].size
        beside = self.spent_s.get(last, UNKNOWN_S * pace()) * max(1.0, size / last)
        return CALLS * self.search.guess_s(size) + beside

    def guess_s(self, size: int) -> float:
        """A guess at the seconds of a look, whatever was seen."""
        if size == GATE:
            return self.gate.guess_s
        return CALLS * USUAL_SHARE * self.search.budget.seconds + BESIDE_S * pace()

    @property
    def ahead_s(self) -> float:
        """A guess at the seconds of all looks to come."""
        if (size := self.next()) is None:
            return 0.0
        looks = max(1, USUAL_LOOKS - len(self.search.looks))
        return self.guess_s(1) * looks + self.guess_s(GATE) * (size == GATE)

    def row(self, *, stopped: bool, ended: bool) -> dict[str, Any]:
        """What is known of it, as plain values; nothing is predicted before the search has ended:
        that would take time from it.
        """
        search, problem = self.search, self.problem
        held, failed = search.held, search.failed
        budgets = (MEMORY, TIME) if ended and search.looks else ()
        reaches = {what: search.reaches(what) for what in budgets}
        known = {what: size for what, size in reaches.items() if size is not None}
        first = min(known, key=known.__getitem__, default="")
        if held is not None and held.size >= search.sizes.longest:
            first = ""
        why = f"not looked at: {'it was stopped' if stopped else CLOCK_SPENT.reason} first"
        if failed is not None:
            why = f"nothing held that was run, down to {self.by} {failed.size:,}"
        if (closed := self.closed) is not None and closed.why:
            size = problem.batch if self.by == "batch" else problem.kv_len
            at = f"{self.by} {size:,}, in its correctness check: " if closed.ran else ""
            why = f"{closed.why.replace('_', ' ')}: {at}{closed.reason}"
        if failed is not None and not failed.ran and first != failed.why:
            failed = None  # it is ruled out, but something else comes before
        plain = msgspec.to_builtins
        return {
            "variant": self.variant.label,
            "computes": self.variant.computes,
            "family": self.variant.family,
            "phase": problem.phase,
            "mask": str(problem.mask),
            "by": self.by,
            "held": plain(held),
            "fails": plain(failed),
            "limited_by": failed.why if failed else first,
            "predicted": reaches,
            "formula": search.formula_holds(),
            "gate": str(self.gated.status) if self.gated else None,
            "why": "" if held else why,
            "looks": plain(search.looks),
            "problem": problem.to_dict(),
        }


def plan(
    table: Table, names: Sequence[str], grid: Preset, by: By, budget: CallBudget, machine: Machine
) -> list[Limit]:
    """A limit for each variant and phase; of all variants those that can run here. Raises
    InvalidProblem for a grid, or a mask, in which the size can't be searched.
    """
    searched = f"the {by} alone, and only --phase and --mask may have several values"
    refuse_several(grid, "limits", AXES, searched)
    made = make_plan(table, names, grid.with_(budget=0.0), machine)
    cells = made.cells if names else [cell for cell in made.to_run if not cell.variant.ranks]
    return [_limit(cell, by, budget) for cell in cells]


def _limit(cell: Cell, by: By, budget: CallBudget) -> Limit:
    sizes = BATCH if by == "batch" else SEQ
    for size in (sizes.shortest, sizes.shortest + sizes.step)[by == "batch" :]:
        try:
            sized(cell.problem, by, size)
        except InvalidProblem as wrong:  # a mask of one length, or of one batch
            raise InvalidProblem(
                f"limits can't search the {by} under this mask: at {size}, {wrong}; use --by "
                f"{'batch' if by == 'seq' else 'seq'}, or a mask that fits any size"
            ) from None

    def expected(size: int) -> int | None:
        """By the row's own formula."""
        if cell.variant.cost is None:
            return None
        try:
            formula = load_function(cell.variant.cost)
            cost = formula(sized(cell.problem, by, size), **cell.variant.chosen)
        except Exception:  # a formula may refuse what its variant does
            return None
        peak: int | None = cost.peak_bytes
        return peak

    limit = Limit(cell, by, LimitSearch(budget, sizes, expected))
    if (out := cell.left_out) is not None:
        limit.closed = SizeResult(0, str(out.status), out.reason, ran=False)
    elif cell.variant.ranks:
        limit.closed = SizeResult(0, str(Status.UNSUPPORTED), RANKS, ran=False)
    return limit


def frontier(
    limits: Sequence[Limit], *, stopped: bool = False, ended: bool = True
) -> list[dict[str, Any]]:
    """A row for each variant in each phase, the longest first within a phase and a mask."""
    groups = list(dict.fromkeys((x.problem.phase, str(x.problem.mask)) for x in limits))
    rows = [limit.row(stopped=stopped, ended=ended) for limit in limits]
    rows.sort(key=lambda row: -(row["held"] or {"size": 0})["size"])
    return sorted(rows, key=lambda row: groups.index((row["phase"], row["mask"])))


def finding(limits: Sequence[Limit]) -> bool:
    """Whether a variant is not what it claims to be: in its gate, or at a size that it took."""
    bad = {str(status) for status in FINDINGS}
    closed = any(x.closed is not None and x.closed.why in bad for x in limits)
    return closed or any(look.why == str(Status.WRONG) for x in limits for look in x.search.looks)


# ---- looks ---------------------------------------------------------------------------------------

PATIENCE_S, PATIENCE_CALLS = 20.0, 20.0
"""How long a look may take before it is given up: for building and checking, and in calls as long
as a call may take."""
CLOCK_SPENT = SizeResult(0, "", "the wall clock was spent", ran=False)


@dataclass
class Hunt:
    """Looks at limits in turn."""

    limits: Sequence[Limit]
    engine: Engine
    budget: CallBudget
    seed: int
    now: Callable[[], float] = monotonic

    def run(
        self,
        seconds: float,
        watch: Callable[[Limit, int, float], None] = lambda limit, size, left_s: None,
    ) -> Iterator[tuple[Limit, str, float]]:
        """Each limit after each look, with its result in a few words and the seconds left, until
        all are found or the wall clock is spent. ``watch`` is told of each look before it begins.
        """
        until = self.now() + seconds
        for limit, size, left_s in in_turn(self.limits, seconds, now=self.now):
            watch(limit, size, left_s)
            said = self._look(limit, size, left_s) if size else self._gate(limit, left_s)
            yield limit, said, max(0.0, until - self.now())

    def _gate(self, limit: Limit, left_s: float) -> str:
        header = {"seed": self.seed, "budget_s": 0.0}
        most = min(CELL_LIMIT_S, left_s + GRACE_S)
        record = measure(limit.gate, header, self.engine, timed=False, limit_s=most)
        if record.status is Status.TIMED_OUT and most < CELL_LIMIT_S:
            limit.closed = CLOCK_SPENT
            return f"stopped: {CLOCK_SPENT.reason}"
        limit.gated = record
        if record.status is Status.MEASURED:
            return "it passed the correctness check"
        limit.closed = SizeResult(0, str(record.status), record.reason)
        return f"{record.status}: {record.reason}"

    def _look(self, limit: Limit, size: int, left_s: float) -> str:
        began = self.now()
        result = fresh_if_full(
            lambda: self._probe(limit, size, left_s),
            lambda found: found is not None and found.why == Status.OUT_OF_MEMORY,
            self.engine,
        )
        if result is None:
            limit.closed = CLOCK_SPENT
            return f"given up: {CLOCK_SPENT.reason}"
        limit.spent_s[size] = max(0.0, self.now() - began - CALLS * (result.time_s or 0.0))
        limit.search.looks.append(result)
        what = f"{result.why.replace('_', ' ')}: {result.reason}" if result.why else "holds"
        figures = [] if result.time_s is None else [format.duration(result.time_s)]
        if result.peak_bytes is not None:
            figures.append(format.size(result.peak_bytes))
        return f"{limit.by} {size:,}: {', '.join([what, *figures])}"

    def _probe(self, limit: Limit, size: int, left_s: float) -> SizeResult | None:
        """The worker's result of a size; None where only the wall clock ended it."""
        question = {
            "probe": {
                "variant": limit.variant.to_dict(),
                "problem": sized(limit.problem, limit.by, size).to_dict(),
                "seed": self.seed,
                "timed": False,
            },
            "max_time_s": self.budget.seconds,
            "expected": limit.search.formula_at(size),
        }
        patience = PATIENCE_S + PATIENCE_CALLS * self.budget.seconds
        limit_s = min(patience, left_s + GRACE_S)
        try:
            probed = Probed.from_dict(self.engine.ask(question, limit_s)["probe"])
        except (InvalidRecord, KeyError, TypeError, ValueError) as error:
            self.engine.close()
            said = f"the worker's answer is no probe: {error}"
            return SizeResult(size, str(Status.CRASHED), said)
        except WorkerLost as lost:
            if lost.timed_out:
                given_up = SizeResult(size, TIME, f"given up after {format.roughly(limit_s)}")
                return None if limit_s < patience else given_up
            status, detail = str(lost_status(lost)), {"detail": lost.output}
            return SizeResult(size, status, lost.reason, probe=detail)
        took, peak, plain = probed.time_s, probed.peak_bytes, probed.to_dict()
        if probed.status is not Status.MEASURED:
            return SizeResult(size, str(probed.status), probed.reason, probe=plain)
        why, reason = "", ""
        if took is not None and took > self.budget.seconds:
            why, reason = TIME, "a call took longer"
        elif peak is not None and peak > self.budget.peak_bytes:
            why, reason = MEMORY, "observed"
        return SizeResult(size, why, reason, took, peak, probe=plain)
