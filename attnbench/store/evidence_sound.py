"""Whether the figures of evidence can be figures: what lies outside of what it may be is named.

A file that was edited, or written by a fault, is not shown as if it had been measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import Any

ROUNDING = 1e-6
NOTHING_BELOW = (0.0, inf)
SHARE = (0.0, 1.0)
SAMPLES = "samples_s"
COSINE = (-1.0 - ROUNDING, 1.0 + ROUNDING)
BOUNDS: Mapping[str, tuple[float, float]] = {
    "relative": NOTHING_BELOW, "max": NOTHING_BELOW, "worst_row": NOTHING_BELOW,
    "distance": NOTHING_BELOW, "seconds": NOTHING_BELOW, "step_s": NOTHING_BELOW,
    "took_s": NOTHING_BELOW, "a_s": NOTHING_BELOW, "b_s": NOTHING_BELOW, SAMPLES: NOTHING_BELOW,
    "entropy": (0.0, 1.0 + ROUNDING), "skill": (-inf, 1.0 + ROUNDING), "accuracy": SHARE,
    "cosine": COSINE, "cosines": COSINE, "similarities": COSINE,
}  # fmt: skip
"""By name, what a number may be, and all numbers of a list or of a mapping by counts so named; and
of the samples of pairs, by variant."""
INTERVAL = ("low", "ratio", "high")


def unsound(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The first figure that can't be one, and where it stands; None where all can."""
    return next((said for n, row in enumerate(rows) for said in _amiss(row, f"row {n}")), None)


def _amiss(value: Any, place: str, bounds: tuple[float, float] | None = None) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _interval(value, place)
        for name, inner in value.items():
            inherited = name.isdigit() or place.endswith(f", {SAMPLES}")
            own = BOUNDS.get(name, bounds if inherited else None)
            yield from _amiss(inner, f"{place}, {name}", own)
    elif isinstance(value, list):
        for inner in value:
            yield from _amiss(inner, place, bounds)
    elif bounds and value is not None and not _within(value, bounds):
        yield f"{place} is {value!r}"


def _within(value: Any, bounds: tuple[float, float]) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and isfinite(value) and bounds[0] <= value <= bounds[1]


def _interval(found: Mapping[str, Any], place: str) -> Iterator[str]:
    """A ratio within its interval, above nought."""
    if all(name in found for name in INTERVAL):
        ends = [found[name] for name in INTERVAL]
        if not all(_within(x, NOTHING_BELOW) for x in ends) or ends != sorted(ends):
            low, ratio, high = ends
            yield f"{place} is {ratio!r} [{low!r}, {high!r}]"
