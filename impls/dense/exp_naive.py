"""Attention with bare exponentials, the maximum not subtracted.

    s = exp( q k^T d^-1/2 + mask );  out = (s v) / sum s

The formula of the textbooks, taken at its word. It is right as long as no exponential overflows
(logits above 88 in float32 and bfloat16, above 11 in float16) and not all of a row underflow (below
-103). It stands in the table to show that.

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
        powers_bcrm = mask.add_((grouped(q_bhnd, problem) @ k_bcmd.mT).mul_(problem.scale)).exp_()
        sums_bcr1 = powers_bcrm.sum(-1, keepdim=True)
        return mask.close((powers_bcrm @ v_bcme) / sums_bcr1)

    return attend
