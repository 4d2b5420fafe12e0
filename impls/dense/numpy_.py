"""Attention in NumPy, on the CPU, without gradients.

    s <- q k^T d^-1/2 + mask;  s <- exp(s - max s);  out = (s v) / sum s

Takes the tensors' memory as arrays, without a copy, and hands its own memory back. NumPy has no
bfloat16, and its float16 products go through no BLAS, so it takes float32 and float64.

Cost: 4 n m d FLOPs a head forward, one matrix of scores at the worst instant (which torch's
allocator does not see).
"""

import numpy as np
import torch
from torch import Tensor

from impls.heads import Attend, grouped
from impls.problem import Problem
from impls.score_mask import ScoreMask


def build(problem: Problem) -> Attend:
    """Legend in :mod:`impls.heads`; r = g n."""
    mask = ScoreMask(problem)
    bias = None if mask.bias is None else mask.bias.numpy()
    scale = np.dtype(problem.dtype).type(problem.scale)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        q_bcrd, k, v = grouped(q_bhnd, problem).numpy(), k_bcmd.numpy(), v_bcme.numpy()
        scores_bcrm = q_bcrd @ k.swapaxes(-1, -2)
        scores_bcrm *= scale
        if bias is not None:
            scores_bcrm += bias
        scores_bcrm -= scores_bcrm.max(-1, keepdims=True)
        np.exp(scores_bcrm, out=scores_bcrm)
        out_bcre = scores_bcrm @ v
        out_bcre /= scores_bcrm.sum(-1, keepdims=True)
        return mask.close(torch.from_numpy(out_bcre))

    return attend
