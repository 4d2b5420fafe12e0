"""How near each exact variant stays to the best, over all problems: which to take, if only one.

A problem counts for every variant that is exact anywhere: one that has no time there is never near.
The set of problems is fixed, so that no score changes with what is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.answer.regimes import Regime
from attnbench.answer.ties import torch_rank

FACTORS = (1.05, 1.1, 1.25, 1.5, 2.0)
MOSTLY = 0.9
"""Of the problems, as many as make a sentence about all of them."""


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

    def mostly(self) -> tuple[float, int]:
        """The least factor that it keeps to on most problems, and on how many it does."""
        factor = next((f for f in FACTORS if self.share(f) >= MOSTLY), FACTORS[-1])
        return factor, sum(ratio <= factor for ratio in self.ratios)


def closeness(regimes: Iterable[Regime]) -> list[Closeness]:
    """The exact variants, the nearest to the best over all first; needs two to compare."""
    ratios: dict[str, list[float]] = {}
    seen: set[tuple[int, ...]] = set()
    for regime in regimes:
        for length in regime.lengths:
            exact = regime.exact(length)
            same = tuple(
                map(id, regime.timed(length).values())
            )  # a problem may lie on lines of two sorts
            if len(exact) < 2 or same in seen:
                continue
            seen.add(same)
            best = min(exact.values())
            for name, median in exact.items():
                ratios.setdefault(name, []).append(median / best)
    found = [Closeness(name, tuple(sorted(some)), len(seen)) for name, some in ratios.items()]
    return sorted(found, key=lambda c: (-_area(c), c.variant))


def advised(found: Sequence[Closeness]) -> Closeness:
    """Which to take, if only one: torch's own, if it keeps to the factor of the nearest of all on
    most problems, or on as many; else that nearest. Needs one at the least.
    """
    factor, _ = found[0].mostly()
    near = [c for c in found if c.share(factor) >= min(MOSTLY, found[0].share(factor))]
    return min(near, key=lambda c: torch_rank(c.variant))


def _area(of: Closeness, factors: Sequence[float] = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)) -> float:
    return sum(of.share(factor) for factor in factors)
