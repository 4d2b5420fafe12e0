"""DeepSpeed Ulysses (Jacobs et al., arXiv:2309.14509): tokens are exchanged for heads, and back.

Each of W processes holds n / W tokens of all h heads. Three all-to-alls give it all n tokens of
h / W heads instead, on which it computes whole, ordinary attention; a fourth gives the output back
by tokens:

    q, k, v [b, h, n/W, d]  ->  [b, h/W, n, d]
    out [b, h/W, n, e] = softmax( q k^T d^-1/2 + mask ) v  ->  [b, h, n/W, e]

Since a process sees whole sequences, any mask will do. Heads, and key/value heads, must be as many
as W divides. Backward each exchange is its own inverse.

Cost: 4 n m d h / W FLOPs forward on each rank, and what torch's scaled_dot_product_attention holds
for whole sequences of h / W heads. Sent by each rank: (W-1)/W (Q + K + V + O), the bytes of its own
shares, forward; the same again backward. So it sends less the more ranks there are, where a ring
sends as much to each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import Attend
from impls.parallel.ranks import Ranks
from impls.problem import Problem
from impls.score_mask import sdpa_arguments

Way = Callable[[Tensor, Ranks], Tensor]


def to_heads(x_bhnd: Tensor, ranks: Ranks) -> Tensor:
    """All tokens of some heads, from some tokens of all heads."""
    b, h, n, d = x_bhnd.shape
    parts = x_bhnd.reshape(b, ranks.world, h // ranks.world, n, d).movedim(1, 0)
    came = ranks.all_to_all(parts)  # [W, b, h/W, n, d], the first now a piece of the sequence
    return came.movedim(0, 2).reshape(b, h // ranks.world, ranks.world * n, d)


def to_tokens(x_bhnd: Tensor, ranks: Ranks) -> Tensor:
    """Some tokens of all heads, from all tokens of some heads."""
    b, h, n, d = x_bhnd.shape
    parts = x_bhnd.reshape(b, h, ranks.world, n // ranks.world, d).movedim(2, 0)
    came = ranks.all_to_all(parts)  # [W, b, h, n/W, d], the first now a group of heads
    return came.movedim(0, 1).reshape(b, ranks.world * h, n // ranks.world, d)


class _Exchange(torch.autograd.Function):
    """One of the two exchanges; the gradient comes back by the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, there: Way, back: Way) -> Tensor:
        ctx.ranks, ctx.back = ranks, back
        return there(x, ranks)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.back(gradient[0], ctx.ranks), None, None, None


def build(problem: Problem, ranks: Ranks) -> Attend:
    """Legend in :mod:`impls.heads`."""
    arguments = sdpa_arguments(problem)
    mask = arguments.get("attn_mask")
    if mask is not None and mask.shape[1] > 1:  # one for each head: this rank's
        arguments["attn_mask"] = mask.chunk(ranks.world, 1)[ranks.rank]
    if problem.group > 1:
        arguments["enable_gqa"] = True

    def exchanged(x: Tensor, there: Way, back: Way) -> Tensor:
        shares: Tensor = _Exchange.apply(x, ranks, there, back)  # type: ignore[no-untyped-call]
        return shares

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        inputs = (q_bhnd, k_bcmd, v_bcme)
        q, k, v = (exchanged(x, to_heads, to_tokens) for x in inputs)
        out = F.scaled_dot_product_attention(q, k, v, **arguments)
        return exchanged(out, to_tokens, to_heads)

    return attend
