"""The mean of the values a row may see: softmax attention of rank one, with no scores at all.

    out_n = mean over the visible m of v_m

What an approximation must beat to know anything about the scores. Where every row sees the keys
from the first up to one of its own, it is a running sum divided by a count, or one sum where all
rows end alike; under any other mask it is a product with the n x m matrix of 1 / count, zeros where
a key is hidden. Numbers that a mask adds to scores mean nothing here: alibi and bias are not taken.

Cost: m e additions a head; 2 n m e FLOPs in the form with a matrix. q and k are never read.
"""

import torch
from torch import Tensor

from impls.heads import Attend, Define, to_query_heads, wide
from impls.problem import Problem
from impls.score_mask import visible_pairs


def build(problem: Problem) -> Attend:
    """Legend: b batch, h query heads, c key/value heads, n queries, m keys, d and e widths."""
    first, past = problem.mask.spans(problem.shape)
    if first.any() or any(p.file for p in problem.mask.parts):
        return _product(problem)
    ends_bn = torch.from_numpy(past.copy()).to(problem.device)
    sums_dtype = wide(problem)
    same_end = bool((ends_bn == ends_bn[0, 0]).all())
    counts_bn = ends_bn.clamp(min=1).to(sums_dtype)[:, None, :, None]
    pick_bn = (ends_bn - 1).clamp(min=0)
    blind = (ends_bn == 0)[:, None, :, None]

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        if same_end and ends_bn.shape[1] > 0:
            total = v_bcme[:, :, : int(past[0, 0])].sum(2, keepdim=True, dtype=sums_dtype)
            mean_bcne = (total / counts_bn).to(v_bcme.dtype)
        else:
            sums = v_bcme.cumsum(2, dtype=sums_dtype)
            where = pick_bn[:, None, :, None].expand(*sums.shape[:2], -1, sums.shape[3])
            mean_bcne = (sums.gather(2, where) / counts_bn).to(v_bcme.dtype)
        return to_query_heads(mean_bcne.masked_fill(blind, 0.0), problem)

    return attend


def _product(problem: Problem) -> Attend:
    rows = torch.arange(problem.q_len, device=problem.device)
    weights = _weights(problem, rows, getattr(torch, problem.dtype))

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        return weights @ to_query_heads(v_bcme, problem)

    return attend


def _weights(problem: Problem, rows: Tensor, dtype: torch.dtype) -> Tensor:
    visible = visible_pairs(problem, rows)
    return (visible.double() / visible.sum(-1, keepdim=True).clamp(min=1)).to(dtype)


def definition(problem: Problem) -> Define:
    """The plain form: visible / count, times v."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        return _weights(problem, rows, v_bcme.dtype) @ to_query_heads(v_bcme, problem)

    return define
