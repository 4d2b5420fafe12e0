"""Rankings over lengths and over problems: where the lead changes, and what stays near the best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from attnbench.answer.ranking import (
    EXACT,
    MARGIN,
    Answer,
    Candidate,
    answers,
    beats,
    ran_the_same,
    torch_rank,
)
from attnbench.answer.regimes import Regime, time_of

# ---- over the lengths of a regime ----------------------------------------------------------------

SKILLED = 0.5
"""A variant with less than half of the skill of softmax is no substitute for it."""
ONLY = "the only one measured"


@dataclass(frozen=True)
class Standing:
    """One length of a regime."""

    length: int
    answer: Answer | None
    """None where nothing exact has a time."""
    timed: int
    """The number of variants with a time, exact or not."""
    faster: tuple[Candidate, ...] = ()
    """What is faster than the winner and not exact, the fastest first."""

    @property
    def substitute(self) -> Candidate | None:
        """The fastest inexact variant that keeps enough of what softmax does."""
        return next((f for f in self.faster if f.skill is not None and f.skill >= SKILLED), None)

    @property
    def nearest(self) -> Candidate | None:
        """The inexact variant that keeps most of what softmax does, be it little."""
        rated = [f for f in self.faster if f.skill is not None]
        return max(rated, key=lambda f: f.skill or 0.0, default=None)

    @property
    def leaders(self) -> tuple[str, ...]:
        """The winner and what ties with it."""
        return self.answer.leaders if self.answer else ()

    @property
    def sure(self) -> str:
        """The certainty of the answer, in a word or two."""
        if self.answer is None:
            return "nothing exact was measured"
        if self.answer.flags:
            return "noisy"
        if self.answer.equal:
            return f"tie of {len(self.leaders)}"
        return "clear" if self.answer.next else ONLY


def standings(regime: Regime, margin: float = MARGIN) -> list[Standing]:
    """One for each length, the shortest first."""
    results = []
    for length in regime.cells:
        timed = list(regime.timed(length).values())
        answer = next(answers(timed, margin, regime.records), None)
        faster: list[Candidate] = []
        for r in timed:
            if answer is None or r.time is None or r.computes == EXACT or r.wrong_on:
                continue
            if r.time.clock == answer.time.clock and beats(r.time, answer.time, margin):
                faster.append(Candidate.of(r, r.time))
        faster.sort(key=lambda c: c.median_s)
        results.append(Standing(length, answer, len(timed), tuple(faster)))
    return results


@dataclass(frozen=True)
class Crossing:
    """``before`` leads up to one length, ``after`` from another on."""

    before: str
    after: str
    low: int
    high: int
    estimate: float
    """The length of equal medians, were each a power of the length in between."""

    def __str__(self) -> str:
        return (
            f"{self.after} overtakes {self.before} between {self.low:,} and {self.high:,} "
            f"(about {self.estimate:,.0f})"
        )


def crossings(regime: Regime, ranked: list[Standing], margin: float = MARGIN) -> list[Crossing]:
    """Each change of place between two variants that win at some length."""
    winners = dict.fromkeys(s.answer.winner for s in ranked if s.answer)
    crossed = []
    for a, b in combinations(winners, 2):
        leader, last = "", 0
        ratios: dict[int, float] = {}
        for length, cells in regime.cells.items():
            of_a, of_b = time_of(cells.get(a)), time_of(cells.get(b))
            if of_a is None or of_b is None or ran_the_same(cells[a], cells[b]):
                continue
            ratios[length] = of_a.median_s / of_b.median_s
            if of_a.doubts or of_b.doubts:
                continue
            now = a if beats(of_a, of_b, margin) else b if beats(of_b, of_a, margin) else ""
            if now and leader and now != leader:
                between = {n: x for n, x in ratios.items() if n >= last}
                crossed.append(Crossing(leader, now, last, length, equal_at(between)))
            if now:
                leader, last = now, length
    return sorted(crossed, key=lambda c: c.low)


def equal_at(ratios: Mapping[int, float]) -> float:
    """The length where a ratio passes one, on logarithms, between neighbouring lengths."""
    logs = [(math.log(n), math.log(ratio)) for n, ratio in ratios.items()]
    for (n, x), (m, y) in pairwise(logs):
        if x * y <= 0 and x != y:
            return math.exp(n + (m - n) * x / (x - y))
    return math.exp((logs[0][0] + logs[-1][0]) / 2)


# ---- over all problems ---------------------------------------------------------------------------

FACTORS = (1.05, 1.1, 1.25, 1.5, 2.0)
UNKNOWN = 10.0
MOSTLY = 0.9
"""The share of problems that a sentence about most of them needs."""


@dataclass(frozen=True)
class Closeness:
    """The distance of one variant from the best, over the problems."""

    variant: str
    ratios: tuple[float, ...]
    """Its median over the best one's on each problem where it has one, the smallest first."""
    problems: int

    def share(self, factor: float) -> float:
        """The share of problems on which it took at most so many times the best's time."""
        return sum(ratio <= factor for ratio in self.ratios) / self.problems

    @property
    def mean(self) -> float:
        """The geometric mean of its times over the best's."""
        return statistics.geometric_mean(self.ratios)

    @property
    def cost(self) -> float:
        """The same where a problem without a time counts as :data:`UNKNOWN` times the best's."""
        unknown = (UNKNOWN,) * (self.problems - len(self.ratios))
        return statistics.geometric_mean(self.ratios + unknown)

    def mostly(self) -> tuple[float, int]:
        """The least factor that it keeps to on most problems, and on how many it does."""
        factor = next((f for f in FACTORS if self.share(f) >= MOSTLY), FACTORS[-1])
        return factor, sum(ratio <= factor for ratio in self.ratios)


def closeness(regimes: Iterable[Regime]) -> list[Closeness]:
    """The exact variants, the nearest to the best over all first; of problems with two or more."""
    ratios: dict[str, list[float]] = {}
    problems: set[tuple[int, ...]] = set()
    for regime in regimes:
        for length in regime.cells:
            exact = regime.exact(length)
            problem = tuple(map(id, regime.timed(length).values()))  # it may lie on two lines
            if len(exact) < 2 or problem in problems:
                continue
            problems.add(problem)
            best = min(exact.values())
            for name, median in exact.items():
                ratios.setdefault(name, []).append(median / best)
    results = [Closeness(name, tuple(sorted(some)), len(problems)) for name, some in ratios.items()]
    return sorted(results, key=lambda c: (c.cost, c.variant))


def advise(nearest: Sequence[Closeness], ranked: Iterable[Standing]) -> Closeness:
    """Which to use, if only one; ``ranked``: all standings. Raises IndexError if there is none.

    Torch's own, if it leads or ties everywhere, or keeps to the factor of the nearest of all on
    most problems, or on as many; else that nearest.
    """
    factor, _ = nearest[0].mostly()
    near = [c for c in nearest if c.share(factor) >= min(MOSTLY, nearest[0].share(factor))]
    first = min(near, key=lambda c: torch_rank(c.variant))
    tied = [set(s.leaders) for s in ranked if s.answer]
    everywhere = [c for c in nearest if tied and all(c.variant in leaders for leaders in tied)]
    return min([first, *everywhere], key=lambda c: torch_rank(c.variant))
