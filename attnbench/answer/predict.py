"""Times and memory on problems that were not measured, from those that were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.answer.regimes import time_of
from impls.loading import load_function

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnbench.core.record import Record
    from impls.problem import Problem
    from impls.spec import Variant


TERMS = (
    "a call", "a token", "a head", "moving the ends", "work on visible pairs", "work on all pairs",
    "moving a number for each pair", "a state for each token",
)  # fmt: skip
"""The terms of a time, in the order of :meth:`Terms.of`."""
AXES = ("queries", "keys", "heads", "grouping", "head_dim", "v_head_dim", "visible share")
"""The axes of :func:`place`, each counted in doublings."""
LEAST_SHARE = 1e-6
BLOCK = 16
"""Keys: numbers in the widest register, and a divisor of every kernel's block."""


class Terms:
    """The terms of problems on one machine."""

    def __init__(self, ceilings: Mapping[str, Any]) -> None:
        """``ceilings``: as a run's header has them; without, a byte costs the same at any size."""
        copies = ceilings.get("copy") or {"1": 1.0}
        sizes = sorted((int(size), float(rate)) for size, rate in copies.items() if rate)
        self._sizes = np.log([size for size, _ in sizes])
        self._rates = np.log([rate for _, rate in sizes])

    def moving(self, nbytes: float) -> float:
        """Seconds that moving so much takes, by the measured copies of about that size."""
        return nbytes / float(np.exp(np.interp(np.log(nbytes), self._sizes, self._rates)))

    def of(self, problem: Problem) -> list[float]:
        """The terms of one problem, each in its own unit."""
        p = problem
        all_heads = p.batch * p.heads
        visible, pairs = _visible(p), all_heads * p.q_len * p.kv_len
        rows, keys = all_heads * p.q_len, p.batch * p.kv_heads * p.kv_len
        width = p.head_dim + p.v_head_dim
        return [
            1.0,
            p.q_len + p.kv_len,
            all_heads,
            self.moving((rows + keys) * width * p.item_bytes),
            max(visible, 1) * width,
            pairs * width,
            self.moving(pairs * p.item_bytes),
            (rows + keys) * p.head_dim * p.v_head_dim,
        ]

    def matrix(self, problems: Sequence[Problem]) -> NDArray[np.float64]:
        """The terms of some problems, a row each."""
        return np.array([self.of(problem) for problem in problems], float)


def kinds(problem: Problem) -> tuple[str, ...]:
    """The kinds of its mask; none for one query at the last key, where causal hides nothing."""
    p = problem
    if p.mask.kinds == ("causal",) and p.q_len == 1 and not p.mask.upper_left:
        return ("none",)
    return p.mask.kinds


@cache
def _visible(problem: Problem) -> int:
    """Pairs that may meet: counting them takes as long as the mask is long."""
    return problem.mask.pairs(problem.shape)


@cache
def place(problem: Problem) -> tuple[float, ...]:
    """Where a problem lies among others, in doublings along each axis."""
    p = problem
    share = _visible(p) / (p.batch * p.heads * p.q_len * p.kv_len)
    axes = (
        p.q_len,
        p.kv_len,
        p.batch * p.heads,
        p.group,
        p.head_dim,
        p.v_head_dim,
        max(share, LEAST_SHARE),
    )
    return tuple(math.log2(x) for x in axes)


def coordinates(problems: Sequence[Problem]) -> NDArray[np.float64]:
    """The places of some problems, a row each."""
    return np.array([place(problem) for problem in problems], float)


def beside(problem: Problem) -> tuple[float, ...]:
    """Its place, and whether its keys fill whole blocks: others cost some percent more."""
    return (*place(problem), float(problem.kv_len % BLOCK > 0))


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from impls.problem import Problem

    Array = NDArray[np.float64]

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
        self._terms = terms.matrix(problems)
        self._places = np.array([beside(p) for p in problems], float)
        self._logs = np.log(np.asarray(figures, float))

    def predict(self, problem: Problem) -> Estimate | None:
        """None where too few problems were measured."""
        place = np.array(beside(problem))
        away = ((self._places - place) ** 2).sum(1)
        near = np.argsort(away, kind="stable")[:NEAREST]
        if len(near) < FEWEST:
            return None
        fit = _Fit(self._terms[near], self._places[near], self._logs[near])
        middle, spread = fit.at(np.array(self._of(problem)), place)
        half = INSIDE * spread * fit.widening()
        return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


@dataclass(frozen=True)
class _Shape:
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
    return min(found, key=lambda each: each[0])[1]


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


