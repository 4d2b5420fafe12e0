"""Sliding-window attention in blocks: each block of queries against the span of keys it reaches.

    out_i = softmax over j in [i - L, i + R] of ( q_i k_j d^-1/2 ) v_j

Exactly softmax attention under a mask with a window in it; what else narrows a row to a span
(causal, a document, padding, a prefix) is held to as well, and a slope is added. Rows come in
blocks of B, and block I is one product with the keys from I B - L to I B + B + R - 1: overlapping
spans, copied side by side so that all blocks are one batched product. ``block`` is B; 0 takes 64,
or 128 for windows wider than 256. The window as such: arXiv:2004.05150.

Cost: 2 n (L + R + 1) (d + e) FLOPs a head by the mathematics, n (B + L + R) scores in practice;
memory the same, backward too. Without gradients the scores of a few blocks exist at a time.
"""

from __future__ import annotations

import torch

from impls.masks import alibi_slopes
from impls.problem import Problem
from impls.sparse.band import Band
from impls.spec import Unsupported, at_least


def build(problem: Problem, block: int) -> Band:
    """Refuses a mask without a window: there would be no span to speak of."""
    at_least("block", block, 0, "(chosen from the window)")
    if "window" not in problem.mask.kinds:
        raise Unsupported(
            f"window.blocked needs a window in the mask, such as window:128,128 or "
            f"causal+window:128,0; the mask is {problem.mask}"
        )
    first, past = (torch.from_numpy(x.copy())[:, None] for x in problem.mask.spans(problem.shape))
    alibi = "alibi" in problem.mask.kinds
    slopes = torch.from_numpy(alibi_slopes(problem.heads)) if alibi else None
    offset = 0 if problem.mask.upper_left else problem.kv_len - problem.q_len
    return Band(problem, first, past, offset=offset, block=block, slopes_h=slopes)
