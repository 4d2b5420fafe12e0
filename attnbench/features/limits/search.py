"""How far each variant goes: the longest length within a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, Protocol

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
"""A formula this near to what was seen may rule out."""
AIM, FIRST_AIM = 0.92, 0.4
"""Of the time asked for, what is aimed at: a size that holds says more than one that does not. Less
where one look alone has told how long a call takes: small calls are mostly overhead, or all cache.
"""
AHEAD, CHEAP = 4, 1 << 17
"""A formula counts rows, so it is asked no further than so many times what was looked at, or this.
"""
LEAST, MOST = 1.0, 2.5
"""Between these a power of the size lies."""
HALVE = 3
"""Every so many steps towards where a formula crosses the budget are a halving: it may jump."""


@dataclass(frozen=True)
class CallBudget:
    """What a call may take."""

    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Sizes:
    """Which sizes are looked at: multiples of a step, no finer than a sixteenth."""

    step: int
    longest: int
    shortest: int
    start: int
    """The first to be looked at."""

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
    """What came of one size. ``why`` it does not hold: memory, time, or a status; empty if it does.

    One that did not run was ruled out by an exact formula.
    """

    size: int
    why: str = ""
    reason: str = ""
    time_s: float | None = None
    peak_bytes: int | None = None
    ran: bool = True
    more: dict[str, Any] = field(default_factory=dict)


class Growth:
    """Of one variant in one phase, as far as it was looked at."""

    def __init__(
        self,
        budget: CallBudget,
        sizes: Sizes,
        expected: Callable[[int], int | None],
        work: Callable[[int], float | None],
    ) -> None:
        """``expected``: the formula's bytes for a size, ``work``: operations; None if unknown."""
        self.budget, self.sizes = budget, sizes
        self._expected, self._work = expected, work
        self._formula: dict[int, int | None] = {}
        self.looks: list[SizeResult] = []

    # ---- memory --------------------------------------------------------------------------------

    def formula_at(self, size: int) -> int | None:
        """The formula's bytes for a size."""
        if size not in self._formula:
            self._formula[size] = self._expected(size)
        return self._formula[size]

    def _ratios(self) -> list[float]:
        """What was seen over what the formula says."""
        seen = [(look.peak_bytes, self.formula_at(look.size)) for look in self.looks]
        return [peak / formula for peak, formula in seen if peak and formula]

    def largest_by_formula(self, scale: float, most: int) -> int | None:
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
        while high < most and fits(high):
            low, high = high, high * 2
        high = min(high, sizes.down(most))
        if fits(high):
            return high
        steps = 0
        while high - low > sizes.step:  # a formula may cost as much as its size: few of them
            steps += 1
            size = self._crossing(scale, low, high) if steps % HALVE else (low + high) // 2
            size = min(max(sizes.down(size), low + sizes.step), high - sizes.step)
            low, high = (size, high) if fits(size) else (low, size)
        return low

    def _crossing(self, scale: float, low: int, high: int) -> float:
        """Where the formula is at the budget, were it a power between the two."""
        ends = [(size, float(self.formula_at(size) or 1)) for size in (low, high)]
        power = _slope(ends) or LEAST
        return float(low * (self.budget.peak_bytes / scale / ends[0][1]) ** (1 / power))

    def horizon(self) -> int:
        """How far the formulas are asked while it is searched."""
        looked = max((look.size for look in self.looks), default=self.sizes.start)
        return min(self.sizes.longest, max(AHEAD * looked, CHEAP))

    def memory_size(self, most: int) -> float | None:
        """What the memory budget alone would hold, asking formulas no further than so far."""
        ratios = self._ratios()
        if ratios:
            return self.largest_by_formula(ratios[-1], most)
        seen = sorted((x for x in self.looks if x.peak_bytes), key=lambda x: x.size)
        if not seen:
            return self.largest_by_formula(1.0, most)
        last = seen[-1]
        assert last.peak_bytes is not None
        power = _slope([(x.size, float(x.peak_bytes or 1)) for x in seen[-2:]])
        power = self._power_of_work() if power is None else min(max(power, LEAST), MOST)
        return float(last.size * (self.budget.peak_bytes / last.peak_bytes) ** (1 / power))

    def formula_holds(self) -> bool:
        """Whether the formula was exact wherever it could be held against a run."""
        ratios = self._ratios()
        return bool(ratios) and all(abs(ratio - 1) <= EXACT for ratio in ratios)

    # ---- time ----------------------------------------------------------------------------------

    def timed(self) -> list[SizeResult]:
        """The looks that have a time, the shortest first."""
        return sorted((x for x in self.looks if x.time_s), key=lambda x: x.size)

    def time_size(self, share: float) -> float | None:
        """What a share of the time alone would hold."""
        timed = self.timed()
        if not timed:
            return None
        last = timed[-1]
        assert last.time_s is not None
        power = self._power_of_time()
        return float(last.size * (share * self.budget.seconds / last.time_s) ** (1 / power))

    def _power_of_time(self) -> float:
        """From two looks, where they are far enough apart to tell; else as the work grows."""
        timed = self.timed()
        last = timed[-1]
        before = [x for x in timed if x.size * 1.5 <= last.size]
        power = _slope([(x.size, x.time_s or 1.0) for x in (*before[-1:], last)])
        return self._power_of_work() if power is None else min(max(power, LEAST), MOST)

    def _power_of_work(self) -> float:
        """How the operations grow from the start to four times as much; squared if unknown."""
        ends = (self.sizes.start, min(4 * self.sizes.start, self.sizes.longest))
        work = [self._work(size) for size in ends]
        known = [(size, w) for size, w in zip(ends, work, strict=True) if w]
        power = _slope(known) if len(known) == 2 else 2.0
        return min(max(power or 2.0, LEAST), 2.0)

    def share(self) -> float:
        """Of the time, what is aimed at."""
        timed = self.timed()
        if len(timed) != 1 or not timed[0].time_s:
            return AIM
        return min(AIM, max(FIRST_AIM, math.sqrt(timed[0].time_s / self.budget.seconds)))

    def guess_s(self, size: int) -> float:
        """Seconds of a call; nothing where nobody has seen one."""
        timed = self.timed()
        if not timed:
            return 0.0
        last = timed[-1]
        assert last.time_s is not None
        return last.time_s * (size / last.size) ** self._power_of_time()


