"""Sizes and times as people write them: ``2GiB``, ``512MiB``, ``8GB``; ``200ms``, ``9min``."""

from __future__ import annotations

import re
from collections.abc import Mapping

BYTES = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
SECONDS = {"US": 1e-6, "MS": 1e-3, "S": 1.0, "M": 60.0, "MIN": 60.0, "H": 3600.0}
MOST_BYTES, MOST_SECONDS = 2**60, 86400.0


class NotAnAmount(ValueError):
    """The text is no size, or no time; a sentence."""


def size(text: str) -> int:
    """Bytes: a number above 0 with its unit."""
    value = _read(text, BYTES)
    if value is None or not 1 <= value <= MOST_BYTES:
        raise NotAnAmount(
            f"{text!r} is not a size: give a number above 0 with its unit, such as 2GiB, 512MiB "
            "or 8GB"
        )
    return int(value)


def duration(text: str) -> float:
    """Seconds: a number above 0 with its unit."""
    value = _read(text, SECONDS)
    if value is None or not 0 < value <= MOST_SECONDS:
        raise NotAnAmount(
            f"{text!r} is not a time: give a number above 0 with its unit, such as 1s, 200ms or "
            "50us, at most a day"
        )
    return value


def _read(text: str, units: Mapping[str, float]) -> float | None:
    """A number times its unit; None where the text is none."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *([A-Za-z]+)", text.strip())
    if found is None or found[2].upper() not in units:
        return None
    return float(found[1]) * units[found[2].upper()]
