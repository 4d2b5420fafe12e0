"""Linear attention by the Taylor series of exp (Based, Arora and others, arXiv:2402.18668).

    w_nm  = 1 + x + x^2 / 2,     x = s (q_n P) . (k_m P),     s = d^-1/2
    out_n = sum w_nm v_m / sum w_nm     over the visible m

w is a product of features: with u = s^1/2 q P and F numbers in it, phi(u) = [1, u_i,
u_i u_j (i < j), u_i^2 / 2^1/2], 1 + F + F (F + 1) / 2 of them, since u_i u_j and u_j u_i are one.
Every weight is at least 1/2, so weights are positive, but they tell keys apart only while x is
small. P [d, F] brings d down to ``features`` numbers. The paper learns it; here it is drawn from a
fixed seed, one for all heads, of variance 1/F, so that x is s q.k on average over the draw. With
``features=0`` or as many as d there is none, and x is s q.k itself. The paper adds attention in a
short window besides; that is not part of this. Masks: none, causal (in chunks: inside one, weights
come from x and need no features). Half precisions take all products in float32, on any device:
squares pass the range of float16, and in bfloat16 the terms of x^2 cancel too many digits.

Cost: 2 D e FLOPs a key and a query of each head, D the number of features (153 for F = 16).
"""

import math

import torch
from torch import Tensor

from impls.heads import Attend, Define, to_query_heads, wide, widened
from impls.linear.common import FeatureMap, Linear
from impls.linear.defined import plain
from impls.problem import Problem
from impls.spec import at_least


def projection(problem: Problem, features: int, dtype: torch.dtype) -> Tensor | None:
    """P, [d, F]; None where there is none."""
    if not 0 < features < problem.head_dim:
        return None
    generator = torch.Generator().manual_seed(0)
    shape = (problem.head_dim, features)
    p = torch.randn(shape, generator=generator, dtype=torch.float64) * features**-0.5
    return p.to(getattr(torch, problem.dtype)).to(problem.device, dtype)


class Taylor(FeatureMap):
    """Base features u; the state's are their products of order 0, 1 and 2."""

    needs_wide = True

    def __init__(self, problem: Problem, features: int) -> None:
        super().__init__(problem)
        self.features, self.head_dim = features, problem.head_dim
        p = projection(problem, features, wide(problem))
        base = problem.head_dim if p is None else p.shape[1]
        self.width = 1 + base + base * (base + 1) // 2
        self.root = problem.scale**0.5
        self.p = None if p is None else p * self.root

    def queries(self, q_bhnd: Tensor, start: int) -> Tensor:
        """Base features of queries."""
        return q_bhnd * self.root if self.p is None else q_bhnd @ self.p

    def weights(self, q_prd: Tensor, k_pmd: Tensor) -> Tensor:
        """1 + x + x^2 / 2 as ((x + 1)^2 + 1) / 2, which is never below 1/2."""
        return (q_prd @ k_pmd.mT).add_(1.0).square().add_(1.0).mul_(0.5)

    def expand(self, x_bcmd: Tensor) -> Tensor:
        """The products of base features, a diagonal of the matrix of pairs after the other.

        Features come before tokens in memory, so that each diagonal is one product of long rows.
        """
        u_bcFm = x_bcmd.mT.contiguous()
        ones = u_bcFm.new_ones(()).expand(*u_bcFm.shape[:-2], 1, u_bcFm.shape[-1])
        squares = u_bcFm.square() * 0.5**0.5
        pairs = [u_bcFm[..., r:, :] * u_bcFm[..., :-r, :] for r in range(1, u_bcFm.shape[-2])]
        return torch.cat((ones, u_bcFm, squares, *pairs), -2).mT

    def note(self) -> str:
        """That all there is was taken."""
        if self.features <= self.head_dim:
            return ""
        return f"features={self.features} is above head_dim={self.head_dim}: no projection"


def build(problem: Problem, features: int, chunk: int) -> Attend:
    """Legend in :mod:`impls.linear.common`."""
    at_least("features", features, 0, "(no projection)")
    return Linear(problem, Taylor(problem, features), "weights", chunk)


def definition(problem: Problem, features: int, chunk: int) -> Define:
    """The plain form: every x, its three terms, times v."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        q, k = widened(q_bhnd[:, :, rows]), widened(k_bcmd)
        if (p := projection(problem, features, q.dtype)) is not None:
            q, k = q @ p, k @ p
        x = q @ to_query_heads(k, problem).mT / math.sqrt(problem.head_dim)
        return plain(1.0 + x + x.square() / 2.0, v_bcme, problem, rows, "weights")

    return define
