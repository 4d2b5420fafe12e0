"""BigBird: blocks of queries against neighbouring, global and random blocks of keys.

    out_i = softmax over j in the blocks of S_I of ( q_i k_j d^-1/2 ) v_j,      i in block I
    S_I = { I - 1, I, I + 1 } and { J : J < G } and R_I,     S_I = { all J } for I < G

B is ``block``; the first G = ``globals`` blocks see all and are seen by all; R_I are ``random``
blocks (r) that are not in the other sets, drawn once from ``seed``, the same for all heads (all
there are where fewer are left). One softmax over the union, each pair counted once.
arXiv:2007.14062, in its ITC form: the global tokens are tokens of the sequence. The authors'
released code makes the first and the last block global, and draws R_I for each head by itself.

Causal, which the paper leaves open: the same sets cut to blocks I and before, R_I drawn among those
before I, and j <= i inside a block. Causal strictly: no row depends on later keys.

The blocks of keys are gathered beside each other, and one batched product does all blocks; the
global blocks' rows are done apart.

Cost: 2 n B (3 + G + r) (d + e) FLOPs a head, and as much as G B n pairs more for the global rows;
memory n (3 + G + r) (B + d + e), linear.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from impls.heads import Noted
from impls.problem import Problem
from impls.sparse.blocks import from_query_blocks, hide, masked, prescaled, query_blocks, slabs
from impls.sparse.common import Pattern, decoder, defined_on, global_rows, need_one_sequence
from impls.sparse.layouts import bigbird_layout, bigbird_sizes
from impls.spec import at_least


def build(problem: Problem, block: int, globals: int, random: int, seed: int) -> Noted:
    """Legend in :mod:`impls.heads`; t blocks of queries, y = K B gathered keys to each."""
    at_least("block", block, 1)
    for name, value in (("globals", globals), ("random", random), ("seed", seed)):
        at_least(name, value, 0)
    need_one_sequence(problem, "bigbird")
    if problem.phase == "decode":
        return decoder(problem, pattern_of(problem, block, globals, random, seed))
    size, count, top = bigbird_sizes(problem, block, globals)
    n, causal = problem.kv_len, "causal" in problem.mask.kinds
    apart = 0 if causal else min(top * size, n)  # a causal global row sees but global keys
    table = torch.from_numpy(bigbird_layout(count, top, random, seed, causal))
    bias = hide(_visible(problem, size, table), problem)
    picks = table.clamp(min=0).to(problem.device)

    def gathered(x_bcxy: Tensor, slab: slice) -> Tensor:
        """From blocks laid flat to the keys of each block of queries: [b, c, t, y, d]."""
        x = x_bcxy.index_select(2, picks[slab].flatten())
        return x.reshape(*x.shape[:2], slab.stop - slab.start, bias.shape[-1], -1)

    def slab_rows(q_bctrd: Tensor, k_bcxy: Tensor, v_bcxy: Tensor, slab: slice) -> Tensor:
        scores_bctry = masked(q_bctrd @ gathered(k_bcxy, slab).mT, bias[slab], problem)
        return scores_bctry.softmax(-1) @ gathered(v_bcxy, slab)

    def block_rows(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        q_bctrd = query_blocks(prescaled(q_bhnd[:, :, apart:], problem), problem.group, size)
        k_bcxy, v_bcxy = (query_blocks(x, 1, size).flatten(3) for x in (k_bcmd, v_bcme))
        outs = [
            slab_rows(q_bctrd[:, :, slab], k_bcxy, v_bcxy, slab)
            for slab in slabs(problem, len(table), size * bias.shape[-1])
        ]
        return from_query_blocks(torch.cat(outs, 2), problem.group, n - apart)

    top_rows = partial(global_rows, problem, apart)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        parts = [top_rows] * (apart > 0) + [block_rows] * (apart < n)
        outs = [part(q_bhnd, k_bcmd, v_bcme) for part in parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    return Noted(attend, f"{count} blocks of {size}, {top} of them global")


def _visible(problem: Problem, size: int, table: Tensor) -> Tensor:
    """True where a row sees a gathered key: [t, B or 1, K B]."""
    inside = torch.arange(size)
    key = table[:, :, None] * size + inside
    visible = ((table >= 0)[:, :, None] & (key < problem.kv_len)).flatten(1)[:, None]
    if "causal" not in problem.mask.kinds:
        return visible
    row = torch.arange(len(table))[:, None] * size + inside
    return visible & (key.flatten(1)[:, None] <= row[:, :, None])


def pattern_of(problem: Problem, block: int, globals: int, random: int, seed: int) -> Pattern:
    """The sets above, over the whole sequence."""
    size, count, top = bigbird_sizes(problem, block, globals)
    causal = "causal" in problem.mask.kinds
    allowed = torch.zeros(count, count, dtype=torch.bool)
    layout = bigbird_layout(count, top, random, seed, causal)
    for line, blocks in zip(range(0 if causal else top, count), layout, strict=True):
        allowed[line, blocks[blocks >= 0]] = True
    if not causal:
        allowed[:top] = True

    def pattern(rows: Tensor) -> Tensor:
        key = torch.arange(problem.kv_len, device=rows.device)
        return allowed.to(rows.device)[(rows // size)[:, None], key // size][None, None]

    return pattern


definition = defined_on(pattern_of)
