"""Linear attention with the features elu(x) + 1 (Katharopoulos and others, arXiv:2006.16236).

    phi(x) = x + 1 where x > 0, else exp(x)
    out_n  = phi(q_n) . sum phi(k_m) v_m^T  /  phi(q_n) . sum phi(k_m)     over the visible m

A weighted mean of the values with positive weights: within their hull, blind to the order of the
keys, but with no scale on q and k and no exponential of their product, so far less pointed than
softmax. Features are computed as written above: elu(x) + 1 loses all digits of exp(x) for x well
below zero. Masks: none, causal (in chunks). Decoding keeps one D x e state and a sum of features.

Cost: 2 d e FLOPs a key and a query of each head; chunks add 2 C (d + e) a query.
"""

from typing import Any

import torch
from torch import Tensor

from impls.heads import Attend, Define, to_query_heads, widened
from impls.linear.common import FeatureMap, Linear
from impls.linear.defined import plain
from impls.problem import Problem


class _EluPlusOne(torch.autograd.Function):
    """With its derivative, min(phi, 1), from phi itself: nothing else is kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        phi = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(phi)
        return phi

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        (phi,) = ctx.saved_tensors
        return phi.clamp(max=1).mul_(upstream[0])


def elu_plus_one(x: Tensor) -> Tensor:
    """The feature map."""
    phi: Tensor = _EluPlusOne.apply(x)  # type: ignore[no-untyped-call]
    return phi


class Positive(FeatureMap):
    """The same features for queries and keys."""

    def queries(self, q_bhnd: Tensor, start: int) -> Tensor:
        """Base features of queries."""
        return elu_plus_one(q_bhnd)


def build(problem: Problem, chunk: int) -> Attend:
    """Legend in :mod:`impls.linear.common`."""
    return Linear(problem, Positive(problem), "weights", chunk)


def _phi(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1.0, torch.exp(x.clamp(max=0.0)))


def definition(problem: Problem, chunk: int, segments: int = 1) -> Define:
    """The plain form: every weight, divided by the sum of its row, times v. It has no cuts."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        q, k = widened(q_bhnd[:, :, rows]), to_query_heads(widened(k_bcmd), problem)
        return plain(_phi(q) @ _phi(k).mT, v_bcme, problem, rows, "weights")

    return define
