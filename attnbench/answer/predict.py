"""Times and memory on problems that were not measured, from those that were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnbench.answer.regimes import time_of
from impls.loading import load_function

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnbench.core.record import Record
    from impls.problem import Problem
    from impls.spec import Variant

    Array = NDArray[np.float64]

BLOCK = 16
"""Keys: numbers in the widest register, and a divisor of every kernel's block."""
NEAREST = 64
"""At most so many measured problems are used, the nearest first: a model of a neighbourhood."""
FEWEST = 4
"""From fewer nothing is said."""
FOLDS = 5
REACHES = (1.0, 2.0, 4.0)
"""Over how many doublings what the terms leave is alike: what is tried."""
SPREADS = (0.03, 0.1, 0.3)
"""How large that is, as a share."""
NOISES = (0.02, 0.06, 0.18)
"""And how large what is like nothing else: no figure is known better than the least of these."""
INSIDE = 1.645
"""Standard deviations that hold nine of ten."""
AXES = ("queries", "keys", "heads", "grouping", "head_dim", "v_head_dim", "visible share")
"""The axes of :func:`place`, each counted in doublings."""
BEYOND = 1.0
"""Doublings past the ends of what was measured along an axis."""
BEYOND_ONE = 0.6
"""The same along an axis of which one value alone was measured: how it grows is not known."""
APART = 2.5
"""Doublings, over all axes together, from the nearest that was measured."""
EXACT_FORMULA = 0.02
"""A formula of the memory that comes this near to all that was measured is believed."""
TRUSTED = 0.5
"""A figure that is not known to this share, either way, is not known."""
BESIDE = 2
"""An error is no larger than the largest of so many measured problems beside it."""

# ---- a problem in numbers ------------------------------------------------------------------------


class Terms:
    """The terms of a time on one machine."""

    def __init__(self, ceilings: Mapping[str, Any]) -> None:
        """``ceilings``: as a run's header has them; without, a byte costs the same at any size."""
        copies = ceilings.get("copy") or {"1": 1.0}
        known = sorted((int(size), float(rate)) for size, rate in copies.items() if rate)
        self._sizes, self._rates = np.log(known).T

    def moving(self, nbytes: float) -> float:
        """Seconds that moving so much takes, by the measured copies of about that size."""
        return nbytes / float(np.exp(np.interp(np.log(nbytes), self._sizes, self._rates)))

    def of(self, p: Problem) -> list[float]:
        """The terms of one problem, each in its own unit."""
        all_heads, width = p.batch * p.heads, p.head_dim + p.v_head_dim
        rows, keys = all_heads * p.q_len, p.batch * p.kv_heads * p.kv_len
        pairs = rows * p.kv_len
        return [
            1.0,  # a call
            p.q_len + p.kv_len,  # a token
            all_heads,
            self.moving((rows + keys) * width * p.item_bytes),  # the inputs and the output
            max(_visible(p), 1) * width,  # work on visible pairs
            pairs * width,  # work on all pairs
            self.moving(pairs * p.item_bytes),  # a number for each pair
            (rows + keys) * p.head_dim * p.v_head_dim,  # a state for each token
        ]


def kinds(p: Problem) -> tuple[str, ...]:
    """The kinds of its mask; none for one query at the last key, where causal hides nothing."""
    hides_nothing = p.mask.kinds == ("causal",) and p.q_len == 1 and not p.mask.upper_left
    return ("none",) if hides_nothing else p.mask.kinds


@cache
def _visible(problem: Problem) -> int:
    """Pairs that may meet: counting them takes as long as the mask is long."""
    return problem.mask.pairs(problem.shape)


@cache
def place(p: Problem) -> tuple[float, ...]:
    """Where a problem lies among others, in doublings along each axis."""
    heads = p.batch * p.heads
    share = max(_visible(p) / (heads * p.q_len * p.kv_len), 1e-6)
    axes = (p.q_len, p.kv_len, heads, p.group, p.head_dim, p.v_head_dim, share)
    return tuple(math.log2(x) for x in axes)


def _away(problem: Problem, others: Sequence[Problem]) -> Array:
    """How many doublings lie between it and each, over all axes together."""
    apart: Array = np.array([place(p) for p in others]) - np.array(place(problem))
    away: Array = np.sqrt((apart**2).sum(1))
    return away


