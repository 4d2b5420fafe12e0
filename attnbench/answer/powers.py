"""How something grows with the length: the power that fits best, with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

FITTED = 4
"""The longest lengths, so many: below, fixed costs bend the line."""
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182}
"""The 97.5th percentile of Student's t, by degrees of freedom (any table of it)."""


@dataclass(frozen=True)
class Power:
    """``y`` grows as the length to this power."""

    power: float
    error: float
    """Half of the 95 % interval."""
    lengths: tuple[int, ...]

    def __str__(self) -> str:
        return f"n^{self.power:.2f} ± {self.error:.2f}"


def power(points: Mapping[int, float]) -> Power | None:
    """By least squares on logarithms, over the longest; None of fewer than three lengths."""
    usable = {n: y for n, y in points.items() if n > 0 and y > 0 and np.isfinite(y)}
    lengths = sorted(usable)[-FITTED:]
    if len(lengths) < 3:
        return None
    x = np.log([float(n) for n in lengths])
    y = np.log([usable[n] for n in lengths])
    x = x - x.mean()
    slope = float(x @ (y - y.mean()) / (x @ x))
    rest = y - y.mean() - slope * x
    free = len(lengths) - 2
    spread = float(np.sqrt(rest @ rest / free / (x @ x)))
    return Power(slope, STUDENT[free] * spread, tuple(lengths))
