"""Attention as two batched products over flattened heads.

    out = softmax( d^-1/2 q k^T + mask ) v

``bmm`` scales the product in a second pass. ``baddbmm`` computes beta * mask + alpha * q k^T in
one pass, which saves the passes for the scale and for the mask.

Cost: 4 n m d FLOPs a head forward, two matrices of scores at the worst instant.
"""

import torch
from torch import Tensor

from impls.heads import Attend, grouped
from impls.problem import Problem
from impls.score_mask import ScoreMask


def build(problem: Problem, dropout: float = 0.0) -> Attend:
    """Product, then scale, then mask. Legend in :mod:`impls.heads`; r = g n."""
    mask = ScoreMask(problem)
    b, c = problem.batch, problem.kv_heads

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        q_xrd = grouped(q_bhnd, problem).flatten(0, 1)
        scores_xrm = torch.bmm(q_xrd, k_bcmd.flatten(0, 1).mT).mul_(problem.scale)
        if mask.bias is None:
            weights_xrm = scores_xrm.softmax(-1)
        else:
            weights_xrm = mask.add_(scores_xrm.unflatten(0, (b, c))).softmax(-1).flatten(0, 1)
        del scores_xrm
        if dropout:
            weights_xrm = torch.dropout(weights_xrm, dropout, True)
        return mask.close(torch.bmm(weights_xrm, v_bcme.flatten(0, 1)).unflatten(0, (b, c)))

    return attend


def build_folded(problem: Problem, dropout: float = 0.0) -> Attend:
    """Product, scale and mask in one call."""
    mask = ScoreMask(problem)
    b, c, rows = problem.batch, problem.kv_heads, problem.group * problem.q_len
    if mask.bias is None:
        addend = torch.empty(1, dtype=getattr(torch, problem.dtype), device=problem.device)
        beta = 0
    else:
        addend = mask.bias.expand(b, c, rows, problem.kv_len).flatten(0, 1)
        beta = 1

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        q_xrd, k_xmd = grouped(q_bhnd, problem).flatten(0, 1), k_bcmd.flatten(0, 1)
        weights_xrm = torch.baddbmm(
            addend, q_xrd, k_xmd.mT, beta=beta, alpha=problem.scale
        ).softmax(-1)
        if dropout:
            weights_xrm = torch.dropout(weights_xrm, dropout, True)
        return mask.close(torch.bmm(weights_xrm, v_bcme.flatten(0, 1)).unflatten(0, (b, c)))

    return attend
