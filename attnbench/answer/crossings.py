"""Where one exact variant overtakes another: a bracket between two measured lengths, never a point.

A bracket opens at the last length where the one was ahead by more than the margin and closes at the
first where the other is. Lengths between, where neither could be told from the other or something
was amiss while they were timed, lie within.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import exp, log

from attnbench.answer.regimes import Regime, time_of
from attnbench.answer.standing import Standing
from attnbench.answer.verdict import MARGIN
from attnbench.record import Time


@dataclass(frozen=True)
class Crossing:
    """``before`` leads up to one length, ``after`` from another on."""

    before: str
    after: str
    low: int
    high: int
    estimate: float
    """Where their medians would be equal, were each a power of the length in between."""

    def __str__(self) -> str:
        return (
            f"{self.after} overtakes {self.before} between {self.low:,} and {self.high:,} "
            f"(about {self.estimate:,.0f})"
        )


def crossings(regime: Regime, found: list[Standing], margin: float = MARGIN) -> list[Crossing]:
    """Of the variants that lead at some length, each pair's changes of place."""
    leaders = dict.fromkeys(s.answer.winner for s in found if s.answer)
    pairs = combinations(leaders, 2)
    return sorted(
        (c for a, b in pairs for c in _of_pair(regime, a, b, margin)), key=lambda c: c.low
    )


def _of_pair(regime: Regime, a: str, b: str, margin: float) -> Iterator[Crossing]:
    ahead: tuple[str, int] | None = None
    times = {n: (time_of(some.get(a)), time_of(some.get(b))) for n, some in regime.cells.items()}
    for length, (of_a, of_b) in times.items():
        if of_a is None or of_b is None or of_a.flags or of_b.flags:
            continue
        now = a if _beats(of_a, of_b, margin) else b if _beats(of_b, of_a, margin) else None
        if now and ahead and now != ahead[0]:
            yield Crossing(ahead[0], now, ahead[1], length, _equal(times, ahead[1], length))
        if now:
            ahead = (now, length)


def _beats(one: Time, other: Time, margin: float) -> bool:
    return one.high_s * (1 + margin) < other.low_s


def _equal(times: Mapping[int, tuple[Time | None, Time | None]], low: int, high: int) -> float:
    """By the logarithms of both ratios, between the neighbours where the ratio passes one."""
    known = [(n, log(a.median_s / b.median_s)) for n, (a, b) in times.items()
             if a and b and low <= n <= high]  # fmt: skip
    for (n, x), (m, y) in pairwise(known):
        if x * y <= 0 and x != y:
            return exp(log(n) + (log(m) - log(n)) * x / (x - y))
    return (low * high) ** 0.5
