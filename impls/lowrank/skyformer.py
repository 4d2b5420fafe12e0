"""Attention with a Gaussian kernel, through landmarks of queries and keys alike (Skyformer).

    kappa(x, y) = exp(-|x - y|^2 / (2 d^1/2))           out ~ kappa(q, k) v, no normalisation
    z: rows of [q; k], picked evenly at random          w = kappa(z, z) + gamma,  D = row sums of w
    out = kappa(q, z) D^-1/2 inv(D^-1/2 w D^-1/2) D^-1/2 kappa(z, k) v

Chen et al., arXiv:2111.00035. kappa(q, k) is one corner of kappa([q; k], [q; k]), which is
symmetric and positive, so that landmarks from both ends serve it; that is softmax attention without
the factors exp(|q|^2/2), exp(|k|^2/2) and without its divisor, an operator of its own. The sum of
the kernels over the keys is no constant: it vanishes where no key is near.

The inverse takes ``iterations`` steps z (13 - az (15 - az (7 - az))) / 4 from a / (max column sum),
each head by its own; 0 takes the pseudo-inverse, values below 1e-5 of the largest counting as zero.
gamma is added to the diagonal, as in the authors' code, and keeps the inverse in bounds; with
gamma = 0, all rows as landmarks and the exact inverse the kernel is exact. All heads pick the same
places. A landmark may be a later key, so there is no causal form. Half precisions are computed in
float32.

Cost: with r landmarks, 2 (n + m) r (d + e) FLOPs a head, 2 r^2 (d + e), and 8 r^3 a step.
"""

import torch
from torch import Tensor

from impls.heads import Define, grouped, to_query_heads, ungrouped, wide, widened
from impls.lowrank.common import by_blocks, iterated_inverse
from impls.problem import Problem
from impls.spec import at_least

SMALL = 1e-5
"""Singular values below this share of the largest count as zero."""


def places(problem: Problem, landmarks: int, seed: int) -> tuple[Tensor, Tensor]:
    """Which queries and which keys are landmarks, in order, none twice; on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    picked = torch.randperm(problem.q_len + problem.kv_len, generator=generator)[:landmarks]
    picked = picked.sort().values
    return picked[picked < problem.q_len], picked[picked >= problem.q_len] - problem.q_len


class Skyformer:
    """Legend in :mod:`impls.heads`; r landmarks, x = g n or g r rows."""

    def __init__(self, problem: Problem, landmarks: int, iterations: int, gamma: float,
                 seed: int) -> None:  # fmt: skip
        at_least("landmarks", landmarks, 1)
        at_least("iterations", iterations, 0)
        at_least("gamma", gamma, 0.0)
        self.problem, self.asked = problem, landmarks
        self.iterations, self.gamma, self.dtype = iterations, gamma, wide(problem)
        at_q, at_k = places(problem, landmarks, seed)
        self.at_q, self.at_k = at_q.to(problem.device), at_k.to(problem.device)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """The output."""
        problem, dtype = self.problem, q_bhnd.dtype
        q_bhnd, k_bcmd, v_bcme = (x.to(self.dtype) for x in (q_bhnd, k_bcmd, v_bcme))
        k_bhrd = to_query_heads(k_bcmd.index_select(2, self.at_k), problem)
        z_bhrd = torch.cat((q_bhnd.index_select(2, self.at_q), k_bhrd), 2)
        reach_bcxm = self._kernel(grouped(z_bhrd, problem), k_bcmd)
        summary_bhre = ungrouped(reach_bcxm @ v_bcme, problem)
        values_bhre = self._solved(self._kernel(z_bhrd, z_bhrd), summary_bhre)

        def rows(q_bhnd: Tensor) -> Tensor:
            return self._kernel(q_bhnd, z_bhrd) @ values_bhre

        return by_blocks(rows, q_bhnd, z_bhrd.shape[2]).to(dtype)

    def _kernel(self, x_bhnd: Tensor, y_bhmd: Tensor) -> Tensor:
        """Products first: no difference of each pair is ever held."""
        scale = self.problem.scale
        log_bhnm = (x_bhnd * scale) @ y_bhmd.mT
        log_bhnm -= x_bhnd.square().sum(-1, keepdim=True) * (scale / 2)
        log_bhnm -= (y_bhmd.square().sum(-1, keepdim=True) * (scale / 2)).mT
        return log_bhnm.clamp_(
            max=0.0
        ).exp_()  # a square distance is never negative but by rounding

    def _solved(self, w_bhrr: Tensor, summary_bhre: Tensor) -> Tensor:
        eye = torch.eye(w_bhrr.shape[-1], dtype=w_bhrr.dtype, device=w_bhrr.device)
        w_bhrr = w_bhrr + self.gamma * eye
        root_bhr1 = w_bhrr.sum(-1, keepdim=True).rsqrt()
        a_bhrr = root_bhr1 * w_bhrr * root_bhr1.mT
        if self.iterations == 0:
            inverse = torch.linalg.pinv(a_bhrr, rtol=SMALL)
        else:
            start = a_bhrr / a_bhrr.sum(-2, keepdim=True).amax(-1, keepdim=True)
            inverse = iterated_inverse(a_bhrr, start, self.iterations)
        return root_bhr1 * (inverse @ (root_bhr1 * summary_bhre))

    def note(self) -> str:
        """The number and kind of landmarks."""
        return f"landmarks: {len(self.at_q)} queries, {len(self.at_k)} keys"


build = Skyformer


def definition(problem: Problem, landmarks: int, iterations: int, gamma: float,
               seed: int) -> Define:  # fmt: skip
    """The plain form, head by head as the formula has it."""
    at_q, at_k = places(problem, max(landmarks, 1), seed)

    def kappa(x: Tensor, y: Tensor) -> Tensor:
        squares = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :]
        return torch.exp(-(squares - 2 * x @ y.mT).clamp(min=0.0) * problem.scale / 2)

    def inverse(a: Tensor) -> Tensor:
        if iterations == 0:
            return torch.linalg.pinv(a, rtol=SMALL)
        z, one = a / a.sum(-2).amax(-1)[..., None, None], torch.eye(a.shape[-1]).to(a)
        for _ in range(iterations):
            z = 0.25 * z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z)))
        return z

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        q, k, v = map(widened, (q_bhnd, k_bcmd, v_bcme))
        k, v = to_query_heads(k, problem), to_query_heads(v, problem)
        z = torch.cat((q[:, :, at_q.to(rows)], k[:, :, at_k.to(rows)]), 2)
        w = kappa(z, z) + gamma * torch.eye(z.shape[2]).to(z)
        root = w.sum(-1).pow(-0.5)
        core = torch.diag_embed(root) @ inverse(w * root[..., None] * root[..., None, :])
        right = torch.diag_embed(root) @ (kappa(z, k) @ v)
        return (kappa(q[:, :, rows], z) @ (core @ right)).to(q_bhnd.dtype)

    return define
