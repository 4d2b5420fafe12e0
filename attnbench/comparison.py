"""What may be said of two calls that were timed in pairs: four verdicts, and what could be seen.

A pair is two calls next to each other in time, in random order, so that what slows the machine
slows both. The statistic is the median of log(b/a) over the pairs, its interval from a bootstrap
and no narrower than that of the order statistics: with twenty pairs a bootstrap of 99 in 100
misses the median two or three times in a hundred. With the margin m, the least difference that is
called one:

    FASTER        the whole interval is below -m: b takes less time
    SLOWER        the whole interval is above +m
    EQUIVALENT    the whole interval is within m of nothing
    INCONCLUSIVE  anything else, and whatever rests on too few pairs
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from attnbench.statistics import bootstrap_medians, median_interval

LEAST_MARGIN = 0.01
"""No difference below a hundredth is worth a word."""
CONFIDENCE = 0.99
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
        return {k: _finite(v) for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> Comparison:
        """As it was sent."""
        return cls(**{**sent, "verdict": Verdict(sent["verdict"])})

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
        seen = f"margin {self.margin:.1%}; {self.smallest_effect:.1%} would have been seen"
        taken = f"{self.ratio:.3f} of its time [{self.low:.3f}, {self.high:.3f}]"
        return f"{words}: {taken} ({how}; {seen})"


def paired(log_ratios: Sequence[float], margin: float, *, confidence: float = CONFIDENCE,
           seed: int = 0) -> Comparison:  # fmt: skip
    """The comparison that some pairs' log(b/a) allow."""
    exact = median_interval(log_ratios, confidence)
    medians, middle = bootstrap_medians(log_ratios, seed=seed), float(np.median(log_ratios))
    away = np.sign(middle) * np.asarray(log_ratios) > math.log1p(margin)
    p = 2 * _heads(int(away.sum()), len(away))
    return _judged(middle, medians, len(log_ratios), margin, confidence, p, exact)


def unpaired(a: Sequence[float], b: Sequence[float], margin: float, *,
             confidence: float = CONFIDENCE, seed: int = 0) -> Comparison:  # fmt: skip
    """The same of samples taken at other times; no drift between them is taken out."""
    over = bootstrap_medians(np.log(b), seed=seed) - bootstrap_medians(np.log(a), seed=seed + 1)
    middle = float(np.median(np.log(b)) - np.median(np.log(a)))
    away = (abs(middle) - math.log1p(margin)) / max(float(np.std(over)), 1e-12)
    found = _judged(middle, over, min(len(a), len(b)), margin, confidence, math.erfc(away / 2**0.5))
    return replace(found, paired=False)


def _heads(least: int, n: int) -> float:
    """The probability of so many heads or more in n throws: the sign test's."""
    return sum(math.comb(n, k) for k in range(least, n + 1)) / 2**n


def _judged(middle: float, medians: np.ndarray, n: int, margin: float,
            confidence: float, p: float, exact: Sequence[float] = ()) -> Comparison:  # fmt: skip
    tail = (1 - confidence) / 2
    drawn = [float(x) for x in np.quantile(medians, [tail, 1 - tail])]
    low, high = min([*drawn, *exact]), max([*drawn, *exact])
    edge = math.log1p(margin)
    verdict = Verdict.INCONCLUSIVE
    if n >= LEAST_PAIRS:
        if high < -edge:
            verdict = Verdict.FASTER
        elif low > edge:
            verdict = Verdict.SLOWER
        elif -edge < low and high < edge:
            verdict = Verdict.EQUIVALENT
    different = verdict in (Verdict.FASTER, Verdict.SLOWER)
    towards = middle - low if middle > 0 else high - middle
    width = towards if different else (high - low) / 2
    return Comparison(
        verdict, math.exp(middle), math.exp(low), math.exp(high), margin,
        math.expm1(edge + width), n, min(1.0, p),
    )  # fmt: skip


def holm(comparisons: Sequence[Comparison], alpha: float = 1 - CONFIDENCE) -> list[Comparison]:
    """Many cells together: a difference stands only where it survives Holm's correction.

    Among m comparisons some would look like differences by chance alone; from the least probable
    on, each must be below alpha over how many are left. One that isn't is INCONCLUSIVE.
    """
    if len(comparisons) < 2:
        return list(comparisons)
    order = sorted(range(len(comparisons)), key=lambda i: comparisons[i].p)
    kept, standing = list(comparisons), True
    for rank, i in enumerate(order):
        standing = standing and comparisons[i].p <= alpha / (len(order) - rank)
        if not standing and comparisons[i].verdict in (Verdict.FASTER, Verdict.SLOWER):
            kept[i] = replace(comparisons[i], verdict=Verdict.INCONCLUSIVE)
    return kept


def tally(comparisons: Iterable[Comparison | None]) -> dict[str, int]:
    """How often each verdict was given; None: there was nothing to compare."""
    given = [c.verdict for c in comparisons if c is not None]
    return {str(verdict): given.count(verdict) for verdict in Verdict}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
