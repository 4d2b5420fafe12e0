"""Attention as broadcasting matmuls, with the scale on the scores or on the queries.

    scale after:   softmax( (q k^T) d^-1/2 + mask ) v
    scale before:  softmax( (q d^-1/2) k^T + mask ) v

The second scales n d numbers in place of n m; it rounds elsewhere, and keeps a scaled copy of the
queries for backward.

Cost: 4 n m d FLOPs a head forward, two matrices of scores at the worst instant.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from impls.heads import Attend, grouped
from impls.problem import Problem
from impls.score_mask import ScoreMask, weights, with_log_sums


def build(problem: Problem, dropout: float = 0.0) -> Attend:
    """Scale after."""
    return _attend_by(problem, dropout, lambda q, k: (q @ k.mT).mul_(problem.scale))


def build_prescale(problem: Problem, dropout: float = 0.0) -> Attend:
    """Scale before."""
    return _attend_by(problem, dropout, lambda q, k: (q * problem.scale) @ k.mT)


def _attend_by(
    problem: Problem, dropout: float, score: Callable[[Tensor, Tensor], Tensor]
) -> Attend:
    """Legend in :mod:`impls.heads`; r = g n."""
    mask = ScoreMask(problem)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None = None) -> Any:
        scores_bcrm = mask.add_(score(grouped(q_bhnd, problem), k_bcmd))
        weights_bcrm = weights(scores_bcrm, sinks, problem)
        lse = mask.log_sums(scores_bcrm, sinks)
        del scores_bcrm
        if dropout:
            weights_bcrm = torch.dropout(weights_bcrm, dropout, True)
        return with_log_sums(mask.close(weights_bcrm @ v_bcme), lse)

    return attend
