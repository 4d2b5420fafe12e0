"""How far each variant goes: the longest length, or the largest batch, within a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import monotonic
from typing import Any

import msgspec

from attnbench.answer.search import GRACE_S, By, in_turn, refuse_several, sized
from attnbench.core.machine import Machine
from attnbench.core.record import FINDINGS, InvalidRecord, Probed, Record, Status
from attnbench.sweep.engine import CELL_LIMIT_S, Engine, WorkerLost, measure
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.loading import load_function
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

MEMORY, TIME = "memory", "time"
EXACT = 0.02
"""A formula that comes this near to every measured peak may rule sizes out."""
AIM, FIRST_AIM = 0.92, 0.4
"""The share of the time that is aimed at: a size that holds tells more than one that does not. Less
after one look alone: small calls are mostly overhead, or all in the cache."""
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
        self,
        budget: CallBudget,
        sizes: Sizes,
        expected: Callable[[int], int | None],
        work: Callable[[int], float | None],
    ) -> None:
        """``expected``: the formula's bytes for a size, ``work``: operations; None if unknown."""
        self.budget, self.sizes = budget, sizes
        self.formula_at = cache(expected)
        self._work = work
        self.looks: list[SizeResult] = []

    # ---- what is known -------------------------------------------------------------------------

    @property
    def held(self) -> SizeResult | None:
        """The longest that ran and held."""
        good = [look for look in self.looks if not look.why]
        return max(good, key=lambda look: look.size, default=None)

    @property
    def failed(self) -> SizeResult | None:
        """The shortest that does not hold: as it ran, or by an exact formula."""
        bad = [look for look in self.looks if look.why]
        if (ruled_out := self._ruled_out()) is not None:
            bad.append(ruled_out)
        return min(bad, key=lambda look: look.size, default=None)

    @property
    def done(self) -> bool:
        """Whether the bracket is as narrow as it need be."""
        held, failed = self.held, self.failed
        if failed is None:
            return held is not None and held.size >= self.sizes.longest
        if held is None:
            return failed.size <= self.sizes.shortest and failed.ran
        return failed.size - held.size <= self._width(held, failed)

    def _width(self, held: SizeResult, failed: SizeResult) -> int:
        return self.sizes.width(held.size) if failed.ran else self.sizes.step

    def formula_holds(self) -> bool:
        """Whether the formula was exact at every size that ran."""
        ratios = self._ratios()
        return bool(ratios) and all(abs(ratio - 1) <= EXACT for ratio in ratios)

    def _ratios(self) -> list[float]:
        """What was measured over what the formula says."""
        peaks = [(look.peak_bytes, self.formula_at(look.size)) for look in self.looks]
        return [peak / formula for peak, formula in peaks if peak and formula]

    def _ruled_out(self) -> SizeResult | None:
        """The first size that an exact formula puts over the budget."""
        held = self.held
        if held is None or not self.formula_holds():
            return None
        size = self._largest_by_formula(1.0, self._horizon())
        if size is None or size < held.size or size >= self.sizes.down(self._horizon()):
            return None
        beyond = size + self.sizes.step
        peak = self.formula_at(beyond)
        return SizeResult(beyond, MEMORY, "predicted by its formula", peak_bytes=peak, ran=False)

    # ---- where to look next --------------------------------------------------------------------

    def next(self) -> int | None:
        """The size to run; None where the search is over.

        It is never near an end of a bracket that was run, so that this shrinks even if the times
        are noise; but a formula that rules out is taken at its word.
        """
        if self.done:
            return None
        held, failed, sizes = self.held, self.failed, self.sizes
        if held is None and failed is None:
            size = self._largest_by_formula(1.0, sizes.start)
            return sizes.start if size is None else max(sizes.shortest, size)
        aim = self._aim()
        if held is None:
            assert failed is not None
            middle = math.sqrt(sizes.shortest * failed.size)
            aim = middle if len(self.looks) > 2 else min(aim, middle * 2)
            return min(sizes.down(aim), max(sizes.shortest, failed.size - sizes.step))
        low = held.size + sizes.width(held.size)
        if failed is None:
            return min(max(low, min(sizes.down(aim), held.size * LEAP)), sizes.longest)
        high = failed.size - self._width(held, failed)
        if high < low:
            return sizes.down((held.size + failed.size) // 2)
        if failed.ran:
            ratio = failed.size / held.size
            aim = held.size * min(max(aim / held.size, ratio**NEAR), ratio ** (1 - NEAR))
        return min(max(sizes.down(aim), low), high)

    def _aim(self) -> float:
        """What both budgets would hold; where nothing is known, the middle, or twice as long."""
        known = (self._memory_size(self._horizon()), self._time_size(self._share()))
        if sizes := [size for size in known if size is not None]:
            return min(sizes)
        held, failed = self.held, self.failed
        low = held.size if held else self.sizes.shortest
        return math.sqrt(low * failed.size) if failed else 2.0 * low

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
            return self._largest_by_formula(ratios[-1] if ratios else 1.0, most)
        size, peak = points[-1]
        return float(size * (self.budget.peak_bytes / peak) ** (1 / self._power(points[-2:])))

    def _largest_by_formula(self, scale: float, most: int) -> int | None:
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

    def _times(self) -> list[tuple[int, float]]:
        """The sizes that have a time, with it, the shortest first."""
        return sorted((look.size, look.time_s) for look in self.looks if look.time_s)

    def _time_size(self, share: float) -> float | None:
        """What a share of the time budget alone would hold."""
        times = self._times()
        if not times:
            return None
        size, seconds = times[-1]
        return float(size * (share * self.budget.seconds / seconds) ** (1 / self._power_of_time()))

    def _power_of_time(self) -> float:
        """From two looks, where they are far enough apart; else as the work grows."""
        times = self._times()
        before = [point for point in times if point[0] * 1.5 <= times[-1][0]]
        return self._power([*before[-1:], times[-1]])

    def _power(self, points: Sequence[tuple[int, float]]) -> float:
        """Of the size, by two points; else as the operations grow from the start to four times as
        much; squared if these are unknown.
        """
        most = MOST
        if len(points) < 2:
            start = self.sizes.start
            ends = (start, min(4 * start, self.sizes.longest))
            points = [(size, work) for size in ends if (work := self._work(size))]
            most = 2.0
        if len(points) < 2:
            return 2.0
        (a, x), (b, y) = points
        return min(max(math.log(y / x) / math.log(b / a), LEAST), most)

    def _share(self) -> float:
        """The share of the time budget that is aimed at."""
        times = self._times()
        if len(times) != 1:
            return AIM
        return min(AIM, max(FIRST_AIM, math.sqrt(times[0][1] / self.budget.seconds)))

    def guess_s(self, size: int) -> float:
        """Seconds of a call; 0 where none was timed."""
        if not (times := self._times()):
            return 0.0
        last, seconds = times[-1]
        return float(seconds * (size / last) ** self._power_of_time())


# ---- the variants and what is asked of each ------------------------------------------------------

GATE_SEQ = "256"
"""The length at which the whole gate is passed, if the sequence is what is searched."""
BATCH_SEQ = "1024"
"""The length of each sequence, if the batch is what is searched."""
SEQ = Sizes(step=64, shortest=64, longest=1 << 22, start=1024)
BATCH = Sizes(step=1, shortest=1, longest=1 << 20, start=1)
AXES = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "inputs", "seq")
RANKS = "it runs over several processes, and limits looks at one"
CALLS = 4.5
"""Calls that a look makes: a first, some timed ones, one under the memory meter."""
UNKNOWN_S = 1.5
"""A guess at the first look of a variant."""
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
            return UNKNOWN_S
        last = self.search.looks[-1].size
        beside = self.spent_s.get(last, UNKNOWN_S) * max(1.0, size / last)
        return CALLS * self.search.guess_s(size) + beside


