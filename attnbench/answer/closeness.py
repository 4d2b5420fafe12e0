"""How near each exact variant stays to the best, over all problems: which to take, if only one.

A problem counts for every variant that is exact anywhere: one that has no time there is never near.
The set of problems is fixed, so that no score changes with what is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.answer.regimes import Regime


@dataclass(frozen=True)
class Closeness:
    """One variant over the problems."""

    variant: str
    ratios: tuple[float, ...]
    """Its median over the best one's, the smallest first, of the problems where it has one."""
    problems: int
    """Of how many."""

    def share(self, factor: float) -> float:
        """Of the problems, those where it took no more than so many times the best's."""
        return sum(ratio <= factor for ratio in self.ratios) / self.problems


def closeness(regimes: Iterable[Regime]) -> list[Closeness]:
    """The exact variants, the nearest to the best over all first; needs two to compare."""
    ratios: dict[str, list[float]] = {}
    seen: set[tuple[int, ...]] = set()
    for regime in regimes:
        for length in regime.lengths:
            timed = regime.timed(length)
            exact = {name: r.time.median_s for name, r in timed.items()
                     if r.computes == "softmax" and r.time}  # fmt: skip
            same = tuple(map(id, timed.values()))  # a problem may lie on lines of two sorts
            if len(exact) < 2 or same in seen:
                continue
            seen.add(same)
            best = min(exact.values())
            for name, median in exact.items():
                ratios.setdefault(name, []).append(median / best)
    found = [Closeness(name, tuple(sorted(some)), len(seen)) for name, some in ratios.items()]
    return sorted(found, key=lambda c: (-_area(c), c.variant))


def _area(of: Closeness, factors: Sequence[float] = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)) -> float:
    return sum(of.share(factor) for factor in factors)
