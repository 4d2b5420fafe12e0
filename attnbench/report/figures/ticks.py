"""Where an axis of amounts has its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attnbench.report.figures.labels import width

MOST = 6
"""Ticks on an axis."""


def limits(values: Iterable[float], least: float = 6.0, room: float = 0.06) -> tuple[float, float]:
    """Ends of an axis that hold the values and span so many times or more."""
    found = sorted(values)
    low, high = found[0], found[-1]
    wider = max(1.0, (least * low / high) ** 0.5)
    low, high = low / wider, high * wider
    edge = (high / low) ** room
    return low / edge, high * edge


def decimal(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 times powers of ten, or at powers of ten alone where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    fine = [d * 10.0**k for k in range(first, last + 1) for d in (1, 2, 5)]
    inside = [tick for tick in fine if low <= tick <= high]
    if len(inside) <= MOST:
        return inside
    powers = [k for k in range(first, last + 1) if low <= 10.0**k <= high]
    if len(powers) < 2:
        return [tick for tick in inside if f"{tick:e}"[0] != "2"]
    step = math.ceil(len(powers) / MOST)
    return [10.0**k for k in powers if k % step == 0]


def binary(low: float, high: float) -> list[float]:
    """Ticks at powers of two, at every so many of them."""
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    step = next((s for s in (1, 2, 3, 5, 10, 20) if len(powers) <= s * MOST), 40)
    return [2.0**k for k in powers if k % step == 0]


def linear(top: float) -> list[float]:
    """Ticks from nought on, at 1, 2 or 5 times a power of ten; six at the most."""
    power = 10.0 ** math.floor(math.log10(top / 5))
    step = next(d * power for d in (1, 2, 5, 10) if top / (d * power) < MOST)
    return [k * step for k in range(int(top / step * (1 + 1e-9)) + 1)]


def fitting(words: Sequence[str], places: Sequence[float], size: float,
            end: float = math.inf) -> list[str]:  # fmt: skip
    """The words of ticks; empty what would touch the next one's, or reach beyond the end."""
    kept = list(words)
    edge = end + 3
    for number in reversed(range(len(kept))):
        half = width(kept[number], size) / 2
        if places[number] + half > edge - 3:
            kept[number] = ""
        else:
            edge = places[number] - half
    return kept


def number(value: float) -> str:
    """For a table: six digits, or all of a whole number."""
    return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"


def share(limits: tuple[float, float], value: float) -> float:
    """Where a value lies on an axis of logarithms, as a share of its span."""
    low, high = limits
    return math.log(value / low) / math.log(high / low)
