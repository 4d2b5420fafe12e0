"""What is known of one variant on a problem: its time, memory and error, measured or predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.answer.choice import features
from attnbench.answer.choice.predict import Model, Prediction
from attnbench.answer.choice.reach import outside
from attnbench.answer.regimes import time_of
from impls.loading import load_function

if TYPE_CHECKING:
    from attnbench.store.skim import Seen
    from impls.problem import Problem
    from impls.spec import Variant

EXACT_FORMULA = 0.02
"""A formula of the memory that comes this near to all that was measured is believed."""
TRUSTED = 0.5
"""A figure that is not known to this share, either way, is not known."""
BESIDE = 2
"""An error is no larger than the largest of so many measured problems beside it."""


@dataclass(frozen=True)
class Figure:
    """A time in seconds, or bytes: what it is and between what it lies."""

    middle: float
    low: float
    high: float
    measured: bool
    """On this very problem; else predicted."""

    @property
    def off(self) -> float:
        """By what share it may be off, either way."""
        return math.sqrt(self.high / self.low) - 1 if self.low > 0 else math.inf


class Known:
    """One variant's records of problems with the same phase, dtype and kind of mask."""

    def __init__(self, row: Variant | None, seen: Sequence[Seen],
                 ceilings: Mapping[str, Any]) -> None:  # fmt: skip
        """``row``: None where the table has none of that name."""
        self._row, self.seen, self._ceilings = row, seen, ceilings
        self._timed = [s for s in seen if time_of(s)]

    def nearest(self, problem: Problem, count: int = 1) -> list[Seen]:
        """The measured records next to a problem."""
        if not self._timed:
            return []
        places = features.places([s.problem for s in self._timed])
        away = ((places - np.array(features.place(problem))) ** 2).sum(1)
        return [self._timed[i] for i in np.argsort(away, kind="stable")[:count]]

    def on(self, problem: Problem) -> Seen | None:
        """Its record of this very problem, if that has a time."""
        return next((s for s in self._timed if s.problem == problem), None)

    def time(self, problem: Problem) -> Figure | str:
        """Seconds a call, or in a sentence why nothing can be said."""
        if (own := self.on(problem)) is not None and own.time is not None:
            t = own.time
            return Figure(t.median_s, t.low_s, t.high_s, measured=True)
        if (why := outside(problem, [s.problem for s in self._timed])) is not None:
            return why
        times = [s.time for s in self._timed if s.time is not None]
        problems, terms = [s.problem for s in self._timed], features.Terms(self._ceilings)
        found = Model(terms, problems, [t.median_s for t in times]).predict(problem)
        if found is None:
            return f"only {len(times)} problems near it were measured"
        return _figure(found)

    def memory(self, problem: Problem) -> Figure | None:
        """Bytes above the inputs; None where nobody can say."""
        if (own := self.on(problem)) is not None and own.memory and not own.memory.flags:
            peak = own.memory.peak_bytes
            return Figure(peak, peak, peak, measured=True)
        if (by_formula := self._formula(problem)) is not None:
            return by_formula
        with_memory = [s for s in self._timed if _sound_memory(s)]
        if outside(problem, [s.problem for s in with_memory]) is not None:
            return None
        peaks = [s.memory.peak_bytes for s in with_memory if s.memory]
        model = Model(features.Terms({}), [s.problem for s in with_memory], peaks)
        found = model.predict(problem)
        return None if found is None or found.spread > TRUSTED else _figure(found)

    def error(self, problem: Problem) -> float | None:
        """To exact softmax, relative, the worst of output and gradients; None if not measured."""
        own = self.on(problem)
        beside = [own] if own else self.nearest(problem, BESIDE)
        found = [e for s in beside for e in _errors(s)]
        return max(found, default=None)

    def _formula(self, problem: Problem) -> Figure | None:
        """The row's own formula, where it held wherever it was looked at."""
        off = [
            s.memory.peak_bytes / s.memory.expected_bytes for s in self._timed
            if s.memory and _sound_memory(s) and s.memory.expected_bytes
        ]  # fmt: skip
        if self._row is None or self._row.cost is None or not off:
            return None
        if max(abs(x - 1) for x in off) > EXACT_FORMULA:
            return None
        peak = load_function(self._row.cost)(problem, **self._row.chosen).peak_bytes
        return None if peak is None else Figure(peak, peak * min(off), peak * max(off), False)


def _sound_memory(seen: Seen) -> bool:
    """Whether its peak is one: nothing amiss with it, and more than nothing."""
    return seen.memory is not None and seen.memory.peak_bytes > 0 and not seen.memory.flags


def _errors(seen: Seen) -> list[float]:
    if seen.computes != "softmax":
        far = seen.distance.relative if seen.distance else None
        return [] if far is None else [far]
    return [e.relative for e in (seen.error or {}).values() if e.relative is not None]


def _figure(found: Prediction) -> Figure:
    return Figure(found.middle, found.low, found.high, measured=False)