def plan(
    table: Table, names: Sequence[str], grid: Preset, by: By, budget: CallBudget, machine: Machine
) -> list[Limit]:
    """A limit for each variant and phase; of all variants those that can run here."""
    searched = f"the {by} alone, and only --phase and --mask may have several values"
    refuse_several(grid, "limits", AXES, searched)
    made = make_plan(table, names, grid, machine)
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

    def cost(size: int) -> Any:
        """By the row's own formulas."""
        if cell.variant.cost is None:
            return None
        try:
            formula = load_function(cell.variant.cost)
            return formula(sized(cell.problem, by, size), **cell.variant.chosen)
        except Exception:  # a formula may refuse what its variant does
            return None

    search = LimitSearch(
        budget,
        sizes,
        lambda size: getattr(cost(size), "peak_bytes", None),
        lambda size: getattr(cost(size), "flops", None),
    )
    limit = Limit(cell, by, search)
    if (out := cell.left_out) is not None:
        limit.closed = SizeResult(0, str(out.status), out.reason, ran=False)
    elif cell.variant.ranks:
        limit.closed = SizeResult(0, str(Status.UNSUPPORTED), RANKS, ran=False)
    return limit


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

    def run(self, seconds: float) -> Iterator[tuple[Limit, str, float]]:
        """Each limit after each look, with its result in a few words and the seconds left, until
        all are found or the wall clock is spent.
        """
        until = self.now() + seconds
        for limit, size, left_s in in_turn(self.limits, seconds, now=self.now):
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
            return "the gate holds"
        limit.closed = SizeResult(0, str(record.status), record.reason)
        return f"{record.status}: {record.reason}"

    def _look(self, limit: Limit, size: int, left_s: float) -> str:
        began = self.now()
        result = self._probe(limit, size, left_s)
        if result is not None and result.why == Status.OUT_OF_MEMORY:
            self.engine.close()  # what others left in its heap may have been in the way
            result = self._probe(limit, size, left_s)
        if result is None:
            limit.closed = CLOCK_SPENT
            return f"given up: {CLOCK_SPENT.reason}"
        limit.spent_s[size] = max(0.0, self.now() - began - CALLS * (result.time_s or 0.0))
        limit.search.looks.append(result)
        what = f"{result.why.replace('_', ' ')}: {result.reason}" if result.why else "holds"
        figures = [] if result.time_s is None else [f"{result.time_s * 1e3:.3g} ms"]
        if result.peak_bytes is not None:
            figures.append(f"{result.peak_bytes / 2**20:.3g} MiB")
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
            return SizeResult(
                size, str(Status.CRASHED), f"the worker's answer is no probe: {error}"
            )
        except WorkerLost as lost:
            if lost.timed_out:
                given_up = SizeResult(size, TIME, f"given up after {limit_s:.0f} s")
                return None if limit_s < patience else given_up
            status = Status.WRONG if lost.wrong else Status.CRASHED
            return SizeResult(size, str(status), lost.reason, probe={"detail": lost.output})
        took, peak, plain = probed.time_s, probed.peak_bytes, probed.to_dict()
        if probed.status is not Status.MEASURED:
            return SizeResult(size, str(probed.status), probed.reason, probe=plain)
        why, reason = "", ""
        if took is not None and took > self.budget.seconds:
            why, reason = TIME, "a call took longer"
        elif peak is not None and peak > self.budget.peak_bytes:
            why, reason = MEMORY, "observed"
        return SizeResult(size, why, reason, took, peak, probe=plain)


