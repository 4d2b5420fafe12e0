"""Attention over a block of queries at a time.

    out_I = softmax( q_I k^T d^-1/2 + mask_I ) v     for each block I of rows

Each block reads only the span of keys that one of its rows sees, so a causal mask costs half and a
window costs its width. The plain way to bound memory: one block of rows of scores, forward. With
gradients, autograd keeps every block's weights.

Cost: 4 n m d FLOPs a head forward over the keys read; two matrices of block x m scores.
"""

from typing import Any

import torch
from torch import Tensor

from impls.dense.common import Part, Tile, Tiles
from impls.heads import Attend, ungrouped
from impls.problem import Problem
from impls.score_mask import log_sums, weights
from impls.spec import at_least


def build(problem: Problem, block: int, dropout: float = 0.0) -> Attend:
    """Legend in :mod:`impls.heads`; r = g n rows, n of them in a block."""
    at_least("block", block, 1)
    tiles = Tiles(problem, block)

    def block_out(q_bcrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None,
                  rows: slice, tile: Tile) -> Part:  # fmt: skip
        """In a function of its own, so that a block's weights are gone before the next begins."""
        scores_bcrm = tiles.scores(q_bcrd, k_bcmd[:, :, tile.keys], rows, tile)
        weights_bcrm = weights(scores_bcrm, sinks, problem)
        lse = log_sums(scores_bcrm, problem) if problem.lse else None
        del scores_bcrm
        if dropout:
            weights_bcrm = torch.dropout(weights_bcrm, dropout, True)
        return Part(ungrouped(weights_bcrm @ v_bcme[:, :, tile.keys], problem), lse)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None = None) -> Any:
        parts = []
        for rows, blocks in tiles.blocks:
            if blocks:
                q_bcrd = tiles.queries(q_bhnd, rows)
                parts.append(block_out(q_bcrd, k_bcmd, v_bcme, sinks, rows, blocks[0]))
            else:
                parts.append(tiles.nothing(q_bhnd, rows))
        return tiles.close(parts, sinks)

    return attend
