"""Scores of a chunk under decays that differ by channel, by halving the chunk again and again.

Pairs with i in the right half of a block and j in the left are split at its middle: q_i and k_j are
each multiplied by what lies between them and the middle. From the smallest halves up, each step
fades the right queries and the left keys by what the other half adds, so nothing is divided.
Legend in :mod:`impls.linear.decay`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def halvable(x_bctld: Tensor, value: float = 0.0) -> Tensor:
    """Made longer, to a power of two, by what adds nothing and fades nothing."""
    length = x_bctld.shape[-2]
    filler = (1 << (length - 1).bit_length()) - length
    return pad(x_bctld, (0, 0, 0, filler), value=value) if filler else x_bctld


class Halved(torch.autograd.Function):
    """The scores of the chunks, q faded from a chunk's beginning, k to its end, alpha of it all.

    Backward does the halving again: what it fades in place is not kept.
    """

    @staticmethod
    def forward(ctx: Any, q_bctgld: Tensor, k_bctld: Tensor, alpha_bctld: Tensor) -> Any:
        """The scores [b, c, t, g, l, l], the faded queries and keys, and what a chunk keeps."""
        ctx.save_for_backward(q_bctgld, k_bctld, alpha_bctld)
        q, k, total = q_bctgld * alpha_bctld[:, :, :, None], k_bctld.clone(), alpha_bctld
        scores = q.new_zeros(*q.shape[:-1], q.shape[-2])
        scores.diagonal(dim1=-2, dim2=-1).copy_((q_bctgld * k_bctld[:, :, :, None]).sum(-1))
        for size in _sizes(k):
            q_r, k_l = _halves(q, size)[1], _halves(k, size)[0]
            _across(scores, size).copy_(q_r @ k_l[:, :, :, None].mT)
            total_l, total_r = total.unflatten(3, (-1, 2)).unbind(4)
            q_r *= total_l[:, :, :, None, :, None]
            k_l *= total_r[..., None, :]
            total = total_l * total_r
        return scores, q, k, total

    @staticmethod
    def backward(ctx: Any, d_scores: Tensor, d_q: Tensor, d_k: Tensor, d_total: Tensor) -> Any:
        """The gradients of queries, keys and alpha."""
        q_bctgld, k_bctld, alpha_bctld = ctx.saved_tensors
        steps = _steps(q_bctgld * alpha_bctld[:, :, :, None], k_bctld.clone(), alpha_bctld)
        d_q, d_k = d_q.clone(), d_k.clone()
        for size, q_r, k_l, total_l, total_r in reversed(steps):
            d_q_r, d_k_l = _halves(d_q, size)[1], _halves(d_k, size)[0]
            d_across = _across(d_scores, size)
            d_total_l = (d_q_r * q_r).sum((3, 5)) + d_total * total_r
            d_total_r = (d_k_l * k_l).sum(4) + d_total * total_l
            d_total = torch.stack((d_total_l, d_total_r), 4).flatten(3, 4)
            d_q_r.mul_(total_l[:, :, :, None, :, None]).add_(d_across @ k_l[:, :, :, None])
            d_k_l.mul_(total_r[..., None, :]).add_((d_across.mT @ q_r).sum(3))
        own = d_scores.diagonal(dim1=-2, dim2=-1)[..., None]
        d_alpha = (d_q * q_bctgld).sum(3) + d_total
        d_q.mul_(alpha_bctld[:, :, :, None]).addcmul_(own, k_bctld[:, :, :, None])
        return d_q, d_k.add_((own * q_bctgld).sum(3)), d_alpha


def _steps(q: Tensor, k: Tensor, total: Tensor) -> list[tuple[int, Tensor, Tensor, Tensor, Tensor]]:
    """Every halving once more: its right queries, its left keys and the totals of both halves."""
    steps = []
    for size in _sizes(k):
        q_r, k_l = _halves(q, size)[1], _halves(k, size)[0]
        total_l, total_r = total.unflatten(3, (-1, 2)).unbind(4)
        steps.append((size, q_r.clone(), k_l.clone(), total_l, total_r))
        q_r *= total_l[:, :, :, None, :, None]
        k_l *= total_r[..., None, :]
        total = total_l * total_r
    return steps


def _sizes(k_bctld: Tensor) -> list[int]:
    """Sizes of halves, from the smallest."""
    return [1 << i for i in range(k_bctld.shape[3].bit_length() - 1)]


def _halves(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The left and the right half of every block of two sizes, as views: [..., blocks, size, d]."""
    left, right = x.unflatten(-2, (-1, 2, size)).unbind(-3)
    return left, right


def _across(scores: Tensor, size: int) -> Tensor:
    """Those of right queries and left keys of every block, as a view: [..., blocks, size, size]."""
    halves = scores.unflatten(-1, (-1, 2, size)).unflatten(-4, (-1, 2, size))
    return halves[..., 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