def outside(problem: Problem, measured: Sequence[Problem]) -> str | None:
    """What is too far from the measured problems; None if nothing is."""
    if not measured:
        return "nothing like it was measured"
    places = np.array([place(p) for p in measured])
    for name, asked, low, high in zip(
        AXES, place(problem), places.min(0), places.max(0), strict=True
    ):
        reach = BEYOND if high > low else BEYOND_ONE
        reach = 0.0 if name == "grouping" else reach  # nothing is smooth along it
        if not low - reach - 1e-9 <= asked <= high + reach + 1e-9:
            form = ".0%" if name == "visible share" else ",.0f"
            ends = dict.fromkeys(f"{2 ** float(x):{form}}" for x in (low, high))
            return f"{name} {2**asked:{form}}, and {' to '.join(ends)} was measured"
    nearest = float(_away(problem, measured).min())
    if nearest > APART:
        return f"the nearest that was measured is {nearest:.1f} doublings away"
    return None


# ---- a figure from its neighbours ----------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A time in seconds, or bytes: a figure and its interval."""

    middle: float
    low: float
    high: float
    measured: bool = False
    """On this very problem; else predicted, and nine of ten such figures lie in their interval."""

    @property
    def off(self) -> float:
        """The share by which it may be off, either way."""
        return math.sqrt(self.high / self.low) - 1 if self.low > 0 else math.inf


class PredictionModel:
    """Predicts a figure of one variant in one phase from the problems nearby."""

    def __init__(self, terms: Terms, problems: Sequence[Problem], figures: Sequence[float]) -> None:
        self._of = terms.of
        self._terms = np.array([terms.of(p) for p in problems], float)
        self._places = np.array([self._beside(p) for p in problems], float)
        self._logs = np.log(np.asarray(figures, float))

    @staticmethod
    def _beside(p: Problem) -> tuple[float, ...]:
        """Its place, and whether its keys fill whole blocks: others cost some percent more."""
        return (*place(p), float(p.kv_len % BLOCK > 0))

    def predict(self, problem: Problem) -> Estimate | None:
        """None where too few problems were measured."""
        here = np.array(self._beside(problem))
        away = ((self._places - here) ** 2).sum(1)
        near = np.argsort(away, kind="stable")[:NEAREST]
        if len(near) < FEWEST:
            return None
        fit = _Fit(self._terms[near], self._places[near], self._logs[near])
        middle, spread = fit.at(np.array(self._of(problem)), here)
        half = INSIDE * spread * fit.widening()
        return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


class _Shape(NamedTuple):
    """The reach and the size of what the terms leave over, and the size of the noise."""

    reach: float
    spread: float
    noise: float


class _Fit:
    """The sum of terms, and what it leaves over as a smooth function of the place."""

    def __init__(
        self, terms: Array, places: Array, logs: Array, shape: _Shape | None = None
    ) -> None:
        self.terms, self.places, self.logs = terms, places, logs
        self.weights = not_negative(terms, np.exp(logs))
        self.left = logs - np.log(terms @ self.weights)
        self.shape = shape or _likeliest(places, self.left)
        s = self.shape
        alike = s.spread**2 * _alike(places, places, s.reach)
        self._inverse = np.linalg.inv(alike + s.noise**2 * np.eye(len(logs)))

    def at(self, terms: Array, place: Array) -> tuple[float, float]:
        """The logarithm of a figure and its standard deviation."""
        s = self.shape
        alike = s.spread**2 * _alike(place[None], self.places, s.reach)[0]
        middle = math.log(terms @ self.weights) + alike @ self._inverse @ self.left
        known = alike @ self._inverse @ alike
        return float(middle), math.sqrt(max(s.spread**2 - known, 0.0) + s.noise**2)

    def widening(self) -> float:
        """The factor that intervals need for nine of ten left-out figures to lie in theirs."""
        count = len(self.logs)
        fold, off = np.arange(count) % min(FOLDS, count), []
        for each in range(min(FOLDS, count)):
            kept = fold != each
            less = _Fit(self.terms[kept], self.places[kept], self.logs[kept], self.shape)
            for i in np.flatnonzero(~kept):
                middle, spread = less.at(self.terms[i], self.places[i])
                off.append(abs(self.logs[i] - middle) / spread)
        return max(1.0, float(np.quantile(off, 0.9)) / INSIDE)


def _alike(ones: Array, others: Array, reach: float) -> Array:
    """How alike what the terms leave is at two places: 1 at the same, less with the distance."""
    away = ((ones[:, None] - others[None]) ** 2).sum(-1)
    alike: Array = np.exp(-away / (2 * reach**2))
    return alike


def _likeliest(places: Array, left: Array) -> _Shape:
    """The shape under which each figure is the least surprising, given all the others."""
    found = []
    for reach in REACHES:
        sizes, ways = np.linalg.eigh(_alike(places, places, reach))
        along = ways.T @ left
        for spread in SPREADS:
            for noise in NOISES:
                scale = 1 / (spread**2 * np.maximum(sizes, 0.0) + noise**2)
                wide = 1 / ((ways**2) @ scale)
                off = (ways @ (scale * along)) * wide
                surprise = float((off**2 / wide + np.log(wide)).sum())
                found.append((surprise, _Shape(reach, spread, noise)))
    return min(found)[1]


