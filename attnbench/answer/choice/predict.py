"""What a variant would take on a problem that was not measured, and how far that can be trusted.

A sum of terms (:mod:`attnbench.answer.choice.features`), none of them negative, is fitted to what
was measured, so that the model knows how attention grows; what it leaves is smoothed over the
neighbourhood, since caches and blockings bend every line. How wide the interval must be is found by
leaving out what was measured, a fifth at a time, and looking how far off the rest would have been.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from attnbench.answer.choice import features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from impls.problem import Problem

    Array = NDArray[np.float64]

NEAREST = 64
"""So many measured problems are looked at, the nearest first: a model of a neighbourhood."""
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
class Prediction:
    """A figure that was not measured, with an interval that nine of ten such figures lie in."""

    middle: float
    low: float
    high: float
    seen: int
    """From how many measured problems."""

    @property
    def spread(self) -> float:
        """Half of the interval, as a factor less one."""
        return math.sqrt(self.high / self.low) - 1


class Model:
    """Of one variant in one phase: figures of problems near one that is asked about."""

    def __init__(self, terms: features.Terms, problems: Sequence[Problem],
                 figures: Sequence[float]) -> None:  # fmt: skip
        self._of = terms.of
        self._terms = terms.matrix(problems)
        self._places = np.array([features.beside(p) for p in problems], float)
        self._logs = np.log(np.asarray(figures, float))

    def predict(self, problem: Problem) -> Prediction | None:
        """None where too little was measured."""
        place = np.array(features.beside(problem))
        away = ((self._places - place) ** 2).sum(1)
        near = np.argsort(away, kind="stable")[:NEAREST]
        if len(near) < FEWEST:
            return None
        fit = _Fit(self._terms[near], self._places[near], self._logs[near])
        middle, spread = fit.at(np.array(self._of(problem)), place)
        half = INSIDE * spread * fit.honest()
        return Prediction(
            math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(near)
        )


@dataclass(frozen=True)
class _Shape:
    """Over how far what the terms leave is alike, how large it is, and how large the noise."""

    reach: float
    spread: float
    noise: float


class _Fit:
    """The sum of terms, and what it leaves as a smooth function of the place."""

    def __init__(self, terms: Array, places: Array, logs: Array,
                 shape: _Shape | None = None) -> None:  # fmt: skip
        self.terms, self.places, self.logs = terms, places, logs
        self.weights = not_negative(terms, np.exp(logs))
        self.left = logs - np.log(terms @ self.weights)
        self.shape = shape or _likeliest(places, self.left)
        s = self.shape
        alike = s.spread**2 * _alike(places, places, s.reach)
        self._inverse = np.linalg.inv(alike + s.noise**2 * np.eye(len(logs)))

    def at(self, terms: Array, place: Array) -> tuple[float, float]:
        """The logarithm of a figure that would be measured, and its standard deviation."""
        s = self.shape
        alike = s.spread**2 * _alike(place[None], self.places, s.reach)[0]
        middle = math.log(terms @ self.weights) + alike @ self._inverse @ self.left
        known = alike @ self._inverse @ alike
        return float(middle), math.sqrt(max(s.spread**2 - known, 0.0) + s.noise**2)

    def honest(self) -> float:
        """What intervals must be multiplied by, so that nine of ten left out lie in theirs."""
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
    """The shape under which each figure is least of a surprise, given all the others."""
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
