"""Attention with one matrix of scores, overwritten step by step.

    s <- q k^T d^-1/2 + mask;  s <- exp(s - max s);  out = (s v) / sum s

The division comes after the product, on n e numbers in place of n m. Inference only: backward
would need what was overwritten.

Cost: 4 n m d FLOPs a head forward, one matrix of scores at the worst instant.
"""

from torch import Tensor

from impls.heads import Attend, grouped
from impls.problem import Problem
from impls.score_mask import ScoreMask


def build(problem: Problem) -> Attend:
    """Legend in :mod:`impls.heads`; r = g n."""
    mask = ScoreMask(problem)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        scores_bcrm = mask.add_((grouped(q_bhnd, problem) @ k_bcmd.mT).mul_(problem.scale))
        scores_bcrm.sub_(scores_bcrm.amax(-1, keepdim=True)).exp_()
        sums_bcr1 = scores_bcrm.sum(-1, keepdim=True)
        return mask.close((scores_bcrm @ v_bcme).div_(sums_bcr1))

    return attend
