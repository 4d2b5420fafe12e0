"""Times and memory on problems that were not measured, from those that were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnbench.answer.regimes import time_of
from attnbench.core.stats import Interval, student_quantile
from impls.loading import load_function

if TYPE_CHECKING:
    from attnbench.core.record import Record
    from impls.problem import Problem
    from impls.spec import Variant

BLOCK = 16
"""Keys: numbers in the widest register, and a divisor of every kernel's block."""
NEAREST = 64
"""At most so many measured problems are used, the nearest first."""
FEWEST = 4
"""From fewer nothing is said."""
REACH = 2.0
"""Over how many doublings what the terms leave is alike."""
NOISES = (0.3, 1.0)
"""How large noise may be beside that: what is tried."""
RIDGE, A_TERM = 1e-7, 1e-4
"""Added to normal equations, so that they can be solved; and to the loss, for each term used."""
LEAST_OFF = 0.02
"""No prediction is believed to be nearer than that, one standard deviation."""
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


# ---- a problem in numbers ------------------------------------------------------------------------


def mask_kinds(p: Problem) -> tuple[str, ...]:
    """The kinds of its mask; none for one query at the last key, where causal hides nothing."""
    hides_nothing = p.mask.kinds == ("causal",) and p.q_len == 1 and not p.mask.upper_left
    return ("none",) if hides_nothing else p.mask.kinds


@cache
def _visible(problem: Problem) -> int:
    """Pairs that may meet: counting them takes as long as the mask is long."""
    return max(problem.mask.pairs(problem.shape), 1)


def terms(p: Problem) -> list[float]:
    """What a call is made of, each in a unit of its own."""
    heads, width = p.batch * p.heads, p.head_dim + p.v_head_dim
    rows, keys, pairs = heads * p.q_len, p.batch * p.kv_heads * p.kv_len, heads * p.q_len * p.kv_len
    return [
        1.0,  # a call
        heads,
        (rows + keys) * width,  # the inputs and the output
        (rows + keys) * p.head_dim * p.v_head_dim,  # a state for each token
        _visible(p),  # what a mask leaves
        _visible(p) * width,
        pairs,
        pairs * width,
    ]


@cache
def place(p: Problem) -> tuple[float, ...]:
    """Where a problem lies among others, in doublings along each axis."""
    heads = p.batch * p.heads
    share = _visible(p) / (heads * p.q_len * p.kv_len)
    axes = (p.q_len, p.kv_len, heads, p.group, p.head_dim, p.v_head_dim, share)
    return tuple(math.log2(x) for x in axes)


def squared_distances(ones: Sequence[Problem], others: Sequence[Problem]) -> np.ndarray:
    """The square of each distance between two problems, in doublings over all axes together.

    Keys that fill no whole block are one doubling away from those that do: they cost more.
    """
    here, there = (
        np.array([(*place(p), p.kv_len % BLOCK > 0) for p in some], float)
        for some in (ones, others)
    )
    squares: np.ndarray = ((here[:, None] - there) ** 2).sum(-1)
    return squares


def outside(problem: Problem, measured: Sequence[Problem]) -> str | None:
    """Why nothing that was measured says anything of a problem; None if something does."""
    if not measured:
        return "nothing like it was measured"
    places = np.array([place(p) for p in measured])
    here, low, high = np.array(place(problem)), places.min(0), places.max(0)
    reach = np.where(high > low, BEYOND, BEYOND_ONE) + 1e-9
    reach[AXES.index("grouping")] = 1e-9  # nothing is smooth along it
    for i in np.flatnonzero((here < low - reach) | (here > high + reach)):
        form = ".0%" if AXES[i] == "visible share" else ",.0f"
        ends = dict.fromkeys(f"{2 ** float(x):{form}}" for x in (low[i], high[i]))
        return f"{AXES[i]} {2 ** here[i]:{form}}, and {' to '.join(ends)} was measured"
    nearest = math.sqrt(((places - here) ** 2).sum(1).min())
    if nearest > APART:
        return f"the nearest that was measured is {nearest:.1f} doublings away"
    if len(measured) < FEWEST:
        return f"only {len(measured)} problems near it were measured"
    return None


# ---- a figure from its neighbours ----------------------------------------------------------------
#
# figure(p) = (w · terms(p)) exp g(p). The sum is what the work costs, with weights that are not
# negative; g is what it leaves over. g is a Gaussian process with mean 0 and covariance
# s² (C + r² I), where C(p, q) = exp(-d²(p, q) / 2 REACH²) is how alike two problems are, and r is
# one of NOISES. With K = C + r² I among the measured problems, y what is left over there, and c
# how alike they are to the asked one,
#
#     g = cᵀ K⁻¹ y,    variance s² (1 + r² - cᵀ K⁻¹ c).
#
# Each measured problem given all others is off by (K⁻¹ y)ᵢ / (K⁻¹)ᵢᵢ, with the variance
# s² / (K⁻¹)ᵢᵢ. So s² is the mean of (K⁻¹ y)ᵢ² / (K⁻¹)ᵢᵢ, and of NOISES the one is taken that makes
# these errors least surprising.


class Smoothed(NamedTuple):
    """What the sum leaves over at the asked problem, by one size of noise."""

    surprise: float
    """How improbable the measured problems are, each given the others: -2 log, but a constant."""
    mean: float
    variance: float


