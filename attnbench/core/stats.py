"""Medians and their intervals; verdicts on calls timed in pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from math import atan, comb, cos, pi, sin, sqrt
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from attnbench.core.format import percent, ratio_interval

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
    ordered = sorted(map(float, samples))
    rank = interval_rank(len(ordered), CONFIDENCE)
    quarters = []
    for quarter in (1, 2, 3):  # between the two samples next to it
        place, rest = divmod(quarter * (len(ordered) - 1), 4)
        above = ordered[min(place + 1, len(ordered) - 1)]
        quarters.append(ordered[place] + (above - ordered[place]) * rest / 4)
    q25, median, q75 = quarters
    return Summary(median, ordered[rank - 1], ordered[-rank], q25, q75, ordered[0])


def bootstrap_medians(
    samples: Sequence[float] | np.ndarray, draws: int = 4000, seed: int = 0
) -> np.ndarray:
    """Medians of samples drawn again, with replacement: how the median itself would scatter."""
    values = np.sort(np.asarray(samples, dtype=float))
    ranks, above = _ranks_drawn(len(values), draws, seed)
    medians = values[ranks]
    if above is not None:
        medians = (medians + values[above]) / 2
    return np.asarray(medians)


@lru_cache(maxsize=256)
def _ranks_drawn(n: int, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Which of n ordered samples are the middle of a resample; kept, for many cells have as many.

    A resample's order statistic is the original's at a rank with a known law, so that the ranks
    alone are drawn: the median of n uniforms is a beta variable. Of an even number of samples, the
    second is the rank of the next order statistic, given the first.
    """
    generator = np.random.default_rng(seed)
    middle = (n + 1) / 2
    low, high = int(np.floor(middle)), int(np.ceil(middle))
    uniform = generator.beta(low, n - low + 1, draws)
    ranks = np.minimum((uniform * n).astype(int), n - 1)
    if high == low:
        return ranks, None
    rest = 1 - (1 - uniform) * generator.random(draws) ** (1 / (n - low))
    return ranks, np.minimum((rest * n).astype(int), n - 1)


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


@dataclass(frozen=True)
class Comparison:
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
    paired: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        values = asdict(self).items()
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """As it was sent."""
        return cls(**{**values, "verdict": Verdict(values["verdict"])})

    def sentence(self, a: str, b: str) -> str:
        """``b is FASTER than a: 0.52 of its time [0.51, 0.53]``, and what else must be known."""
        words = {
            Verdict.FASTER: f"{b} is FASTER than {a}",
            Verdict.SLOWER: f"{b} is SLOWER than {a}",
            Verdict.EQUIVALENT: f"{b} and {a} are EQUIVALENT",
            Verdict.INCONCLUSIVE: f"INCONCLUSIVE for {b} against {a}",
        }[self.verdict]
        how = f"{self.n} pairs" if self.paired else f"unpaired, {self.n} samples"
        if self.verdict is Verdict.INCONCLUSIVE and self.n < LEAST_PAIRS:
            how += f", too few to decide (it takes {LEAST_PAIRS})"
        limits = f"margin {percent(self.margin)}; smallest detectable difference "
        limits += percent(self.smallest_effect)
        ratio = f"{self.ratio:.3f} of its time [{self.low:.3f}, {self.high:.3f}]"
        return f"{words}: {ratio} ({how}; {limits})"


def paired(
    log_ratios: Sequence[float],
    margin: float,
    *,
    confidence: float = VERDICT_CONFIDENCE,
    seed: int = 0,
) -> Comparison:
    """The comparison that some pairs' log(b/a) allow."""
    exact = median_interval(log_ratios, confidence)
    medians, middle = bootstrap_medians(log_ratios, seed=seed), float(np.median(log_ratios))
    away = np.sign(middle) * np.asarray(log_ratios) > math.log1p(margin)
    n, least = len(away), int(away.sum())
    p = 2 * sum(comb(n, k) for k in range(least, n + 1)) / 2**n  # the sign test's
    return _judged(middle, medians, n, margin, confidence, p, exact)


def unpaired(
    a: Sequence[float],
    b: Sequence[float],
    margin: float,
    *,
    seed: int = 0,
) -> Comparison:
    """The same of samples taken at other times; no drift between them is taken out."""
    over = bootstrap_medians(np.log(b), seed=seed) - bootstrap_medians(np.log(a), seed=seed + 1)
    middle = float(np.median(np.log(b)) - np.median(np.log(a)))
    away = (abs(middle) - math.log1p(margin)) / max(float(np.std(over)), 1e-12)
    n, p = min(len(a), len(b)), math.erfc(away / 2**0.5)
    return replace(_judged(middle, over, n, margin, VERDICT_CONFIDENCE, p), paired=False)


