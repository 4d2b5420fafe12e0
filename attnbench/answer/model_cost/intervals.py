"""How sure a median over texts is, and a rank correlation over pairs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attnbench.statistics import CONFIDENCE, bootstrap_medians, median_interval

DRAWS = 1000
LEAST = 3
"""Pairs: of fewer no correlation says anything."""


@dataclass(frozen=True)
class Interval:
    """A figure, and where it lies with a confidence of 95 in 100."""

    value: float
    low: float
    high: float
    n: int
    worst: float | None = None
    """Of a median: the least value."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, sent: dict[str, Any] | None) -> Interval | None:
        """As it was sent; None stays None."""
        return None if sent is None else cls(**sent)


def of_median(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """The median with its interval by bootstrap, no narrower than that of the order statistics.

    With few values a bootstrap alone misses the median more often than it says.
    """
    if not values:
        return None
    tail = (1 - confidence) / 2
    drawn = [float(x) for x in np.quantile(bootstrap_medians(values), [tail, 1 - tail])]
    exact = median_interval(values, confidence)
    low, high = min(*drawn, *exact), max(*drawn, *exact)
    return Interval(float(np.median(values)), low, high, len(values), min(values))


def ranked(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The rank of each value, from 1; values that are equal share the mean of their ranks."""
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: np.ndarray = (last - (counts - 1) / 2)[which]
    return means


def rank_correlation(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Spearman's: Pearson's of the ranks; not a number where one side is all alike."""
    x, y = (ranked(side) - (len(side) + 1) / 2 for side in (a, b))
    whole = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / whole if whole else float("nan")


def of_rank_correlation(a: Sequence[float], b: Sequence[float], draws: int = DRAWS,
                        seed: int = 0) -> Interval | None:  # fmt: skip
    """Spearman's with its interval by bootstrap over the pairs; None where nothing can be said."""
    value = rank_correlation(a, b) if len(a) >= LEAST else float("nan")
    if not np.isfinite(value):
        return None
    generator, x, y = np.random.default_rng(seed), np.asarray(a), np.asarray(b)
    picks = generator.integers(len(x), size=(draws, len(x)))
    found = np.array([rank_correlation(x[some], y[some]) for some in picks])
    low, high = (float(q) for q in np.quantile(found[np.isfinite(found)], [0.025, 0.975]))
    return Interval(value, min(low, value), max(high, value), len(x))
