"""The longest that holds, by bisection from a prediction: a search that knows no variant.

It proposes a size, hears what came of it, and ends with a bracket: the longest that was run and
held, and the shortest that did not. Models of how time and memory grow only choose where to look.
The one thing believed without a run is a formula that was exact wherever it could be held against a
run: what it puts over the budget is ruled out, and said to be predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attnbench.sweep.growth import AIM, MEMORY, TIME, Budget, Growth, Look, Sizes

LEAP = 32
"""So many times what held may be tried next, at the most."""
NEAR = 0.25
"""Of a bracket, on a logarithmic scale: so far from its ends a look has to be."""


class Search:
    """One variant in one phase."""

    def __init__(self, budget: Budget, sizes: Sizes, expected: Callable[[int], int | None],
                 work: Callable[[int], float | None]) -> None:  # fmt: skip
        """``expected``: the formula's bytes for a size, ``work``: operations; None if unknown."""
        self.budget, self.sizes = budget, sizes
        self.growth = Growth(budget, sizes, expected, work)
        self.looks = self.growth.looks

    # ---- what is known -------------------------------------------------------------------------

    @property
    def held(self) -> Look | None:
        """The longest that was run and held."""
        good = [look for look in self.looks if not look.why]
        return max(good, key=lambda look: look.size, default=None)

    @property
    def failed(self) -> Look | None:
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

    def hear(self, look: Look) -> None:
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

    def _ruled_out(self) -> Look | None:
        """The first that an exact formula puts over the budget."""
        held, growth = self.held, self.growth
        if held is None or not growth.formula_holds():
            return None
        size = growth.largest_by_formula(1.0, growth.horizon())
        if size is None or size < held.size or size >= self.sizes.down(growth.horizon()):
            return None
        beyond = size + self.sizes.step
        peak = growth.formula_at(beyond)
        return Look(beyond, MEMORY, "predicted by its formula", peak_bytes=peak, ran=False)

    def _worth(self, held: int, failed: Look) -> bool:
        """Whether the bracket is wider than it need be."""
        gap = failed.size - held
        return gap > (self.sizes.width(held) if failed.ran else self.sizes.step)

    def _shorter(self, failed: Look | None) -> int:
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

    def _between(self, held: Look, failed: Look) -> float:
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
