"""How far from what was measured a problem lies, and where that is too far to say anything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnbench.answer.choice import features
from impls.problem import Problem

BEYOND = 1.0
"""Doublings past the ends of what was measured along an axis."""
BEYOND_ONE = 0.6
"""The same along an axis of which one value alone was measured: how it grows is not known."""
FIXED = ("grouping",)
"""Axes along which nothing is smooth: one must have been measured as it is asked."""
APART = 2.5
"""Doublings, over all axes together, from the nearest that was measured."""


def outside(problem: Problem, measured: Sequence[Problem]) -> str | None:
    """None where a problem lies among the measured or modestly beyond; else what is too far off."""
    if not measured:
        return "nothing like it was measured"
    asked, places = np.array(features.place(problem)), features.places(measured)
    low, high = places.min(0), places.max(0)
    for axis, name in enumerate(features.AXES):
        reach = BEYOND if high[axis] > low[axis] else BEYOND_ONE
        reach = 0.0 if name in FIXED else reach
        if low[axis] - reach - 1e-9 <= asked[axis] <= high[axis] + reach + 1e-9:
            continue
        ends = [_said(name, 2 ** float(x)) for x in (low[axis], high[axis])]
        span = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
        return f"{name} {_said(name, 2 ** float(asked[axis]))}, and {span} was measured"
    nearest = float(np.sqrt(((places - asked) ** 2).sum(1)).min())
    if nearest > APART:
        return f"the nearest that was measured is {nearest:.1f} doublings away"
    return None


def _said(axis: str, value: float) -> str:
    return f"{value:.0%}" if axis == "visible share" else f"{value:,.0f}"
