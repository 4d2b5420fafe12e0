"""Times and memory at lengths that were not measured, from the lengths around them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from attnbench.answer.regimes import line_of, time_of
from attnbench.core.format import counted
from attnbench.core.stats import Interval, student_quantile
from impls.loading import load_function

if TYPE_CHECKING:
    from attnbench.core.record import Record
    from impls.problem import Problem
    from impls.spec import Variant

FEWEST = 3
"""Lengths: from fewer it can't be told how far a figure is from a line."""
LEAST_OFF = 0.02
"""No prediction is believed to be nearer than that, one standard deviation."""
EXACT_FORMULA = 0.02
"""A formula of the memory that comes this near to all that was measured is believed."""
TRUSTED = 0.5
"""A figure that is not known to this share, either way, is not known."""


@dataclass(frozen=True)
class Estimate(Interval):
    """Seconds or bytes, with the interval that nine of ten such figures lie in; of this very
    problem if it was ``measured``.
    """

    measured: bool = False

    @property
    def off(self) -> float:
        """The share by which it may be off, either way."""
        return math.sqrt(self.high / self.low) - 1 if self.low > 0 else math.inf


def predict(figures: Mapping[int, float], length: int) -> Estimate:
    """A figure at a length between measured ones, on a straight line of logarithms.

    Each measured length but the first and last is predicted in the same way from its neighbours.
    How far these predictions are off is how far this one may be.
    """
    logs = sorted((math.log(n), math.log(figure)) for n, figure in figures.items())
    trios = zip(logs, logs[1:], logs[2:], strict=False)
    off = [_between(one, other, n) - y for one, (n, y), other in trios]
    at = min(max(bisect_left(logs, (math.log(length),)), 1), len(logs) - 1)
    middle = _between(logs[at - 1], logs[at], math.log(length))
    spread = math.sqrt(sum(x * x for x in off) / len(off))
    half = student_quantile(0.95, len(off)) * max(LEAST_OFF, spread)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _between(one: tuple[float, float], other: tuple[float, float], x: float) -> float:
    (x0, y0), (x1, y1) = one, other
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class VariantRecords:
    """One variant's records of a problem's phase, dtype and kind of mask."""

    def __init__(self, row: Variant | None, records: Sequence[Record], problem: Problem) -> None:
        """``row``: None where the table has none of that name."""
        self.row, self.records, self.problem = row, records, problem
        timed = [r for r in records if time_of(r)]
        self.own = next((r for r in timed if r.problem == problem), None)
        """The record of this very problem, if that has a time."""
        on_line = [r for r in timed if line_of(r.problem) == line_of(problem)]
        self._line = {r.problem.kv_len: r for r in sorted(on_line, key=lambda r: r.problem.kv_len)}

    @property
    def beside(self) -> list[Record]:
        """The record of the problem, or those of the lengths around it."""
        if self.own is not None:
            return [self.own]
        pairs = pairwise(self._line.items())
        n = self.problem.kv_len
        return next(([one, two] for (low, one), (high, two) in pairs if low <= n <= high), [])

    def time(self) -> Estimate | str:
        """Seconds a call, or a sentence that says why they can't be known."""
        if self.own is not None and (t := self.own.time):
            return Estimate(t.median_s, t.low_s, t.high_s, measured=True)
        if not self._line:
            return "its shape was not measured"
        if len(self._line) < FEWEST:
            return f"of its shape {counted(len(self._line), 'length')} were measured"
        if not self.beside:
            low, high = min(self._line), max(self._line)
            return f"of its shape {low:,} to {high:,} tokens were measured"
        times = {n: r.time.median_s for n, r in self._line.items() if r.time}
        return predict(times, self.problem.kv_len)

    def memory(self) -> Estimate | None:
        """Bytes above the inputs: measured, by the row's own formula where that held on every
        measured problem, or predicted; None if unknown.
        """
        if self.own and (m := self.own.memory) and not m.flags:
            return Estimate(m.peak_bytes, m.peak_bytes, m.peak_bytes)
        sound = {n: m for n, r in self._line.items() if (m := r.memory) and not m.flags}
        peaks = {n: m.peak_bytes for n, m in sound.items() if m.peak_bytes > 0}
        off = [m.peak_bytes / m.expected_bytes for m in sound.values() if m.expected_bytes]
        if self.row and self.row.cost and off and max(abs(x - 1) for x in off) <= EXACT_FORMULA:
            peak = load_function(self.row.cost)(self.problem, **self.row.chosen).peak_bytes
            if peak is not None:
                return Estimate(peak, peak * min(off), peak * max(off))
        if len(peaks) < FEWEST or not min(peaks) <= self.problem.kv_len <= max(peaks):
            return None
        estimate = predict(peaks, self.problem.kv_len)
        return None if estimate.off > TRUSTED else estimate

    def error(self, *, exact: bool) -> float | None:
        """Relative, the worst of output and gradients; None if not measured.

        ``exact``: to what it computes; else its output's distance to exact softmax.
        """
        errors = []
        for r in self.beside:
            if exact:
                errors += [e.relative for e in (r.error or {}).values()]
            elif r.distance:
                errors.append(r.distance.relative)
        return max((e for e in errors if e is not None), default=None)
