"""Amounts in words: short in a sentence, in a column with as many figures as the rest."""

from __future__ import annotations

import math
from typing import Any

NONE = "–"
"""In a column, where there is no number."""


def positive(value: Any) -> float | None:
    """A number above 0 that is finite, as every axis of logarithms needs; None of all others."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def three(value: float) -> str:
    """Three digits of it: ``1.31``, ``0.0042``, ``12,300``."""
    if value and (value >= 1e6 or value < 1e-4):
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    if value >= 99.95:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def seconds(value: float) -> str:
    """``523 ms``"""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size * 0.9995:
            return f"{three(value / size)} {unit}"
    return f"{three(value * 1e9)} ns"


def nbytes(value: float) -> str:
    """``1.5 MiB``"""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value >= 2**power:
            return f"{three(value / 2**power)} {unit}"
    return f"{three(value)} B"


def joules(value: float) -> str:
    """``1.2 mJ``"""
    for unit, size in (("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3)):
        if value >= size:
            return f"{three(value / size)} {unit}"
    return f"{three(value * 1e6)} µJ"


def percent(value: float) -> str:
    """``42 %``"""
    return f"{three(value * 100)}\N{NO-BREAK SPACE}%"


def times(value: float) -> str:
    """``1.31×``"""
    return f"{three(value)}×"


def tokens(value: int) -> str:
    """``4k`` of 4,096, where a length is a whole number of 1,024; other lengths in full."""
    return f"{value // 1024:,}k" if value >= 1024 and value % 1024 == 0 else f"{value:,}"


def figures(value: float | None) -> str:
    """For a column, three figures, all digits before the point: ``37.0``, ``12,345``."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-12))
    return f"{value:.1e}" if digits > 6 else f"{value:,.{digits}f}"


def ms(seconds: float | None) -> str:
    """Milliseconds in figures: ``1,240``, ``0.386``."""
    return figures(seconds * 1e3) if seconds is not None else NONE


def mib(nbytes: float | None) -> str:
    """``3.06``"""
    return figures(nbytes / 2**20) if nbytes is not None else NONE


def ratio(value: float | None) -> str:
    """``1.30×``"""
    if value is None:
        return NONE
    return f"{value:.2f}×" if 0.1 <= value < 10 else f"{figures(value)}×"


def share(value: float | None) -> str:
    """``35 %``"""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{round(value * 100)}\N{NO-BREAK SPACE}%"
