"""Sparse Transformer, strided: the neighbours of one stride's length, and every stride-th key.

    out_i = softmax over j in S_i of ( q_i k_j d^-1/2 ) v_j
    S_i = { j <= i : i - j < s } and { j <= i : (i - j) mod s = 0 }

s is ``stride``, 0 for about the root of n. That is the causal form, the paper's (arXiv:1904.10509,
section 4.3, as one merged head): one softmax over both sets, each pair counted once. Under mask
none the sets are { |i - j| < s } and { (i - j) mod s = 0 }, the same on both sides. Causal
strictly.

The tokens are laid out as a table, s to a line. The near keys are a block of queries, one line,
against the span of lines around it; the stride-th keys are a column against itself. Both scores
are put side by side for one softmax.

Cost: 2 n (s + n / s) (d + e) FLOPs a head, half of the columns' causal, twice the near ones' for
none; memory n (2 s + n / s), or n (3 s + n / s): n^1.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impls.heads import Noted
from impls.problem import Problem
from impls.sparse.blocks import (
    columns,
    from_query_blocks,
    hide,
    masked,
    prescaled,
    query_blocks,
    slabs,
    spans,
)
from impls.sparse.common import Pattern, decoder, defined_on, need_one_sequence
from impls.sparse.cost import stride_of
from impls.spec import at_least

LINES = 16
"""Lines to be done at a time, at the least: a column's keys are read anew each time."""


def build(problem: Problem, stride: int) -> Noted:
    """Legend in :mod:`impls.heads`; t lines of s tokens, x = t columns' keys, y near keys."""
    at_least("stride", stride, 0, "(about the root of the length)")
    need_one_sequence(problem, "strided")
    if problem.phase == "decode":
        return decoder(problem, pattern_of(problem, stride))
    n, step, group = problem.q_len, stride_of(problem, stride), problem.group
    lines = -(-n // step)
    before, after = step - 1, 0 if "causal" in problem.mask.kinds else step - 1
    near = before + step + after
    bias = hide(_visible(problem, step, lines), problem)

    def lines_out(q_bctrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, far: tuple[Tensor, Tensor],
                  slab: slice) -> Tensor:  # fmt: skip
        count, start = slab.stop - slab.start, slab.start * step
        k_bctyd, v_bctye = (spans(x, count, step, before, after, start) for x in (k_bcmd, v_bcme))
        k_bcsxd, v_bcsxe = far
        scores_bctrx = _lines(columns(q_bctrd, group) @ k_bcsxd.mT, group)
        scores = torch.cat([q_bctrd @ k_bctyd.mT, scores_bctrx], -1)
        weights = masked(scores, bias[slab], problem).softmax(-1)
        far_bctre = _lines(columns(weights[..., near:], group) @ v_bcsxe, group)
        return weights[..., :near] @ v_bctye + far_bctre

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        q_bctrd = query_blocks(prescaled(q_bhnd, problem), group, step)
        k_bcsxd, v_bcsxe = (columns(query_blocks(x, 1, step), 1) for x in (k_bcmd, v_bcme))
        outs = [
            lines_out(q_bctrd[:, :, slab], k_bcmd, v_bcme, (k_bcsxd, v_bcsxe), slab)
            for slab in slabs(problem, lines, step * (near + lines), LINES)
        ]
        return from_query_blocks(torch.cat(outs, 2), group, n)

    return Noted(attend, f"stride {step} of {n} tokens")


def _lines(x_bcsre: Tensor, group: int) -> Tensor:
    """Back from :func:`impls.sparse.blocks.columns`: [b, c, t, g s, e]."""
    b, c, s, r, e = x_bcsre.shape
    x = x_bcsre.reshape(b, c, s, group, r // group, e).permute(0, 1, 4, 3, 2, 5)
    return x.reshape(b, c, r // group, group * s, e)


def _visible(problem: Problem, step: int, lines: int) -> Tensor:
    """True where a row of a line sees its near keys, then its column: [t, s, near + t]."""
    causal = "causal" in problem.mask.kinds
    line, place = torch.arange(lines)[:, None, None], torch.arange(step)[:, None]
    row = line * step + place
    key = (
        line * step - (step - 1) + torch.arange((2 if causal else 3) * step - (1 if causal else 2))
    )
    near = (key >= 0) & (key < problem.kv_len) & (row - key < step)
    near &= (key <= row) if causal else (key - row < step)
    other = torch.arange(lines)  # the column's own place is a near key already
    far = (other < line) if causal else (other != line)
    far = far & (other * step + place < problem.kv_len)
    return torch.cat([near, far], -1) | (row >= problem.q_len)


def pattern_of(problem: Problem, stride: int) -> Pattern:
    """The sets above, over the whole sequence."""
    step = stride_of(problem, stride)

    def pattern(rows: Tensor) -> Tensor:
        away = rows[:, None] - torch.arange(problem.kv_len, device=rows.device)
        return ((away.abs() < step) | (away % step == 0))[None, None]

    return pattern


definition = defined_on(pattern_of)
