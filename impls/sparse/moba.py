"""Mixture of block attention: each query attends its own block and those whose mean key it likes.

    s_iu  = q_i . mean of the keys of block u          for blocks that end before i's own begins
    B_i   = its own block, and the `top` - 1 blocks of the largest s_iu; of equal ones, the earlier
    out_i = softmax over j <= i in the blocks of B_i of ( q_i k_j d^-1/2 ) v_j

Lu et al., arXiv:2502.13189 (MoBA). Each query head selects for itself. To the selection there is no
gradient. With `top` at or above the number of blocks it is exact causal softmax attention. The
paper has blocks of 512 and top 3 at 8,192 tokens; what is default here suits a few thousand.

Means come from float32 at the least, and the selector's scores are n m / block a head, a block of
rows at a time. Then every block of keys meets the queries that picked it, tile by tile, as in the
authors' code, and a query's parts are put together by their maxima and sums. In decode the means
are taken of the whole cache at each step, since there is no place to keep them.

Cost: 2 d n m / (2 block) FLOPs a head to select, 2 (d + e) n top block to attend; memory
n top (d + e) a head.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from impls.heads import to_query_heads, widened
from impls.sparse.selected import Defined, Selecting, attend_blocks, block_means


class Moba(Selecting):
    """Legend in :mod:`impls.sparse.selected`."""

    name = "moba"

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> Iterator[Tensor]:
        """Each query with the means of the blocks before its own."""
        means = to_query_heads(block_means(widened(k_bcmd), self.block), self.problem)
        for rows in self.row_blocks(self.problem.heads * self.items):
            own_r1 = (self.places(rows, q_bhnd.device) // self.block)[:, None]
            item = torch.arange(self.items_of(rows), device=q_bhnd.device)
            scores = widened(q_bhnd[:, :, rows]) @ means[:, :, : len(item)].mT
            scores = scores.masked_fill_(item == own_r1, torch.inf)
            yield scores.masked_fill_(item > own_r1, -torch.inf)

    def selected(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, picks: Tensor, **more: Tensor
    ) -> Tensor:
        """Softmax over the blocks that were picked."""
        out = attend_blocks(self.problem, q_bhnd, k_bcmd, v_bcme, picks, self.block)
        return out.to(v_bcme.dtype)


class Definition(Defined):
    """Each query with the mean of every block."""

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """Own block always, later ones never."""
        scores = q_bhnd[:, :, rows] @ self.block_means(k_bcmd).mT
        own = self.places(rows) // self.block
        item = torch.arange(self.items, device=rows.device)
        return scores.masked_fill(item == own, torch.inf).masked_fill(item > own, -torch.inf)


build, definition = Moba, Definition
