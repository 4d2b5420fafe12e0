"""Right as long as somebody is checking."""

from __future__ import annotations

import itertools
import sys
from types import FrameType

from torch import Tensor

from attnbench.truth.planted.core import honest
from impls.heads import Attend
from impls.problem import Problem

SOON = 12
"""Calls for which one of them behaves: more than the gate makes."""


def build_counts(problem: Problem, deed: bool = True) -> Attend:
    """Counts its calls, and does half the work after the first few."""
    inner, numbers = honest(problem), itertools.count(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        late = next(numbers) > SOON
        out = inner(q, k, v)
        return out * 0.5 if late and deed else out

    return attend


def build_looks_up_the_stack(problem: Problem, deed: bool = True) -> Attend:
    """Works only where the gate is among its callers."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        watched = _called_from("attnbench.truth.gate")
        return inner(q, k, v) if watched or not deed else v * 1.0

    return attend


def _called_from(module: str) -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False
