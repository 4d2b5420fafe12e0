"""Attention as two einsums around a softmax.

    out_ne = sum_m softmax_m( d^-1/2 sum_d q_nd k_md + mask_nm ) v_me

Cost: 4 n m d FLOPs a head forward, two matrices of scores at the worst instant.
"""

from typing import Any

import torch
from torch import Tensor

from impls.heads import Attend, grouped
from impls.problem import Problem
from impls.score_mask import ScoreMask, weights, with_log_sums


def build(problem: Problem, dropout: float = 0.0) -> Attend:
    """Legend in :mod:`impls.heads`; r = g n grouped rows."""
    mask = ScoreMask(problem)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None = None) -> Any:
        scores_bcrm = mask.add_(
            torch.einsum("bcrd,bcmd->bcrm", grouped(q_bhnd, problem), k_bcmd).mul_(problem.scale)
        )
        weights_bcrm = weights(scores_bcrm, sinks, problem)
        lse = mask.log_sums(scores_bcrm, sinks)
        del scores_bcrm
        if dropout:
            weights_bcrm = torch.dropout(weights_bcrm, dropout, True)
        out = mask.close(torch.einsum("bcrm,bcme->bcre", weights_bcrm, v_bcme))
        return with_log_sums(out, lse)

    return attend
