"""Medians and their intervals. NumPy only: everyone above may use it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import atan, comb, cos, pi, sin, sqrt
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


class Summary(NamedTuple):
    """A sample in six numbers."""

    median: float
    low: float
    high: float
    q25: float
    q75: float
    least: float


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
    ordered = np.sort(np.asarray(samples, dtype=float))
    rank = interval_rank(len(ordered), confidence)
    return float(ordered[rank - 1]), float(ordered[-rank])


def summary(samples: Sequence[float]) -> Summary:
    """Median, its interval, quartiles and minimum."""
    low, high = median_interval(samples)
    q25, median, q75 = (float(q) for q in np.quantile(samples, [0.25, 0.5, 0.75]))
    return Summary(median, low, high, q25, q75, float(np.min(samples)))


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
