"""Hedgehog: softmaxes over the channels as features (Zhang and others, arXiv:2402.04347).

    phi(x) = [softmax(W x), softmax(-W x)]        2 d features, each softmax over the d channels
    out_n  = phi(q_n) . sum phi(k_m) v_m^T  /  phi(q_n) . sum phi(k_m)     over the visible m

The paper's stable form: it needs no maximum over keys, and no product overflows. W is learned there
so that the weights mimic those of softmax attention, beginning at the identity, in maps of their
own for queries and keys. Nothing is learned here: ``init=identity`` is that beginning, and
``init=random`` draws W for each head from a fixed seed, entries of variance 1/d, which shows what
the product costs. Distances from softmax are those of an untrained map. Positive weights that add
up to one. Masks: none, causal (in chunks).

Cost: 4 d e FLOPs a key and a query of each head, 2 d d more for W where it isn't the identity.
"""

import torch
from torch import Tensor

from impls.heads import Attend, Define, to_query_heads, wide, widened
from impls.linear.common import FeatureMap, Linear
from impls.linear.defined import plain
from impls.problem import Problem
from impls.spec import Unsupported


def maps(problem: Problem, init: str, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """W of the queries [h, d, d] and of the keys [c, d, d], as right factors; None: identity."""
    if init != "random":
        return None
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int) -> Tensor:
        shape = (heads, problem.head_dim, problem.head_dim)
        w = torch.randn(shape, generator=generator, dtype=torch.float64) * problem.head_dim**-0.5
        return w.to(getattr(torch, problem.dtype)).to(problem.device, dtype)

    return draw(problem.heads), draw(problem.kv_heads)


class Softmaxes(FeatureMap):
    """Both softmaxes at once, laid end to end."""

    def __init__(self, problem: Problem, init: str) -> None:
        super().__init__(problem)
        self.width = 2 * problem.head_dim
        self.maps = maps(problem, init, wide(problem))

    def queries(self, q_bhnd: Tensor, start: int) -> Tensor:
        """Base features of queries."""
        return self._features(q_bhnd if self.maps is None else q_bhnd @ self.maps[0])

    def keys(self, k_bcmd: Tensor, start: int) -> Tensor:
        """Base features of keys."""
        return self._features(k_bcmd if self.maps is None else k_bcmd @ self.maps[1])

    @staticmethod
    def _features(x: Tensor) -> Tensor:
        return torch.stack((x, -x), -2).softmax(-1).flatten(-2)


def build(problem: Problem, init: str, chunk: int) -> Attend:
    """Legend in :mod:`impls.linear.common`."""
    if init not in ("identity", "random"):
        raise Unsupported(f"init={init!r} must be identity or random")
    return Linear(problem, Softmaxes(problem, init), "weights", chunk)


def definition(problem: Problem, init: str, chunk: int) -> Define:
    """The plain form: every weight, divided by the sum of its row, times v."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        q, k = widened(q_bhnd[:, :, rows]), widened(k_bcmd)
        if (both := maps(problem, init, q.dtype)) is not None:
            q, k = q @ both[0], k @ both[1]
        k = to_query_heads(k, problem)
        weights_bhrm = q.softmax(-1) @ k.softmax(-1).mT + (-q).softmax(-1) @ (-k).softmax(-1).mT
        return plain(weights_bhrm, v_bcme, problem, rows, "weights")

    return define
