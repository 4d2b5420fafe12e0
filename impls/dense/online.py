"""Attention with a running maximum and sum over blocks of keys (Rabe and Staats, arXiv:2112.05682).

    m' = max(m, max s);  p = exp(s - m');  c = exp(m - m')
    l' = c l + sum p;    a' = c a + p v;   out = a / l

No row of scores is ever whole: the memory above the output is one tile. On a GPU, where a launch is
dear, tiles grow from the blocks asked for until one holds 2^28 scores. Tiles that nobody sees are
skipped. Half precisions sum in float32. With gradients, autograd keeps every tile.

Cost: 4 n m d FLOPs a head forward over the tiles read; two tiles of q_block x k_block scores.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from impls.dense.common import Part, Tile, Tiles
from impls.dense.cost import online_tile
from impls.heads import Attend, ungrouped, wide
from impls.problem import Problem
from impls.score_mask import beside_sinks
from impls.spec import Unsupported


class Running(NamedTuple):
    """The sums of a block of rows over the tiles so far."""

    top_bcr1: Tensor
    total_bcr1: Tensor
    out_bcre: Tensor


def _whole(sums: Running, sinks: Tensor | None, problem: Problem, dtype: torch.dtype) -> Part:
    """What the sums over all tiles make of a block of rows."""
    out_bhne, log_sums = ungrouped(sums.out_bcre / sums.total_bcr1, problem), None
    if sinks is not None or problem.lse:
        log_sums = ungrouped(sums.top_bcr1 + sums.total_bcr1.log(), problem)[..., 0]
    if sinks is not None and log_sums is not None:
        out_bhne = beside_sinks(out_bhne, log_sums, sinks)
    return Part(out_bhne.to(dtype), log_sums)


def build(problem: Problem, q_block: int, k_block: int) -> Attend:
    """Legend in :mod:`impls.heads`; r = g n rows, n of them in a block."""
    if min(q_block, k_block) < 1:
        raise Unsupported(f"q_block={q_block} and k_block={k_block} must be 1 or more")
    tiles = Tiles(problem, *online_tile(problem, q_block, k_block))
    sums_dtype = wide(problem)

    def add_tile(so_far: Running | None, q_bcrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor,
                 rows: slice, tile: Tile) -> Running:  # fmt: skip
        scores_bcrm = tiles.scores(q_bcrd, k_bcmd, rows, tile)
        top = scores_bcrm.detach().amax(-1, keepdim=True)
        if so_far is not None:
            top = torch.maximum(top, so_far.top_bcr1)
        shift = top.clamp(min=torch.finfo(top.dtype).min)  # of a row that has seen nothing yet
        p_bcrm = (scores_bcrm - shift).exp_()
        del scores_bcrm
        total = p_bcrm.sum(-1, keepdim=True, dtype=sums_dtype)
        out = (p_bcrm @ v_bcme[:, :, tile.keys]).to(sums_dtype)
        if so_far is not None:
            decay = (so_far.top_bcr1 - shift).exp().to(sums_dtype)
            total, out = total + so_far.total_bcr1 * decay, out + so_far.out_bcre * decay
        return Running(top, total, out)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None = None) -> Any:
        parts = []
        for rows, blocks in tiles.blocks:
            q_bcrd, so_far = tiles.queries(q_bhnd, rows), None
            for tile in blocks:
                so_far = add_tile(so_far, q_bcrd, k_bcmd, v_bcme, rows, tile)
            if so_far is None:
                parts.append(tiles.nothing(q_bhnd, rows))
            else:
                parts.append(_whole(so_far, sinks, problem, q_bhnd.dtype))
        return tiles.close(parts, sinks)

    return attend