def verdict_of(low: float, high: float, edge: float) -> Verdict:
    """The verdict that an interval of log(b/a) allows, where ``edge`` is the margin's logarithm."""
    if high < -edge:
        return Verdict.FASTER
    if low > edge:
        return Verdict.SLOWER
    return Verdict.EQUIVALENT if -edge < low and high < edge else Verdict.INCONCLUSIVE


def _judged(
    middle: float,
    medians: np.ndarray,
    n: int,
    margin: float,
    confidence: float,
    p: float,
    exact: Sequence[float] = (),
) -> Comparison:
    tail = (1 - confidence) / 2
    bounds = [float(x) for x in np.quantile(medians, [tail, 1 - tail])]
    low, high = min([*bounds, *exact]), max([*bounds, *exact])
    edge = math.log1p(margin)
    verdict = verdict_of(low, high, edge) if n >= LEAST_PAIRS else Verdict.INCONCLUSIVE
    different = verdict in (Verdict.FASTER, Verdict.SLOWER)
    towards = middle - low if middle > 0 else high - middle
    width = towards if different else (high - low) / 2
    return Comparison(
        verdict,
        math.exp(middle),
        math.exp(low),
        math.exp(high),
        margin,
        math.expm1(edge + width),
        n,
        min(1.0, p),
    )


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Many cells together: a difference stands only where it survives Holm's correction.

    Among m comparisons some would look like differences by chance alone; from the least probable
    on, each must be below 1 % over how many are left. One that isn't is INCONCLUSIVE.
    """
    if len(comparisons) < 2:
        return list(comparisons)
    order = sorted(range(len(comparisons)), key=lambda i: comparisons[i].p)
    results, standing = list(comparisons), True
    for rank, i in enumerate(order):
        standing = standing and comparisons[i].p <= (1 - VERDICT_CONFIDENCE) / (len(order) - rank)
        if not standing and comparisons[i].verdict in (Verdict.FASTER, Verdict.SLOWER):
            results[i] = replace(comparisons[i], verdict=Verdict.INCONCLUSIVE)
    return results


def tally(comparisons: Iterable[Comparison | None]) -> dict[str, int]:
    """How often each verdict was given; None: there was nothing to compare."""
    verdicts = [c.verdict for c in comparisons if c is not None]
    return {str(verdict): verdicts.count(verdict) for verdict in Verdict}


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


@dataclass
class Pairs:
    """The pairs taken, and what they say."""

    comparison: Comparison
    a_s: list[float] = field(default_factory=list)
    b_s: list[float] = field(default_factory=list)
    stop: str = ""
    """``decided``, ``cap`` or ``budget``."""
    names: tuple[str, str] = ("a", "b")
    """Whose samples they are: of variants, or of commits."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values: ``samples_s`` holds the seconds of each by its name, a's first."""
        a, b = self.names
        b += " again" * (a == b)
        samples = {a: list(self.a_s), b: list(self.b_s)}
        return {"comparison": self.comparison.to_dict(), "samples_s": samples, "stop": self.stop}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Pairs:
        """As it was sent or kept; older files hold the samples as ``a_s`` and ``b_s``."""
        samples = values.get("samples_s") or {"a": values["a_s"], "b": values["b_s"]}
        (a, a_s), (b, b_s) = samples.items()
        comparison = Comparison.from_dict(values["comparison"])
        return cls(comparison, a_s, b_s, values["stop"], (a, b))


def compare(a: Side, b: Side, rule: StopRule, chance: random.Random | None = None) -> Pairs:
    """The pairs of two sides, taken look after look until they decide, or the rule ends it."""
    chance, start = chance or random.SystemRandom(), perf_counter()
    pairs = Pairs(paired([0.0], rule.margin))
    for look in rule.looks:
        more = look - len(pairs.a_s)
        # as often the one first as the other, in random order
        for first_a in chance.sample([i % 2 == 0 for i in range(more)], more):
            if len(pairs.a_s) % A_PLACE == 0:
                for side in chance.sample((a, b), 2):
                    side.fresh()
            one = (a, b) if first_a else (b, a)
            seconds = {id(side): side.sample() for side in one}
            pairs.a_s.append(seconds[id(a)])
            pairs.b_s.append(seconds[id(b)])
        ratios = [math.log(y / x) for x, y in zip(pairs.a_s, pairs.b_s, strict=True)]
        pairs.comparison = paired(ratios, rule.margin, confidence=rule.confidence)
        if pairs.comparison.verdict is not Verdict.INCONCLUSIVE:
            pairs.stop = "decided"
            return pairs
        if perf_counter() - start >= rule.budget_s:
            pairs.stop = "budget"
            return pairs
    pairs.stop = "cap"
    return pairs


def corrected(results: Sequence[Pairs | None]) -> Iterator[Pairs | None]:
    """Many cells' pairs with Holm's correction over all of them; None where a cell has none."""
    judged = iter(holm([pairs.comparison for pairs in results if pairs is not None]))
    for pairs in results:
        yield None if pairs is None else replace(pairs, comparison=next(judged))
