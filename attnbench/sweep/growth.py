"""How time and memory grow with a size: two models of one variant, from its formulas and its looks.

Memory grows as the variant's own formula says, in proportion to what was seen of it; without a
formula as a power of the size. Time grows as a power, which the formula of the work tells before
two looks do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
class Budget:
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
class Look:
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

    def __init__(self, budget: Budget, sizes: Sizes, expected: Callable[[int], int | None],
                 work: Callable[[int], float | None]) -> None:  # fmt: skip
        """``expected``: the formula's bytes for a size, ``work``: operations; None if unknown."""
        self.budget, self.sizes = budget, sizes
        self._expected, self._work = expected, work
        self._formula: dict[int, int | None] = {}
        self.looks: list[Look] = []

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

    def timed(self) -> list[Look]:
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
