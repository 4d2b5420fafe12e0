"""What the sparse variants share: the definition of softmax attention on a pattern.

Legend in :mod:`impls.heads`; r some rows of queries.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from impls.heads import Define, to_query_heads
from impls.problem import Problem

Pattern = Callable[[Tensor], Tensor]
"""The pairs that count, for some rows: bool [b|1, h|1, r, m]."""


def softmax_on(problem: Problem, pattern: Pattern) -> Define:
    """Softmax over the pairs that both the pattern and the problem's mask allow, row by row."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        return softmax_rows(problem, q_bhnd, k_bcmd, v_bcme, rows, pattern(rows))

    return define


def softmax_rows(problem: Problem, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor,
                 chosen_bhrm: Tensor) -> Tensor:  # fmt: skip
    """The output of some rows; zeros where a row may see nothing."""
    picked = rows.cpu().numpy()
    seen = torch.from_numpy(problem.mask.visible(problem.shape, picked)).to(q_bhnd.device)
    seen = seen & chosen_bhrm
    scores = (q_bhnd[:, :, rows] @ to_query_heads(k_bcmd, problem).mT) * problem.scale
    if (added := problem.mask.bias(problem.shape, picked)) is not None:
        scores = scores + torch.from_numpy(added).to(q_bhnd.device, q_bhnd.dtype)
    blind = ~seen.any(-1, keepdim=True)
    weights = scores.masked_fill(~(seen | blind), -torch.inf).softmax(-1)
    return (weights @ to_query_heads(v_bcme, problem)).masked_fill(blind, 0.0)