# ---- the answer ----------------------------------------------------------------------------------


def frontier(
    limits: Sequence[Limit], *, stopped: bool = False, ended: bool = True
) -> list[dict[str, Any]]:
    """A row for each variant in each phase, the longest first within a phase and a mask.

    Nothing is predicted before the search has ended: that would take time from it.
    """
    groups = list(dict.fromkeys((x.problem.phase, str(x.problem.mask)) for x in limits))
    rows = [_row(limit, stopped=stopped, ended=ended) for limit in limits]
    rows.sort(key=lambda row: -(row["held"] or {"size": 0})["size"])
    return sorted(rows, key=lambda row: groups.index((row["phase"], row["mask"])))


def finding(limits: Sequence[Limit]) -> bool:
    """Whether a variant is not what it claims to be: in its gate, or at a size that it took."""
    bad = {str(status) for status in FINDINGS}
    closed = any(x.closed is not None and x.closed.why in bad for x in limits)
    return closed or any(look.why == str(Status.WRONG) for x in limits for look in x.search.looks)


def _row(limit: Limit, *, stopped: bool, ended: bool) -> dict[str, Any]:
    search, problem = limit.search, limit.problem
    held, failed = search.held, search.failed
    budgets = (MEMORY, TIME) if ended and search.looks else ()
    reaches = {what: search.reaches(what) for what in budgets}
    known = {what: size for what, size in reaches.items() if size is not None}
    first = min(known, key=known.__getitem__, default="")
    if held is not None and held.size >= search.sizes.longest:
        first = ""
    if failed is not None and not failed.ran and first != failed.why:
        failed = None  # it is ruled out, but something else comes before
    plain = msgspec.to_builtins
    return {
        "variant": limit.variant.label,
        "computes": limit.variant.computes,
        "family": limit.variant.family,
        "phase": problem.phase,
        "mask": str(problem.mask),
        "by": limit.by,
        "held": plain(held),
        "fails": plain(failed),
        "limited_by": failed.why if failed else first,
        "predicted": reaches,
        "formula": search.formula_holds(),
        "gate": str(limit.gated.status) if limit.gated else None,
        "why": "" if held else _why(limit, stopped=stopped),
        "looks": plain(search.looks),
        "problem": problem.to_dict(),
    }


def _why(limit: Limit, *, stopped: bool) -> str:
    """Why nothing held, as a sentence."""
    closed, failed, problem = limit.closed, limit.search.failed, limit.problem
    if closed is not None and closed.why:
        size = problem.batch if limit.by == "batch" else problem.kv_len
        at = f"{limit.by} {size:,}, in its gate: " if closed.ran else ""
        return f"{closed.why.replace('_', ' ')}: {at}{closed.reason}"
    if failed is None:
        return f"not looked at: {'it was stopped' if stopped else 'the wall clock was spent'} first"
    return f"nothing held that was run, down to {limit.by} {failed.size:,}"
