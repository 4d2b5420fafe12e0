"""Shared by the linear variants' definitions: weights written out, hidden, divided, times v.

Legend in :mod:`impls.heads`; r some rows of queries.
"""

from __future__ import annotations

from torch import Tensor

from impls.heads import to_query_heads
from impls.linear.common import nonzero
from impls.problem import Problem
from impls.score_mask import visible_pairs


def plain(
    weights_bhrm: Tensor, v_bcme: Tensor, problem: Problem, rows: Tensor, divide: str
) -> Tensor:
    """A definition from all its weights: hide, divide, times v.

    The weights come in float32 at the least and are cast to the values' dtype once divided.
    """
    visible = visible_pairs(problem, rows)
    weights = weights_bhrm.masked_fill(~visible, 0.0)
    if divide == "weights":
        weights = weights / nonzero(weights.sum(-1, keepdim=True))
    elif divide == "count":
        weights = weights / nonzero(visible.sum(-1, keepdim=True)).to(weights.dtype)
    return weights.to(v_bcme.dtype) @ to_query_heads(v_bcme, problem)
