"""Native sparse attention: compressed blocks, selected blocks and a window, under three gates.

    out_i = g_cmp o_cmp + g_slc o_slc + g_swa o_swa                           gates a query and head

    o_cmp  softmax of q_i over the mean keys of the blocks that end at i or before, on mean values
    o_slc  softmax over j <= i in the `top` blocks of the largest importance: of block u the weight
           that o_cmp gives it, summed over the heads that share keys. The first block, i's own and
           the one before it are always among them; of equal ones, the earlier is taken
    o_swa  softmax over the last `window` keys up to i

Yuan et al., arXiv:2502.11089 (NSA). Blocks are compressed by their mean, as in fla's public form;
the paper has a small learned network there, blocks of 32 that overlap by half, and selected blocks
of 64. Gates are inputs, sigmoids of tokens in the models. To the selection there is no gradient.
Where no block has ended yet, o_cmp is zero. The paper has top 16 and a window of 512; what is
default here suits a few thousand tokens.

The compressed scores are n m / block a head, a block of rows at a time, and computed again
backward; selected blocks meet the queries that picked them (:mod:`impls.sparse.selected`); the
window is cut into blocks. In decode the means are taken of the whole cache at each step.

Cost: 2 (d + e) FLOPs a head for each of n m / (2 block) compressed pairs, n top block selected ones
and n window; memory n (top + 2) (d + e) and the window's spans.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from impls.heads import to_query_heads, widened
from impls.problem import Problem
from impls.sparse.band import Band
from impls.sparse.selected import (
    Defined,
    Qkv,
    Selecting,
    again,
    attend_blocks,
    block_means,
)
from impls.spec import Unsupported


class Nsa(Selecting):
    """Legend in :mod:`impls.sparse.selected`."""

    name = "nsa"
    least = 3  # the first block, the query's own and the one before it

    def __init__(self, problem: Problem, block: int, top: int, window: int) -> None:
        super().__init__(problem, block, top)
        if window < 1:
            raise Unsupported(
                f"window={window} must be 1 or more: the last keys, a query's own too"
            )
        place = torch.arange(problem.q_len) + self.before
        first = (place + 1 - window).clamp(min=0)[None, None]
        self.band = Band(problem, first, place[None, None] + 1, offset=self.before)

    def _weights(self, q_bhrd: Tensor, means_bhud: Tensor, rows: slice) -> Tensor:
        """The softmax of some rows over the blocks that have ended: [b, h, r, u]."""
        ended = (self.places(rows, q_bhrd.device)[:, None] + 1) // self.block
        items = self.items_of(rows)
        seen = torch.arange(items, device=q_bhrd.device) < ended
        scores = (q_bhrd @ means_bhud[:, :, :items].mT) * self.problem.scale
        open_ = seen | (ended == 0)
        return scores.masked_fill(~open_, -torch.inf).softmax(-1).masked_fill(~seen, 0.0)

    def _means(self, x_bcmd: Tensor) -> Tensor:
        return to_query_heads(block_means(widened(x_bcmd), self.block), self.problem)

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> Iterator[Tensor]:
        """Weights of compressed blocks, summed over the heads of a group."""
        means, group = self._means(k_bcmd), (self.problem.kv_heads, self.problem.group)
        for rows in self.row_blocks(self.problem.heads * self.items):
            item = torch.arange(self.items_of(rows), device=q_bhnd.device)
            weights = self._weights(widened(q_bhnd[:, :, rows]), means, rows)
            own = (self.places(rows, q_bhnd.device) // self.block)[:, None]
            always = (item == 0) | (item == own) | (item == own - 1)
            scores = weights.unflatten(1, group).sum(2).masked_fill_(always, torch.inf)
            yield scores.masked_fill_(item > own, -torch.inf)

    def selected(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, picks: Tensor, **more: Tensor
    ) -> Tensor:
        """The three branches under their gates."""
        g_cmp, g_slc, g_swa = (more[name][..., None] for name in ("g_cmp", "g_slc", "g_swa"))
        out = g_slc * attend_blocks(self.problem, q_bhnd, k_bcmd, v_bcme, picks, self.block)
        means = self._means(k_bcmd), self._means(v_bcme)
        out = out + g_cmp * self._compressed(widened(q_bhnd), *means)
        return (out + g_swa * self.band(q_bhnd, k_bcmd, v_bcme)).to(v_bcme.dtype)

    def _compressed(self, q_bhnd: Tensor, k_bhud: Tensor, v_bhue: Tensor) -> Tensor:
        def some(q_bhrd: Tensor, k_bhud: Tensor, v_bhue: Tensor, rows: slice) -> Tensor:
            return self._weights(q_bhrd, k_bhud, rows) @ v_bhue[:, :, : self.items_of(rows)]

        blocks = self.row_blocks(self.problem.heads * self.items)
        outs = [again(some, q_bhnd[:, :, rows], k_bhud, v_bhue, rows) for rows in blocks]
        return torch.cat(outs, 2)

    def note(self) -> str:
        """How much a query selects, and its window's cut."""
        return f"{super().note()}; {self.band.note()}"


class Definition(Defined):
    """Three whole matrices of weights."""

    def __init__(self, problem: Problem, block: int, top: int, window: int) -> None:
        super().__init__(problem, block, top)
        self.window = max(window, 1)

    def _compressed(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor) -> Tensor:
        """The weights of the blocks, [b, h, r, u]; zeros where none has ended."""
        scores = (q_bhnd[:, :, rows] @ self.block_means(k_bcmd).mT) * self.problem.scale
        last = (torch.arange(self.items, device=rows.device) + 1) * self.block - 1
        seen = last <= self.places(rows)
        none = ~seen.any(-1, keepdim=True)
        weights = scores.masked_fill(~(seen | none), -torch.inf).softmax(-1)
        return weights.masked_fill(none, 0.0)

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """The importance of blocks to each key/value head's queries."""
        weights = self._compressed(q_bhnd, k_bcmd, rows)
        b, _, r, u = weights.shape
        scores = weights.view(b, self.problem.kv_heads, self.problem.group, r, u).sum(2)
        own, item = self.places(rows) // self.block, torch.arange(u, device=rows.device)
        for forced in (item == 0, item == own, item == own - 1):
            scores = scores.masked_fill(forced, torch.inf)
        return scores.masked_fill(item > own, -torch.inf)

    def output(self, qkv: Qkv, rows: Tensor, pairs: Tensor, **more: Tensor) -> Tensor:
        """The three branches under their gates."""
        q_bhnd, k_bcmd, v_bcme = qkv
        selected = super().output(qkv, rows, pairs)
        compressed = self._compressed(q_bhnd, k_bcmd, rows) @ self.block_means(v_bcme)
        key = torch.arange(self.problem.kv_len, device=rows.device)
        window = super().output(qkv, rows, key > self.places(rows) - self.window)
        g_cmp, g_slc, g_swa = (more[n][:, :, rows, None] for n in ("g_cmp", "g_slc", "g_swa"))
        return g_cmp * compressed + g_slc * selected + g_swa * window


build, definition = Nsa, Definition
