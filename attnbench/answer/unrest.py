"""Unrest: how far the machine moved by itself while a run was measured, by its canary.

Times of one run were taken one after the other. The canary is one call of the ruler's own, taken
now and again between them: by as much as it scatters, two times may differ that are the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from attnbench.record import Record
from attnbench.store.skim import Seen

FEWEST = 5
"""From fewer readings nothing is said."""
TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation over its median absolute one."""
WIDE = 2.0
"""Standard deviations: nineteen of twenty readings are no further off."""


def unrest(records: Iterable[Record | Seen]) -> float:
    """As a share; nought where too little is known. Of several nodes, the most restless."""
    readings: dict[str, set[float]] = {}
    for record in records:
        if record.canary_s:
            readings.setdefault(record.node, set()).add(record.canary_s)
    return max((_scatter(each) for each in readings.values() if len(each) >= FEWEST), default=0.0)


def _scatter(readings: Iterable[float]) -> float:
    """By how much a reading may be off the middle one."""
    some = list(readings)
    middle = statistics.median(some)
    off = statistics.median(abs(each / middle - 1) for each in some)
    return WIDE * TO_DEVIATION * off
