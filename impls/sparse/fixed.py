"""Sparse Transformer, fixed: a row's own block, and the last columns of every block.

    out_i = softmax over j in S_i of ( q_i k_j d^-1/2 ) v_j
    S_i = { j <= i : j div s = i div s } and { j <= i : j mod s >= s - c }

s is ``stride``, c is ``summary``: the places that are meant to sum up their block for later ones.
stride=0 takes about the root of c n, where both halves weigh the same. That is the causal form, the
paper's (arXiv:1904.10509, section 4.3), with both sets in one head and one softmax, each pair
counted once. Under mask none the same sets without j <= i. The paper's t runs from s - c to s,
where j mod s never is s: c columns. Causal strictly.

A block of queries meets its own block of keys in one batched product and all summary columns in
another; both scores are put side by side for one softmax.

Cost: 2 n (s + c n / s) (d + e) FLOPs a head, half of that causal; memory n (s + c n / s): n^1.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impls.heads import Noted
from impls.problem import Problem
from impls.sparse.blocks import from_query_blocks, hide, masked, prescaled, query_blocks, slabs
from impls.sparse.common import Pattern, decoder, defined_on, need_one_sequence
from impls.sparse.cost import stride_of
from impls.spec import at_least


def build(problem: Problem, stride: int, summary: int) -> Noted:
    """Legend in :mod:`impls.heads`; t blocks of s tokens, x = t c summary keys."""
    at_least("stride", stride, 0, "(about the root of summary n)")
    at_least("summary", summary, 0, "(no summary columns)")
    need_one_sequence(problem, "fixed")
    if problem.phase == "decode":
        return decoder(problem, pattern_of(problem, stride, summary))
    n, step = problem.q_len, stride_of(problem, stride, summary)
    last = min(summary, step)
    bias = hide(_visible(problem, step, last), problem)

    def blocks_out(q_bctrd: Tensor, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor],
                   bias: Tensor) -> Tensor:  # fmt: skip
        (k_bctsd, v_bctse), (k_bcxd, v_bcxe) = own, far
        scores = (q_bctrd.flatten(2, 3) @ k_bcxd.mT).unflatten(2, q_bctrd.shape[2:4])
        scores = torch.cat([q_bctrd @ k_bctsd.mT, scores], -1)
        weights = masked(scores, bias, problem).softmax(-1)
        far_out = weights[..., step:].flatten(2, 3) @ v_bcxe
        return weights[..., :step] @ v_bctse + far_out.unflatten(2, q_bctrd.shape[2:4])

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        q_bctrd = query_blocks(prescaled(q_bhnd, problem), problem.group, step)
        k_bctsd, v_bctse = (query_blocks(x, 1, step) for x in (k_bcmd, v_bcme))
        far = (
            k_bctsd[:, :, :, step - last :].flatten(2, 3),
            v_bctse[:, :, :, step - last :].flatten(2, 3),
        )
        outs = [
            blocks_out(q_bctrd[:, :, x], (k_bctsd[:, :, x], v_bctse[:, :, x]), far, bias[x])
            for x in slabs(problem, len(bias), step * bias.shape[-1])
        ]
        return from_query_blocks(torch.cat(outs, 2), problem.group, n)

    return Noted(attend, f"stride {step}, the last {last} columns of each block")


def _visible(problem: Problem, step: int, last: int) -> Tensor:
    """True where a row sees its own block, then the summaries: [t, s, s + t c]."""
    n, causal = problem.q_len, "causal" in problem.mask.kinds
    count = -(-n // step)
    block, place = torch.arange(count)[:, None, None], torch.arange(step)
    row = block * step + place[:, None]
    own = block * step + place < n
    own = own & ((place <= place[:, None]) if causal else torch.ones(step, 1, dtype=torch.bool))
    other = torch.arange(count).repeat_interleave(last)
    key = other * step + torch.arange(step - last, step).repeat(count)
    far = ((other < block) if causal else (other != block)) & (key < n)
    return torch.cat([own, far.expand(-1, step, -1)], -1) | (row >= n)


def pattern_of(problem: Problem, stride: int, summary: int) -> Pattern:
    """The sets above, over the whole sequence."""
    step = stride_of(problem, stride, summary)

    def pattern(rows: Tensor) -> Tensor:
        row, key = rows[:, None], torch.arange(problem.kv_len, device=rows.device)
        return ((row // step == key // step) | (key % step >= step - summary))[None, None]

    return pattern


definition = defined_on(pattern_of)