def not_negative(terms: Array, figures: Array) -> Array:
    """The weights of the least relative squares, none below nought.

    Some weights are nought and the others solve the normal equations; there are few terms, so all
    choices of these are tried.
    """
    shares = terms / figures[:, None]
    unit = np.sqrt((shares**2).sum(0))
    unit[unit == 0] = 1
    shares = shares / unit
    inner, outer = shares.T @ shares, shares.sum(0)
    chosen = _choices(terms.shape[1])
    both = chosen[:, :, None] & chosen[:, None, :]
    eye = np.eye(terms.shape[1])
    equations = np.where(both, inner, 0.0) + eye * (1e-7 + ~chosen[:, None, :])
    found = np.linalg.solve(equations, np.where(chosen, outer, 0.0)[..., None])[..., 0]
    found = np.where(chosen, found, 0.0)
    rest = np.einsum("si,ij,sj->s", found, inner, found) - 2 * found @ outer
    rest = np.where((found >= 0).all(1) & (found > 0).any(1), rest + 1e-4 * chosen.sum(1), np.inf)
    weights: Array = found[rest.argmin()] / unit
    return weights


@cache
def _choices(count: int) -> NDArray[np.bool_]:
    """All sets of some of so many, none left out but the empty one."""
    return np.arange(1, 1 << count)[:, None] >> np.arange(count) & 1 == 1


# ---- what is known of a variant ------------------------------------------------------------------


class VariantRecords:
    """One variant's records, of problems with the same phase, dtype and kind of mask."""

    def __init__(
        self, row: Variant | None, seen: Sequence[Record], ceilings: Mapping[str, Any]
    ) -> None:
        """``row``: None where the table has none of that name."""
        self.row, self.seen, self._ceilings = row, seen, ceilings
        self._timed = [s for s in seen if time_of(s)]

    def nearest(self, problem: Problem, count: int = 1) -> list[Record]:
        """The measured records next to a problem."""
        if not self._timed:
            return []
        away = _away(problem, [s.problem for s in self._timed])
        return [self._timed[i] for i in np.argsort(away, kind="stable")[:count]]

    def on(self, problem: Problem) -> Record | None:
        """Its record of this very problem, if that has a time."""
        return next((s for s in self._timed if s.problem == problem), None)

    def time(self, problem: Problem) -> Estimate | str:
        """Seconds a call, or a sentence that says why they can't be known."""
        if (own := self.on(problem)) is not None and own.time is not None:
            t = own.time
            return Estimate(t.median_s, t.low_s, t.high_s, measured=True)
        problems = [s.problem for s in self._timed]
        if (why := outside(problem, problems)) is not None:
            return why
        times = [s.time.median_s for s in self._timed if s.time]
        found = PredictionModel(Terms(self._ceilings), problems, times).predict(problem)
        return found or f"only {len(times)} problems near it were measured"

    def memory(self, problem: Problem) -> Estimate | None:
        """Bytes above the inputs: measured, by the row's own formula where that held on every
        measured problem, or predicted; None if unknown.
        """
        if (own := self.on(problem)) is not None and own.memory and not own.memory.flags:
            peak = own.memory.peak_bytes
            return Estimate(peak, peak, peak, measured=True)
        sound = [(s.problem, m) for s in self._timed if (m := s.memory) and not m.flags]
        sound = [(p, m) for p, m in sound if m.peak_bytes > 0]
        off = [m.peak_bytes / m.expected_bytes for _, m in sound if m.expected_bytes]
        if self.row and self.row.cost and off and max(abs(x - 1) for x in off) <= EXACT_FORMULA:
            peak = load_function(self.row.cost)(problem, **self.row.chosen).peak_bytes
            if peak is not None:
                return Estimate(peak, peak * min(off), peak * max(off))
        problems = [p for p, _ in sound]
        if outside(problem, problems) is not None:
            return None
        model = PredictionModel(Terms({}), problems, [m.peak_bytes for _, m in sound])
        found = model.predict(problem)
        return None if found is None or found.off > TRUSTED else found

    def error(self, problem: Problem) -> float | None:
        """To exact softmax, relative, the worst of output and gradients; None if not measured."""
        own, found = self.on(problem), []
        for s in [own] if own else self.nearest(problem, BESIDE):
            if s.computes == "softmax":
                found += [e.relative for e in (s.error or {}).values()]
            elif s.distance:
                found.append(s.distance.relative)
        return max((e for e in found if e is not None), default=None)
