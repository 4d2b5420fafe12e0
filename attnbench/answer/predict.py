"""What a variant takes at a length that was not measured: by the curve of its own other lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING

import numpy as np

from attnbench.answer.regimes import time_of
from attnbench.core.stats import student_quantile
from impls.loading import load_function

if TYPE_CHECKING:
    from attnbench.core.record import Record
    from impls.problem import Problem
    from impls.spec import Variant

SHAPE = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim")
"""What is alike along a curve, with the mask and how many queries there are to a key."""
FEWEST = 3
"""A curve through fewer lengths says nothing of how far off it is."""
BEYOND = 2.0
"""So many times past its ends a curve is followed."""
LEAST_OFF = 0.02
"""No prediction is believed to be nearer than that, one standard deviation."""
TRUSTED = 0.8
"""A figure that is not known to this share, either way, is not known."""
EXACT_FORMULA = 0.02
"""A formula of the memory that comes this near to all that was measured is believed."""
BESIDE = 2
"""An error is no larger than the largest of so many measured lengths beside it."""


@dataclass(frozen=True)
class Estimate:
    """Seconds or bytes: a figure and the interval that nine of ten such figures lie in; of this
    very problem if it was ``measured``.
    """

    middle: float
    low: float
    high: float
    measured: bool = False

    @property
    def off(self) -> float:
        """The share by which it may be off, either way."""
        return math.sqrt(self.high / self.low) - 1 if self.low > 0 else math.inf


def kinds(p: Problem) -> tuple[str, ...]:
    """The kinds of its mask; none for one query at the last key, where causal hides nothing."""
    hides_nothing = p.mask.kinds == ("causal",) and p.q_len == 1 and not p.mask.upper_left
    return ("none",) if hides_nothing else p.mask.kinds


def powers(lengths: np.ndarray, figures: np.ndarray) -> np.ndarray:
    """The weights of 1, n and n² whose sum has the least relative squares; none is below nought.

    Some are nought and the others solve the normal equations, so all choices of these are tried.
    """
    terms = np.power.outer(lengths, [0.0, 1.0, 2.0])
    size = terms.max(0)
    shares = terms / size / figures[:, None]
    best, least = np.zeros(3), math.inf
    for some in map(list, chain.from_iterable(combinations(range(3), n) for n in (1, 2, 3))):
        found = np.linalg.lstsq(shares[:, some], np.ones(len(figures)), rcond=None)[0]
        rest = float(((shares[:, some] @ found - 1) ** 2).sum())
        if (found >= 0).all() and rest < least:
            best, least = np.zeros(3), rest
            best[some] = found
    return best / size


def curve(lengths: Sequence[int], figures: Sequence[float], at: int) -> Estimate:
    """A sum of powers, times what it leaves over, straight on logarithms between the lengths.

    How far off it is, is told by the lengths themselves, each predicted from the others; of a
    figure past the ends, by the ends too.
    """
    n, logs = np.asarray(lengths, float), np.log(np.asarray(figures, float))

    def predicted(kept: np.ndarray, length: float) -> float:
        weights = powers(n[kept], np.exp(logs[kept]))
        sums = np.log(np.power.outer(n[kept], [0, 1, 2]) @ weights)
        left = np.interp(math.log(length), np.log(n[kept]), logs[kept] - sums)
        return math.log(weights @ [1.0, length, length**2]) + float(left)

    every = np.arange(len(n))
    tested = every[1:-1] if lengths[0] <= at <= lengths[-1] else every
    off = np.array([predicted(every[every != i], n[i]) - logs[i] for i in tested])
    spread = max(LEAST_OFF, math.sqrt((off**2).mean()))
    half = student_quantile(0.95, len(tested)) * spread
    middle = predicted(every, at)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


class VariantRecords:
    """What one variant's records say of a problem; all have its phase, dtype and kind of mask."""

    def __init__(self, row: Variant | None, seen: Sequence[Record], problem: Problem) -> None:
        """``row``: None where the table has none of that name."""
        self.row, self.seen, self.problem = row, seen, problem
        self._timed = [s for s in seen if time_of(s)]
        self.line = sorted(filter(self._alike, self._timed), key=lambda s: s.problem.kv_len)
        """Those alike in all but their length."""
        self.own = next((s for s in self.line if s.problem == problem), None)
        """The record of this very problem, if that has a time."""

    def _alike(self, record: Record) -> bool:
        """Whether a record's problem is the same but for its length."""
        p, q = record.problem, self.problem
        as_many = q.q_len == q.kv_len and q.phase != "decode"
        queries = p.q_len == (p.kv_len if as_many else q.q_len)
        mask = str(p.mask) == str(q.mask) or kinds(p) == kinds(q) == ("none",)
        return queries and mask and all(getattr(p, x) == getattr(q, x) for x in SHAPE)

    @property
    def beside(self) -> list[Record]:
        """The record of the problem, or those of the nearest lengths, the nearest first."""
        if self.own is not None:
            return [self.own]
        at = math.log(self.problem.kv_len)
        return sorted(self.line, key=lambda s: abs(math.log(s.problem.kv_len) - at))[:BESIDE]

    def outside(self) -> str | None:
        """Why no curve says anything of the problem; None if one does."""
        if not self._timed:
            return "nothing like it was measured"
        asked = self.problem
        if not self.line:
            for name in (*SHAPE, "mask", "q_len"):
                has = dict.fromkeys(getattr(s.problem, name) for s in self._timed)
                if (one := getattr(asked, name)) not in has:
                    return f"{name} {one}, and {', '.join(map(str, has))} was measured"
            return "nothing like it was measured"
        low, high = (self.line[i].problem.kv_len for i in (0, -1))
        if not low / BEYOND <= asked.kv_len <= high * BEYOND:
            ends = " to ".join(dict.fromkeys(f"{n:,}" for n in (low, high)))
            what = "queries" if asked.q_len == asked.kv_len else "keys"
            return f"{what} {asked.kv_len:,}, and {ends} was measured"
        count = len({s.problem.kv_len for s in self.line})
        return f"only {count} of its lengths were measured" if count < FEWEST else None

    def time(self) -> Estimate | str:
        """Seconds a call, or a sentence that says why they can't be known."""
        if self.own is not None and (t := self.own.time):
            return Estimate(t.median_s, t.low_s, t.high_s, measured=True)
        if (why := self.outside()) is not None:
            return why
        times = {s.problem.kv_len: s.time.median_s for s in self.line if s.time}
        return curve([*times], [*times.values()], self.problem.kv_len)

    def memory(self) -> Estimate | None:
        """Bytes above the inputs: measured, by the row's own formula where that held at every
        measured length, or by the curve; None if unknown.
        """
        if self.own and (m := self.own.memory) and not m.flags:
            return Estimate(m.peak_bytes, m.peak_bytes, m.peak_bytes, measured=True)
        sound = {
            s.problem.kv_len: m
            for s in self.line
            if (m := s.memory) and not m.flags and m.peak_bytes > 0
        }
        off = [m.peak_bytes / m.expected_bytes for m in sound.values() if m.expected_bytes]
        if self.row and self.row.cost and off and max(abs(x - 1) for x in off) <= EXACT_FORMULA:
            peak = load_function(self.row.cost)(self.problem, **self.row.chosen).peak_bytes
            if peak is not None:
                return Estimate(peak, peak * min(off), peak * max(off))
        if self.outside() is not None or len(sound) < FEWEST:
            return None
        found = curve([*sound], [m.peak_bytes for m in sound.values()], self.problem.kv_len)
        return None if found.off > TRUSTED else found

    def error(self) -> float | None:
        """To exact softmax, relative, the worst of output and gradients; None if not measured."""
        found = []
        for s in self.beside:
            if s.computes == "softmax":
                found += [e.relative for e in (s.error or {}).values()]
            elif s.distance:
                found.append(s.distance.relative)
        return max((e for e in found if e is not None), default=None)
