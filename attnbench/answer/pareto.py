"""What nothing else is better than: the frontier of points where less is better both ways."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names that no other beats in one coordinate without losing in the other.

    In the order of the first coordinate; points that lie on each other are kept together. What
    is no number in either stands nowhere.
    """
    kept: list[str] = []
    best = float("inf")
    known = [name for name, point in points.items() if all(map(isfinite, point))]
    for name in sorted(known, key=lambda name: (*points[name], name)):
        y = points[name][1]
        if y < best or (kept and points[name] == points[kept[-1]]):
            kept.append(name)
            best = y
    return kept
