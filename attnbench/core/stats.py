"""Medians and their intervals; verdicts on calls timed in pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import atan, comb, cos, pi, sin, sqrt
from statistics import NormalDist, median
from time import perf_counter
from typing import NamedTuple, Protocol, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from attnbench.core.format import ratio_interval

CONFIDENCE = 0.95


class Summary(NamedTuple):
    """A sample in six numbers."""

    median: float
    low: float
    high: float
    q25: float
    q75: float
    least: float


@dataclass(frozen=True)
class Interval:
    """A figure and the interval that it lies in; as text, a ratio."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Self:
        """Without an interval."""
        return cls(value, value, value)

    def __str__(self) -> str:
        return ratio_interval(self.value, self.low, self.high)


@lru_cache(maxsize=1024)
def interval_rank(n: int, confidence: float) -> int:
    """The largest r such that the r-th smallest and r-th largest hold the median often enough.

    The number of samples below the median is binomial(n, 1/2), whatever the distribution.
    """
    tail, rank = 0.0, 0
    for below in range(n // 2):
        tail += comb(n, below) / 2**n
        if 2 * tail > 1 - confidence:
            break
        rank = below + 1
    return max(rank, 1)


def median_interval(
    samples: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """The interval of the median from order statistics; below six samples, the whole range."""
    ordered = sorted(map(float, samples))
    rank = interval_rank(len(ordered), confidence)
    return ordered[rank - 1], ordered[-rank]


def summary(samples: Sequence[float]) -> Summary:
    """Median, its interval, quartiles and minimum."""
    q25, middle, q75 = np.percentile(samples, [25, 50, 75]).tolist()
    return Summary(middle, *median_interval(samples), q25, q75, float(min(samples)))


def student(t: float, freedom: int) -> float:
    """The share of Student's distribution below t: its finite series for whole degrees."""
    angle = atan(t / sqrt(freedom))
    term, total = (cos(angle), 0.0) if freedom % 2 else (1.0, 0.0)
    for k in range(3 if freedom % 2 else 2, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    if freedom % 2:
        return 0.5 + (angle + sin(angle) * total) / pi
    return 0.5 + sin(angle) * total / 2


@lru_cache(maxsize=256)
def student_quantile(share: float, freedom: int) -> float:
    """The t below which that share lies."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, freedom) < share else (low, middle)
    return high


def share_interval(right: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's interval of a share of which so many were right."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z * sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


LEAST_MARGIN = 0.01
"""No difference below a hundredth is worth a word."""
VERDICT_CONFIDENCE = 0.99
LEAST_PAIRS = 20
"""Fewer pairs decide nothing."""


class Verdict(StrEnum):
    """How b's time stands to a's."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """b's time over a's: the median ratio, its interval, the verdict at a margin."""

    verdict: Verdict
    ratio: float
    low: float
    high: float
    margin: float
    """As a share: 0.01 is one hundredth."""
    smallest_effect: float
    """The least true difference, as a share, that an interval as wide as this one, on its side
    towards nothing, would have shown beyond the margin."""
    n: int
    """Pairs; of unpaired samples, those of the smaller side."""
    p: float
    """How probable so lopsided a sample is where the true ratio is within the margin."""
    paired: bool
    a_s: list[float] = []
    """The seconds of each call of a, where pairs were taken."""
    b_s: list[float] = []
    stop: str = ""
    """``decided``, ``cap`` or ``budget``."""

    @property
    def medians(self) -> tuple[float, float]:
        """Seconds of a call of a, and of b."""
        return median(self.a_s), median(self.b_s)


def paired(
    log_ratios: Sequence[float], margin: float, *, confidence: float = VERDICT_CONFIDENCE
) -> Comparison:
    """The comparison that some pairs' log(b/a) allow: the median, and order statistics."""
    low, high = median_interval(log_ratios, confidence)
    middle, n = median(log_ratios), len(log_ratios)
    away = sum(math.copysign(1, middle) * x > math.log1p(margin) for x in log_ratios)
    p = 2 * sum(comb(n, k) for k in range(away, n + 1)) / 2**n  # the sign test's
    return _judged(middle, low, high, margin, n, p, paired=True)


def unpaired(a: Sequence[float], b: Sequence[float], margin: float) -> Comparison:
    """The same of samples taken at other times; no drift between them is taken out.

    The interval of a difference of medians, by how far each of their own intervals reaches.
    """
    (low_a, high_a), (low_b, high_b) = (
        map(math.log, median_interval(side, VERDICT_CONFIDENCE)) for side in (a, b)
    )
    log_a, log_b = math.log(median(a)), math.log(median(b))
    middle = log_b - log_a
    low = middle - math.hypot(log_b - low_b, high_a - log_a)
    high = middle + math.hypot(high_b - log_b, log_a - low_a)
    spread = (high - low) / 2 / NormalDist().inv_cdf((1 + VERDICT_CONFIDENCE) / 2)
    away = (abs(middle) - math.log1p(margin)) / max(spread, 1e-12)
    n, p = min(len(a), len(b)), math.erfc(away / sqrt(2))
    return _judged(middle, low, high, margin, n, p, paired=False)


def verdict_of(low: float, high: float, edge: float) -> Verdict:
    """The verdict that an interval of log(b/a) allows, where ``edge`` is the margin's logarithm."""
    if high < -edge:
        return Verdict.FASTER
    if low > edge:
        return Verdict.SLOWER
    return Verdict.EQUIVALENT if -edge < low and high < edge else Verdict.INCONCLUSIVE


def _judged(
    middle: float, low: float, high: float, margin: float, n: int, p: float, *, paired: bool
) -> Comparison:
    edge = math.log1p(margin)
    verdict = verdict_of(low, high, edge) if n >= LEAST_PAIRS else Verdict.INCONCLUSIVE
    different = verdict in (Verdict.FASTER, Verdict.SLOWER)
    towards = middle - low if middle > 0 else high - middle
    effect = math.expm1(edge + (towards if different else (high - low) / 2))
    ratio, low, high = map(math.exp, (middle, low, high))
    return Comparison(verdict, ratio, low, high, margin, effect, n, min(1.0, p), paired)


def holm(comparisons: Sequence[Comparison | None]) -> list[Comparison | None]:
    """Many cells together: a difference stands only where it survives Holm's correction.

    Among m comparisons some would look like differences by chance alone; from the least probable
    on, each must be below 1 % over how many are left. One that isn't is INCONCLUSIVE.
    """
    results, standing = list(comparisons), True
    some = [(c.p, i, c) for i, c in enumerate(comparisons) if c is not None]
    for rank, (p, i, c) in enumerate(sorted(some, key=lambda each: each[:2])):
        standing = standing and p <= (1 - VERDICT_CONFIDENCE) / (len(some) - rank)
        if len(some) > 1 and not standing and c.verdict in (Verdict.FASTER, Verdict.SLOWER):
            results[i] = replace(c, verdict=Verdict.INCONCLUSIVE)
    return results


def nearest_floor(floors: Sequence[Mapping[str, float]], call_s: float) -> float:
    """The noise floor of the calls that took about as long; 0 where none was measured."""
    return min(floors, key=lambda f: abs(math.log(f["call_s"] / call_s)), default={"floor": 0.0})[
        "floor"
    ]


DRIFT = 0.05
"""Two readings of the canary minutes apart differ by that much on a quiet machine, one time in
twenty."""


def drift_margin(floors: Sequence[Mapping[str, float]], canary_s: float) -> float:
    """By what share the canary must be off before the machine is said to have drifted."""
    return max(DRIFT, nearest_floor(floors, canary_s))


A_PLACE = 20
"""Pairs in one place in memory."""


@dataclass(frozen=True)
class StopRule:
    """When to stop."""

    margin: float
    first: int = 2 * LEAST_PAIRS
    cap: int = 2560
    budget_s: float = 30.0
    """No new look begins after so long."""

    @property
    def looks(self) -> list[int]:
        """Pairs in all at each look: doubled from the first to the cap."""
        counts = [self.first]
        while counts[-1] < self.cap:
            counts.append(min(2 * counts[-1], self.cap))
        return counts

    @property
    def confidence(self) -> float:
        """Of each look, so that all of them together have the whole's."""
        return 1 - (1 - VERDICT_CONFIDENCE) / len(self.looks)


class Side(Protocol):
    """One of two calls."""

    def fresh(self) -> None:
        """Get ready for some pairs: tensors at other addresses, warmed up."""

    def sample(self) -> float:
        """Seconds of one call."""


def compare(a: Side, b: Side, rule: StopRule, chance: random.Random | None = None) -> Comparison:
    """The pairs of two sides, taken look after look until they decide, or the rule ends it."""
    chance, start = chance or random.SystemRandom(), perf_counter()
    a_s, b_s, stop = list[float](), list[float](), "cap"
    for look in rule.looks:
        more = look - len(a_s)
        # as often the one first as the other, in random order
        for first_a in chance.sample([i % 2 == 0 for i in range(more)], more):
            if len(a_s) % A_PLACE == 0:
                for side in chance.sample((a, b), 2):
                    side.fresh()
            one = (a, b) if first_a else (b, a)
            seconds = {id(side): side.sample() for side in one}
            a_s.append(seconds[id(a)])
            b_s.append(seconds[id(b)])
        ratios = [math.log(y / x) for x, y in zip(a_s, b_s, strict=True)]
        comparison = paired(ratios, rule.margin, confidence=rule.confidence)
        if comparison.verdict is not Verdict.INCONCLUSIVE:
            stop = "decided"
            break
        if perf_counter() - start >= rule.budget_s:
            stop = "budget"
            break
    return replace(comparison, a_s=a_s, b_s=b_s, stop=stop)
