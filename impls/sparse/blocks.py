"""Blocks of queries against spans of keys: cutting, laying side by side, hiding.

Legend in :mod:`impls.heads`; t blocks, s keys of a span.
"""

from __future__ import annotations

from math import frexp
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.problem import Problem
from impls.score_mask import cap_


def key_spans(x_bcmd: Tensor, count: int, block: int, before: int, after: int,
              start: int = 0) -> Tensor:  # fmt: skip
    """The keys around each of ``count`` blocks, overlapping, without a copy: [b, c, t, d, s].

    Block t begins at key ``start`` + t block; s counts ``before`` + block + ``after`` keys. Zeros
    stand where there is no key.
    """
    beyond = start + count * block + after - x_bcmd.shape[2]
    padded = F.pad(x_bcmd, (0, 0, before - start, beyond))
    return padded.unfold(2, before + block + after, block)


class _Spans(torch.autograd.Function):
    """:func:`key_spans` copied side by side. Backward adds a block's width of all spans at once."""

    @staticmethod
    def forward(ctx: Any, x_bcmd: Tensor, *cut: int) -> Tensor:
        ctx.cut, ctx.keys = cut, x_bcmd.shape[2]
        return key_spans(x_bcmd, *cut).mT.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (d_bctsd,) = grads
        count, block, before, _, start = ctx.cut
        b, c, _, span, d = d_bctsd.shape
        wide = torch.promote_types(d_bctsd.dtype, torch.float32)
        total = d_bctsd.new_zeros(b, c, (count - 1) * block + span + block, d, dtype=wide)
        for place in range(0, span, block):
            width = min(block, span - place)
            blocks = total[:, :, place : place + count * block].unflatten(2, (count, block))
            blocks[:, :, :, :width] += d_bctsd[:, :, :, place : place + width]
        skipped = before - start
        total = F.pad(total, (0, 0, -skipped, ctx.keys + skipped - total.shape[2]))
        return total.to(d_bctsd.dtype), None, None, None, None, None


def spans(
    x_bcmd: Tensor, count: int, block: int, before: int, after: int, start: int = 0
) -> Tensor:
    """:func:`key_spans` copied side by side: [b, c, t, s, d]."""
    cut = (count, block, before, after, start)
    return _Spans.apply(x_bcmd, *cut)  # type: ignore[no-untyped-call]


def prescaled(q_bhnd: Tensor, problem: Problem) -> Tensor:
    """The queries times the scale where that is exact (a power of two), as they are elsewhere."""
    return q_bhnd * problem.scale if frexp(problem.scale)[0] == 0.5 else q_bhnd


def masked(scores: Tensor, bias: Tensor, problem: Problem) -> Tensor:
    """The scores of :func:`prescaled` queries with the scale, where it is owed, and the bias."""
    whole = frexp(problem.scale)[0] == 0.5
    if problem.softcap is not None:
        return cap_(scores if whole else scores.mul_(problem.scale), problem).add_(bias)
    if whole:
        return scores.add_(bias)
    return torch.add(bias, scores, alpha=problem.scale)


def slabs(problem: Problem, count: int, scores: int, least: int = 1) -> list[slice]:
    """Blocks to be done at a time, ``least`` or more, with so many scores a block and head.

    Without gradients scores of 2 MiB on the CPU, which stay in its cache, and of a quarter GiB on
    CUDA. With gradients all blocks: their weights are kept anyway.
    """
    room = 2**19 if problem.device == "cpu" else 2**26
    step = count if problem.gradients else room // (problem.batch * problem.heads * scores)
    step = min(max(step, least), count)
    return [slice(t, min(t + step, count)) for t in range(0, count, step)]


def query_blocks(x_bhnd: Tensor, group: int, block: int) -> Tensor:
    """The queries of each block, heads of a group end to end: [b, c, t, g block, d]."""
    b, h, n, d = x_bhnd.shape
    count = -(-n // block)
    if count * block > n:
        x_bhnd = F.pad(x_bhnd, (0, 0, 0, count * block - n))
    if group == 1:
        return x_bhnd.reshape(b, h, count, block, d)
    blocks = x_bhnd.reshape(b, h // group, group, count, block, d).transpose(2, 3)
    return blocks.reshape(b, h // group, count, group * block, d)


def from_query_blocks(x_bctre: Tensor, group: int, rows: int) -> Tensor:
    """Back from :func:`query_blocks`, without what filled the last block: [b, h, n, e]."""
    b, c, count, r, e = x_bctre.shape
    if group == 1:
        return x_bctre.reshape(b, c, count * r, e)[:, :, :rows]
    blocks = x_bctre.reshape(b, c, count, group, r // group, e).transpose(2, 3)
    return blocks.reshape(b, c * group, -1, e)[:, :, :rows]


def columns(x_bctrd: Tensor, group: int) -> Tensor:
    """Blocks as a table's lines, read by its columns: [b, c, s, g t, d]."""
    b, c, t, r, d = x_bctrd.shape
    x = x_bctrd.reshape(b, c, t, group, r // group, d).permute(0, 1, 4, 3, 2, 5)
    return x.reshape(b, c, r // group, group * t, d)


def hide(visible: Tensor, problem: Problem) -> Tensor:
    """0 where a pair may meet and -inf elsewhere, for the rows of grouped heads: [..., g r, s]."""
    bias = torch.where(visible, 0.0, -torch.inf).to(problem.device, getattr(torch, problem.dtype))
    if problem.group == 1 or bias.shape[-2] == 1:
        return bias
    return torch.cat([bias] * problem.group, -2)