def _slope(points: list[tuple[int, float]]) -> float | None:
    """Of the logarithms of two points; None where there are no two."""
    if len(points) < 2 or points[0][0] == points[1][0]:
        return None
    (a, x), (b, y) = points
    return math.log(y / x) / math.log(b / a)


LEAP = 32
"""So many times what held may be tried next, at the most."""
NEAR = 0.25
"""Of a bracket, on a logarithmic scale: so far from its ends a look has to be."""


class PhaseSearch:
    """One variant in one phase."""

    def __init__(
        self,
        budget: CallBudget,
        sizes: Sizes,
        expected: Callable[[int], int | None],
        work: Callable[[int], float | None],
    ) -> None:
        """``expected``: the formula's bytes for a size, ``work``: operations; None if unknown."""
        self.budget, self.sizes = budget, sizes
        self.growth = Growth(budget, sizes, expected, work)
        self.looks = self.growth.looks

    # ---- what is known -------------------------------------------------------------------------

    @property
    def held(self) -> SizeResult | None:
        """The longest that was run and held."""
        good = [look for look in self.looks if not look.why]
        return max(good, key=lambda look: look.size, default=None)

    @property
    def failed(self) -> SizeResult | None:
        """The shortest that does not hold: as it ran, or as an exact formula says."""
        bad = [look for look in self.looks if look.why]
        if (ruled := self._ruled_out()) is not None:
            bad.append(ruled)
        return min(bad, key=lambda look: look.size, default=None)

    @property
    def done(self) -> bool:
        """Whether another look would tell nothing more."""
        held, failed = self.held, self.failed
        if failed is None:
            return held is not None and held.size >= self.sizes.longest
        if held is None:
            return failed.size <= self.sizes.shortest and failed.ran
        return not self._worth(held.size, failed)

    def hear(self, look: SizeResult) -> None:
        """What came of a size."""
        self.looks.append(look)

    # ---- where to look next --------------------------------------------------------------------

    def next(self) -> int | None:
        """The size to run; None where the search is over."""
        if self.done:
            return None
        held, failed = self.held, self.failed
        if held is None:
            return self._shorter(failed)
        room = self.sizes.width(held.size)
        low = held.size + room
        if failed is None:
            far = min(self.sizes.down(self._aim()), held.size * LEAP)
            return min(max(low, far), self.sizes.longest)
        high = failed.size - (self.sizes.width(held.size) if failed.ran else self.sizes.step)
        if high < low:
            return self.sizes.down((held.size + failed.size) // 2)
        aim = self._between(held, failed)
        return min(max(self.sizes.down(aim), low), high)

    def reaches(self, what: str) -> int | None:
        """The longest that one budget alone would hold, by its model; None where nothing is known.

        ``what``: memory or time.
        """
        longest = self.sizes.longest
        found: float | None
        found = self.growth.memory_size(longest) if what == MEMORY else self.growth.time_size(1.0)
        if found is None:
            return None
        held, failed = self.held, self.failed
        if failed is not None and failed.why == what:
            found = min(float(found), failed.size - self.sizes.step)
        return self.sizes.down(max(found, held.size if held else 0))

    def _ruled_out(self) -> SizeResult | None:
        """The first that an exact formula puts over the budget."""
        held, growth = self.held, self.growth
        if held is None or not growth.formula_holds():
            return None
        size = growth.largest_by_formula(1.0, growth.horizon())
        if size is None or size < held.size or size >= self.sizes.down(growth.horizon()):
            return None
        beyond = size + self.sizes.step
        peak = growth.formula_at(beyond)
        return SizeResult(beyond, MEMORY, "predicted by its formula", peak_bytes=peak, ran=False)

    def _worth(self, held: int, failed: SizeResult) -> bool:
        """Whether the bracket is wider than it need be."""
        gap = failed.size - held
        return gap > (self.sizes.width(held) if failed.ran else self.sizes.step)

    def _shorter(self, failed: SizeResult | None) -> int:
        """Nothing has held yet: the start, or where the models, or else the middle, point."""
        sizes = self.sizes
        if failed is None:
            formula = self.growth.largest_by_formula(1.0, sizes.start)
            return sizes.start if formula is None else max(sizes.shortest, formula)
        top = max(sizes.shortest, failed.size - sizes.step)
        middle = self._halfway(sizes.shortest, failed.size)
        aim = middle if len(self.looks) > 2 else min(self._aim(), middle * 2)
        return min(max(sizes.down(aim), sizes.shortest), top)

    def _aim(self) -> float:
        growth = self.growth
        known = (growth.memory_size(growth.horizon()), growth.time_size(growth.share()))
        return min((size for size in known if size is not None), default=self._blind())

    def _blind(self) -> float:
        """Where nothing was seen: the middle, or twice as long."""
        held, failed = self.held, self.failed
        low = held.size if held else self.sizes.shortest
        return self._halfway(low, failed.size) if failed else 2.0 * low

    def _halfway(self, low: int, high: int) -> float:
        return math.sqrt(low * high)

    def _between(self, held: SizeResult, failed: SizeResult) -> float:
        """In a bracket: where the time crosses, if that is what failed, else as the models say.

        Never near an end, so that the bracket shrinks whatever the times are worth; but a formula
        that rules out is taken at its word.
        """
        if not failed.ran:
            return self._aim()
        aim = self._aim()
        if failed.why == TIME and held.time_s and failed.time_s and held.time_s < failed.time_s:
            power = math.log(failed.time_s / held.time_s) / math.log(failed.size / held.size)
            aim = held.size * max(1.0, AIM * self.budget.seconds / held.time_s) ** (1 / power)
        apart = failed.size / held.size
        return held.size * min(max(aim / held.size, apart**NEAR), apart ** (1 - NEAR))


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
    search: PhaseSearch
    gated: Record | None = None
    closed: SizeResult | None = None
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


def plan(
    table: Table, names: Sequence[str], grid: Preset, by: By, budget: CallBudget, machine: Machine
) -> list[Limit]:
    """A limit for each variant and phase; of all variants those that can run here."""
    wide = [
        name
        for name in (
            "batch",
            "heads",
            "kv_heads",
            "head_dim",
            "v_head_dim",
            "dtype",
            "inputs",
            "seq",
        )
        if len(getattr(grid, name)) > 1
    ]
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


def _limit(cell: Cell, by: By, budget: CallBudget) -> Limit:
    sizes = _sizes(cell.problem, by)
    limit = Limit(
        cell.variant, cell.problem, cell, by, PhaseSearch(budget, sizes, *_cost(cell, by))
    )
    if (out := cell.left_out) is not None:
        limit.closed = SizeResult(0, str(out.status), out.reason, ran=False)
    elif cell.variant.ranks:
        limit.closed = SizeResult(0, str(Status.UNSUPPORTED), RANKS, ran=False)
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


PATIENCE_S, PATIENCE_CALLS = 20.0, 20.0
"""How long a look may take before it is given up: for building and checking, and in calls as long
as a call may take."""
IN_TURN = 3
"""So many times everybody is asked before anybody is again: the gate, and two looks."""
GRACE_S = 5.0
"""By how much the last look may be late."""


class SearchWatcher(Protocol):
    """Whoever shows the progress."""

    def looked(self, limit: Limit, said: str, left_s: float) -> None:
        """Something was found out about a variant in a phase."""


class Hunt:
    """Looks at limits in turn until all are found, the wall clock is spent or somebody stops it."""

    def __init__(
        self,
        limits: Sequence[Limit],
        engine: Engine,
        budget: CallBudget,
        seed: int,
        watcher: SearchWatcher,
        *,
        now: Callable[[], float] = monotonic,
    ) -> None:
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
            limit.gated, limit.closed = (
                None,
                SizeResult(0, "", "the wall clock was spent", ran=False),
            )
        else:
            limit.closed = SizeResult(0, str(record.status), record.reason, ran=True)
        return f"{limit.closed.why or 'stopped'}: {limit.closed.reason}"

    def _look(self, limit: Limit, left_s: float) -> str:
        size = limit.search.next()
        assert size is not None
        began = self._now()
        look = self._asked(limit, size, left_s)
        if look is None:
            limit.closed = SizeResult(0, "", "the wall clock was spent", ran=False)
            return "given up: the wall clock was spent"
        calls = CALLS * (look.time_s or 0.0)
        limit.spent_s[size] = max(0.0, self._now() - began - calls)
        limit.search.hear(look)
        return said(look, limit.by)

    def _asked(
        self, limit: Limit, size: int, left_s: float, *, again: bool = False
    ) -> SizeResult | None:
        """What a worker says of a size; None where only the wall clock ended it."""
        problem, patience = limit.at(size), PATIENCE_S + PATIENCE_CALLS * self._budget.seconds
        job = {
            "variant": limit.variant.to_dict(),
            "problem": problem.to_dict(),
            "seed": self._seed,
            "timed": False,
        }
        expected = limit.search.growth.formula_at(size)
        question = {"probe": job, "max_time_s": self._budget.seconds, "expected": expected}
        limit_s = min(patience, left_s + GRACE_S)
        try:
            found = Probed.from_dict(self._engine.ask(question, limit_s)["probe"])
        except (InvalidRecord, KeyError, TypeError, ValueError) as error:
            self._engine.close()
            return SizeResult(
                size, str(Status.CRASHED), f"the worker's answer is no probe: {error}"
            )
        except WorkerLost as lost:
            return _lost(lost, size, limit_s, cut=limit_s < patience)
        if found.status is Status.OUT_OF_MEMORY and not again:
            self._engine.close()  # what others left in its heap may have been in the way
            return self._asked(limit, size, left_s, again=True)
        return _judged(found, size, self._budget)


def _lost(lost: WorkerLost, size: int, limit_s: float, *, cut: bool) -> SizeResult | None:
    if lost.wrong:
        return SizeResult(size, str(Status.WRONG), lost.reason)
    if not lost.timed_out:
        return SizeResult(size, str(Status.CRASHED), lost.reason, more={"detail": lost.output})
    return None if cut else SizeResult(size, TIME, f"given up after {limit_s:.0f} s")


def _judged(found: Probed, size: int, budget: CallBudget) -> SizeResult:
    """Whether what was found is within the budgets."""
    if found.status is not Status.MEASURED:
        return SizeResult(size, str(found.status), found.reason, more=found.to_dict())
    why, reason = "", ""
    if found.time_s is not None and found.time_s > budget.seconds:
        why, reason = TIME, "a call took longer"
    elif found.peak_bytes is not None and found.peak_bytes > budget.peak_bytes:
        why, reason = MEMORY, "observed"
    return SizeResult(size, why, reason, found.time_s, found.peak_bytes, more=found.to_dict())


def said(look: SizeResult, by: By) -> str:
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


SPENT = "not looked at: the wall clock was spent first"
STOPPED = "not looked at: it was stopped first"


def frontier(
    limits: Sequence[Limit], *, stopped: bool = False, ended: bool = True
) -> list[dict[str, Any]]:
    """A row for each variant in each phase, the longest first within a phase and a mask.

    While the search has not ended nothing is predicted: that would take time from it.
    """
    groups = list(dict.fromkeys((x.problem.phase, str(x.problem.mask)) for x in limits))
    rows = [_row(limit, stopped=stopped, ended=ended) for limit in limits]
    return sorted(rows, key=lambda row: (groups.index((row["phase"], row["mask"])), -_held(row)))


def finding(limits: Sequence[Limit]) -> bool:
    """Whether a variant is not what it says it is: in its gate, or at a size that it took."""
    bad = {str(status) for status in FINDINGS}
    closed = any(x.closed is not None and x.closed.why in bad for x in limits)
    return closed or any(look.why == str(Status.WRONG) for x in limits for look in x.search.looks)


def _held(row: dict[str, Any]) -> int:
    return int(row["held"]["size"]) if row["held"] else 0


def _row(limit: Limit, *, stopped: bool, ended: bool) -> dict[str, Any]:
    search, problem = limit.search, limit.problem
    held, failed = search.held, search.failed
    asked = (MEMORY, TIME) if ended and search.looks else ()
    reaches = {what: search.reaches(what) for what in asked}
    known = {what: size for what, size in reaches.items() if size is not None}
    first = min(known, key=known.__getitem__, default="")
    if held is not None and held.size >= search.sizes.longest:
        first = ""
    if failed is not None and not failed.ran and first != failed.why:
        failed = None  # it is ruled out, but something else comes before
    return {
        "variant": limit.variant.label,
        "computes": limit.variant.computes,
        "family": limit.variant.family,
        "phase": problem.phase,
        "mask": str(problem.mask),
        "by": limit.by,
        "held": _plain(held),
        "fails": _plain(failed),
        "limited_by": failed.why if failed else first,
        "predicted": reaches,
        "formula": search.growth.formula_holds(),
        "gate": str(limit.gated.status) if limit.gated else None,
        "why": _why(limit, stopped=stopped),
        "looks": [_plain(look) for look in search.looks],
        "problem": problem.to_dict(),
    }


def _plain(look: SizeResult | None) -> dict[str, Any] | None:
    if look is None:
        return None
    return {
        "size": look.size,
        "why": look.why,
        "reason": look.reason,
        "time_s": look.time_s,
        "peak_bytes": look.peak_bytes,
        "ran": look.ran,
        "probe": look.more,
    }


def _why(limit: Limit, *, stopped: bool) -> str:
    """Where nothing held: the reason, in a sentence."""
    closed, failed = limit.closed, limit.search.failed
    if limit.search.held is not None:
        return ""
    if closed is not None and closed.why:
        at = f"{limit.by} {_gate_size(limit):,}, in its gate: " * closed.ran
        return f"{closed.why.replace('_', ' ')}: {at}{closed.reason}"
    if failed is None:
        return STOPPED if stopped else SPENT
    return f"nothing held that was run, down to {limit.by} {failed.size:,}"


def _gate_size(limit: Limit) -> int:
    return limit.problem.batch if limit.by == "batch" else limit.problem.kv_len
