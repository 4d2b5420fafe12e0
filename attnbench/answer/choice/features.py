"""What the time and the memory of attention are made of, as numbers of a problem.

Whatever the variant, its time is a fixed part, and parts that grow with the tokens, the heads, the
visible pairs, all pairs. Which of these a variant has is found from its records; that none of them
is negative keeps a model sound between and beyond what was measured. What is moved is counted in
the seconds that copies of its size took on the machine, since a cache ends somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from impls.problem import Problem

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
        p.q_len, p.kv_len, p.batch * p.heads, p.group, p.head_dim, p.v_head_dim,
        max(share, LEAST_SHARE),
    )  # fmt: skip
    return tuple(math.log2(x) for x in axes)


def places(problems: Sequence[Problem]) -> NDArray[np.float64]:
    """The places of some problems, a row each."""
    return np.array([place(problem) for problem in problems], float)


def beside(problem: Problem) -> tuple[float, ...]:
    """What problems have in common whose times are off alike: their place, and full blocks.

    Keys that fill no block cost some percent more, however many there are.
    """
    return (*place(problem), float(problem.kv_len % BLOCK > 0))