BEYOND = 1.0
"""Doublings past the ends of what was measured along an axis."""
BEYOND_ONE = 0.6
"""The same along an axis of which one value alone was measured: how it grows is not known."""
FIXED = ("grouping",)
"""Axes along which nothing is smooth: one must have been measured as it is asked."""
APART = 2.5
"""Doublings, over all axes together, from the nearest that was measured."""


def outside(problem: Problem, measured: Sequence[Problem]) -> str | None:
    """What is too far from the measured problems; None if nothing is."""
    if not measured:
        return "nothing like it was measured"
    asked, places = np.array(place(problem)), coordinates(measured)
    low, high = places.min(0), places.max(0)
    for axis, name in enumerate(AXES):
        reach = BEYOND if high[axis] > low[axis] else BEYOND_ONE
        reach = 0.0 if name in FIXED else reach
        if low[axis] - reach - 1e-9 <= asked[axis] <= high[axis] + reach + 1e-9:
            continue
        ends = [_text(name, 2 ** float(x)) for x in (low[axis], high[axis])]
        span = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
        return f"{name} {_text(name, 2 ** float(asked[axis]))}, and {span} was measured"
    nearest = float(np.sqrt(((places - asked) ** 2).sum(1)).min())
    if nearest > APART:
        return f"the nearest that was measured is {nearest:.1f} doublings away"
    return None


def _text(axis: str, value: float) -> str:
    return f"{value:.0%}" if axis == "visible share" else f"{value:,.0f}"


EXACT_FORMULA = 0.02
"""A formula of the memory that comes this near to all that was measured is believed."""
TRUSTED = 0.5
"""A figure that is not known to this share, either way, is not known."""
BESIDE = 2
"""An error is no larger than the largest of so many measured problems beside it."""


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
        places = coordinates([s.problem for s in self._timed])
        away = ((places - np.array(place(problem))) ** 2).sum(1)
        return [self._timed[i] for i in np.argsort(away, kind="stable")[:count]]

    def on(self, problem: Problem) -> Record | None:
        """Its record of this very problem, if that has a time."""
        return next((s for s in self._timed if s.problem == problem), None)

    def time(self, problem: Problem) -> Estimate | str:
        """Seconds a call, or a sentence that says why they can't be known."""
        if (own := self.on(problem)) is not None and own.time is not None:
            t = own.time
            return Estimate(t.median_s, t.low_s, t.high_s, measured=True)
        if (why := outside(problem, [s.problem for s in self._timed])) is not None:
            return why
        times = [s.time.median_s for s in self._timed if s.time]
        model = PredictionModel(Terms(self._ceilings), [s.problem for s in self._timed], times)
        found = model.predict(problem)
        return f"only {len(times)} problems near it were measured" if found is None else found

    def memory(self, problem: Problem) -> Estimate | None:
        """Bytes above the inputs; None if unknown."""
        if (own := self.on(problem)) is not None and own.memory and not own.memory.flags:
            peak = own.memory.peak_bytes
            return Estimate(peak, peak, peak, measured=True)
        if (by_formula := self._formula(problem)) is not None:
            return by_formula
        with_memory = [s for s in self._timed if _sound_memory(s)]
        if outside(problem, [s.problem for s in with_memory]) is not None:
            return None
        peaks = [s.memory.peak_bytes for s in with_memory if s.memory]
        model = PredictionModel(Terms({}), [s.problem for s in with_memory], peaks)
        found = model.predict(problem)
        return None if found is None or found.off > TRUSTED else found

    def error(self, problem: Problem) -> float | None:
        """To exact softmax, relative, the worst of output and gradients; None if not measured."""
        own = self.on(problem)
        beside = [own] if own else self.nearest(problem, BESIDE)
        found = [e for s in beside for e in _errors(s)]
        return max(found, default=None)

    def _formula(self, problem: Problem) -> Estimate | None:
        """By the row's own formula, where that held on every measured problem."""
        off = [
            s.memory.peak_bytes / s.memory.expected_bytes
            for s in self._timed
            if s.memory and _sound_memory(s) and s.memory.expected_bytes
        ]
        if self.row is None or self.row.cost is None or not off:
            return None
        if max(abs(x - 1) for x in off) > EXACT_FORMULA:
            return None
        peak = load_function(self.row.cost)(problem, **self.row.chosen).peak_bytes
        return None if peak is None else Estimate(peak, peak * min(off), peak * max(off), False)


def _sound_memory(seen: Record) -> bool:
    """Whether its peak is one: nothing amiss with it, and more than nothing."""
    return seen.memory is not None and seen.memory.peak_bytes > 0 and not seen.memory.flags


def _errors(seen: Record) -> list[float]:
    if seen.computes != "softmax":
        far = seen.distance.relative if seen.distance else None
        return [] if far is None else [far]
    return [e.relative for e in (seen.error or {}).values() if e.relative is not None]