def predict(problems: Sequence[Problem], figures: Sequence[float], target: Problem) -> Estimate:
    """The figure of a problem from those of measured ones, by the law above."""
    nearest = np.argsort(squared_distances([target], problems)[0], kind="stable")[:NEAREST]
    some, values = [problems[i] for i in nearest], np.array([figures[i] for i in nearest])
    amounts = np.array([terms(p) for p in some])
    weights = fit_weights(amounts, values)
    leftover = np.log(values / (amounts @ weights))
    free = max(1, len(some) - int(np.count_nonzero(weights)))
    among, to_asked = (
        np.exp(squared_distances(ones, some) / (-2 * REACH**2)) for ones in (some, [target])
    )
    best = min(_smooth(leftover, among, to_asked[0], noise, free) for noise in NOISES)
    middle = math.log(terms(target) @ weights) + best.mean
    half = student_quantile(0.95, free) * max(LEAST_OFF, math.sqrt(best.variance))
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _smooth(
    leftover: np.ndarray, among: np.ndarray, to_asked: np.ndarray, noise: float, free: int
) -> Smoothed:
    """g at the asked problem; C and c of the derivation are ``among`` and ``to_asked``."""
    inverse = np.linalg.inv(among + noise**2 * np.eye(len(leftover)))
    one_out = 1 / inverse.diagonal()  # the variance of each given the others, in units of s²
    scale = ((inverse @ leftover) ** 2 * one_out).sum() / free + 1e-12  # s²
    surprise = len(leftover) * math.log(scale) + np.log(one_out).sum()
    shares = to_asked @ inverse
    variance = scale * (1 + noise**2 - shares @ to_asked)
    return Smoothed(surprise, shares @ leftover, variance)


def fit_weights(amounts: np.ndarray, figures: np.ndarray) -> np.ndarray:
    """The weights w >= 0 of the least sum of (amounts @ w / figures - 1)².

    Where some of them are zero the others solve the normal equations. There are few terms, so
    each subset of them is tried; of two that fit as well the smaller is taken.
    """
    relative = amounts / figures[:, None]
    lengths = np.sqrt((relative**2).sum(0))
    relative = relative / lengths  # columns of length one
    gram, right, count = relative.T @ relative, relative.sum(0), len(lengths)
    subsets = np.arange(1, 1 << count)[:, None] >> np.arange(count) & 1 == 1
    solved = _solve_each(subsets, gram, right)
    losses = np.einsum("si,ij,sj->s", solved, gram, solved) - 2 * solved @ right
    allowed = (solved >= 0).all(1)
    best = np.where(allowed, losses + A_TERM * subsets.sum(1), np.inf).argmin()
    weights: np.ndarray = solved[best] / lengths
    return weights


def _solve_each(subsets: np.ndarray, gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of each subset of terms the solution of its normal equations, 0 for all other terms."""
    both = subsets[:, :, None] & subsets[:, None, :]
    diagonal = np.eye(len(right)) * (RIDGE + ~subsets[:, None, :])  # 1 where a term is left out
    equations = np.where(both, gram, 0.0) + diagonal
    solved: np.ndarray = np.linalg.solve(equations, np.where(subsets, right, 0.0)[..., None])
    return solved[..., 0]


# ---- what is known of a variant ------------------------------------------------------------------


class VariantRecords:
    """What one variant's records say of a problem; all have its phase, dtype and kind of mask."""

    def __init__(self, row: Variant | None, seen: Sequence[Record], problem: Problem) -> None:
        """``row``: None where the table has none of that name."""
        self.row, self.seen, self.problem = row, seen, problem
        self._timed = [s for s in seen if time_of(s)]
        self.own = next((s for s in self._timed if s.problem == problem), None)
        """The record of this very problem, if that has a time."""

    @property
    def beside(self) -> list[Record]:
        """The record of the problem, or those of the nearest, the nearest first."""
        if self.own is not None or not self._timed:
            return [self.own] if self.own else []
        away = squared_distances([self.problem], [s.problem for s in self._timed])[0]
        return [self._timed[i] for i in np.argsort(away, kind="stable")[:BESIDE]]

    def time(self) -> Estimate | str:
        """Seconds a call, or a sentence that says why they can't be known."""
        if self.own is not None and (t := self.own.time):
            return Estimate(t.median_s, t.low_s, t.high_s, measured=True)
        problems = [s.problem for s in self._timed]
        if (why := outside(self.problem, problems)) is not None:
            return why
        return predict(problems, [s.time.median_s for s in self._timed if s.time], self.problem)

    def memory(self) -> Estimate | None:
        """Bytes above the inputs: measured, by the row's own formula where that held on every
        measured problem, or predicted; None if unknown.
        """
        if self.own and (m := self.own.memory) and not m.flags:
            return Estimate(m.peak_bytes, m.peak_bytes, m.peak_bytes)
        sound = [(s.problem, m) for s in self._timed if (m := s.memory) and not m.flags]
        sound = [(p, m) for p, m in sound if m.peak_bytes > 0]
        off = [m.peak_bytes / m.expected_bytes for _, m in sound if m.expected_bytes]
        if self.row and self.row.cost and off and max(abs(x - 1) for x in off) <= EXACT_FORMULA:
            peak = load_function(self.row.cost)(self.problem, **self.row.chosen).peak_bytes
            if peak is not None:
                return Estimate(peak, peak * min(off), peak * max(off))
        problems = [p for p, _ in sound]
        if outside(self.problem, problems) is not None:
            return None
        estimate = predict(problems, [m.peak_bytes for _, m in sound], self.problem)
        return None if estimate.off > TRUSTED else estimate

    def error(self) -> float | None:
        """To exact softmax, relative, the worst of output and gradients; None if not measured."""
        errors = []
        for s in self.beside:
            if s.computes == "softmax":
                errors += [e.relative for e in (s.error or {}).values()]
            elif s.distance:
                errors.append(s.distance.relative)
        return max((e for e in errors if e is not None), default=None)
