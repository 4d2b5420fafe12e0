"""Softmax attention through landmarks (Nyströmformer).

    out = softmax(s q kl^T)  pinv(softmax(s ql kl^T))  softmax(s ql k^T) v          s = d^-1/2
    z' = z (13 - az (15 - az (7 - az))) / 4,  from z = a^T / (max row sum · max column sum of a)

Xiong et al., arXiv:2102.03902, without its convolution over the values. ql and kl are the means of
``landmarks`` segments of neighbouring queries and of keys, the first n mod landmarks of them one
longer than the rest (the authors' code needs a multiple, others pad). Queries and keys are cut
each by itself: of few queries, as in decoding, each is its own landmark, and a is not square.

``iterations`` steps bring z to the pseudo-inverse of a, each head by its own sums; a step makes
what small singular values have of their inverse at most 13/4 times larger. 0 takes the
pseudo-inverse itself, from a singular value decomposition, in which values below 1e-5 of the
largest count as zero. Then as many landmarks as keys make softmax attention itself; six steps
don't get there. Landmarks mix in later keys, so there is no causal form. Weights may be negative.
Half precisions are computed in float32, since the inverse magnifies errors.

Cost: with r landmarks, 2 (n + m) r (d + e) FLOPs a head, 2 r^2 (d + e), and 8 r^3 a step.
"""

import torch
from torch import Tensor

from impls.heads import Define, grouped, to_query_heads, ungrouped, wide, widened
from impls.lowrank.common import by_blocks, iterated_inverse, segment_means
from impls.problem import Problem
from impls.spec import at_least

SMALL = 1e-5
"""Singular values below this share of the largest count as zero."""


class Nystrom:
    """Legend in :mod:`impls.heads`; r landmarks of queries, u of keys, x = g n or g r rows."""

    def __init__(self, problem: Problem, landmarks: int, iterations: int) -> None:
        at_least("landmarks", landmarks, 1)
        at_least("iterations", iterations, 0)
        self.problem, self.asked, self.iterations = problem, landmarks, iterations
        self.of_queries = min(landmarks, problem.q_len)
        self.of_keys = min(landmarks, problem.kv_len)
        self.dtype = wide(problem)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """The output."""
        problem, dtype = self.problem, q_bhnd.dtype
        q_bhnd, k_bcmd, v_bcme = (x.to(self.dtype) for x in (q_bhnd, k_bcmd, v_bcme))
        ql_bcxd = grouped(segment_means(q_bhnd, self.of_queries) * problem.scale, problem)
        kl_bcud = segment_means(k_bcmd, self.of_keys)
        a_bhru = ungrouped((ql_bcxd @ kl_bcud.mT).softmax(-1), problem)
        summary_bhre = ungrouped((ql_bcxd @ k_bcmd.mT).softmax(-1) @ v_bcme, problem)
        values_bhue = self._inverse(a_bhru) @ summary_bhre
        kl_bhdu = to_query_heads(kl_bcud * problem.scale, problem).mT

        def rows(q_bhnd: Tensor) -> Tensor:
            return (q_bhnd @ kl_bhdu).softmax(-1) @ values_bhue

        return by_blocks(rows, q_bhnd, self.of_keys).to(dtype)

    def _inverse(self, a_bhru: Tensor) -> Tensor:
        if self.iterations == 0:
            return torch.linalg.pinv(a_bhru, rtol=SMALL)
        # rows of a softmax sum to one, so the sums of the columns are all there is to divide by
        start_bhur = a_bhru.mT / a_bhru.sum(-2, keepdim=True).amax(-1, keepdim=True)
        return iterated_inverse(a_bhru, start_bhur, self.iterations)

    def note(self) -> str:
        """The number of landmarks, where fewer than were asked for."""
        if self.of_queries == self.of_keys == self.asked:
            return ""
        return f"landmarks: {self.of_queries} of the queries, {self.of_keys} of the keys"


build = Nystrom


def definition(problem: Problem, landmarks: int, iterations: int) -> Define:
    """The plain form, head by head as the formula has it."""

    def means(x_bhnd: Tensor) -> Tensor:
        parts = x_bhnd.tensor_split(max(1, min(landmarks, x_bhnd.shape[2])), 2)
        return torch.stack([part.mean(2) for part in parts], 2)

    def inverse(a: Tensor) -> Tensor:
        if iterations == 0:
            return torch.linalg.pinv(a, rtol=SMALL)
        sums = [a.abs().sum(axis).amax(-1)[..., None, None] for axis in (-1, -2)]
        z, one = a.mT / (sums[0] * sums[1]), torch.eye(a.shape[-2]).to(a)
        for _ in range(iterations):
            z = 0.25 * z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z)))
        return z

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        q, k, v = map(widened, (q_bhnd, k_bcmd, v_bcme))
        k, v = to_query_heads(k, problem), to_query_heads(v, problem)
        ql, kl, scale = means(q), means(k), problem.scale
        left = (q[:, :, rows] @ (scale * kl).mT).softmax(-1)
        middle = ((scale * ql) @ kl.mT).softmax(-1)
        right = ((scale * ql) @ k.mT).softmax(-1)
        return (left @ (inverse(middle) @ (right @ v))).to(q_bhnd.dtype)

    return define
