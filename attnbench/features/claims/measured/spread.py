"""How figures of several draws are said: their median with its interval, a share with its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from attnbench.core.stats import summary
from attnbench.features.claims.claim import ClaimFigure

NORMAL = 1.96
"""The 97.5th percentile of the normal distribution."""


def middle(values: Sequence[float]) -> ClaimFigure:
    """The median of some draws, with its 95 % interval."""
    said = summary(values)
    return ClaimFigure(said.median, said.low, said.high)


def share(count: int, of: int) -> ClaimFigure:
    """A share of some draws, with Wilson's 95 % interval."""
    if not of:
        return ClaimFigure(None, why="there was no such draw")
    p, z = count / of, NORMAL**2 / of
    centre = (p + z / 2) / (1 + z)
    half = NORMAL * sqrt(p * (1 - p) / of + z / (4 * of)) / (1 + z)
    return ClaimFigure(p, max(0.0, centre - half), min(1.0, centre + half))
