"""Shared by the dense variants that work block by block: the scores cut into tiles.

Legend in :mod:`impls.heads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from impls.heads import grouped, widened
from impls.masks import alibi_slopes
from impls.problem import Problem
from impls.score_mask import blind_rows, cap_, closed_log_sums, grouped_mask


class Tile(NamedTuple):
    """A block of scores: its keys, and what to add to hide some of them from some rows."""

    keys: slice
    hidden: Tensor | None


class Part(NamedTuple):
    """A block of rows: its output, and its log-sums where the problem asks for them."""

    out_bhne: Tensor
    log_sums_bhn: Tensor | None


class Tiles:
    """The scores cut into blocks of queries and of keys, the blocks that nobody sees left out.

    What hides keys inside a block is made once. A slope is added as it is needed, so that memory
    stays in proportion to a block of rows. Rows that see nothing are treated as in
    :class:`impls.score_mask.ScoreMask`.
    """

    def __init__(self, problem: Problem, q_block: int, k_block: int | None = None) -> None:
        self.problem = problem
        shape, mask = problem.shape, problem.mask
        self.blind = blind_rows(problem)
        first, past = mask.spans(shape)
        self._slopes: Tensor | None = None
        offset = 0 if mask.upper_left else shape.kv_len - shape.q_len
        self._at = torch.arange(shape.q_len, device=problem.device) + offset
        if "alibi" in mask.kinds:
            slopes = torch.from_numpy(alibi_slopes(problem.heads)).to(problem.device)
            self._slopes = slopes.reshape(1, problem.heads, 1, 1)
        self.blocks: list[tuple[slice, list[Tile]]] = []
        for start in range(0, shape.q_len, q_block):
            rows = slice(start, min(start + q_block, shape.q_len))
            low, high = int(first[:, rows].min()), int(past[:, rows].max())
            step = k_block or max(high - low, 1)
            keys = [slice(k, min(k + step, high)) for k in range(low, high, step)]
            self.blocks.append((rows, list(self._tiles(rows, keys))))

    def _tiles(self, rows: slice, blocks: list[slice]) -> Iterator[Tile]:
        problem = self.problem
        picked = np.arange(rows.start, rows.stop)
        visible = torch.from_numpy(problem.mask.visible(problem.shape, picked))
        added = problem.mask.only("bias").bias(problem.shape, picked)
        open_rows = None if self.blind is None else self.blind[:, :, rows].cpu()
        for keys in blocks:
            open_pairs = visible[..., keys]
            if not bool(open_pairs.any()):
                continue
            open_pairs = open_pairs if open_rows is None else open_pairs | open_rows
            if added is None and bool(open_pairs.all()):
                yield Tile(keys, None)
                continue
            base = torch.zeros(()) if added is None else torch.from_numpy(added[..., keys].copy())
            base = torch.where(open_pairs, base.nan_to_num(neginf=0.0), -torch.inf)
            base = base.to(problem.device, getattr(torch, problem.dtype))
            yield Tile(keys, grouped_mask(base, problem))

    def queries(self, q_bhnd: Tensor, rows: slice) -> Tensor:
        """The block's queries, grouped: [b, c, g n, d]."""
        return grouped(q_bhnd[:, :, rows], self.problem)

    def scores(self, q_bcrd: Tensor, k_bcmd: Tensor, rows: slice, tile: Tile) -> Tensor:
        """Masked scores of one tile: [b, c, g n, m]."""
        scores = (q_bcrd @ k_bcmd[:, :, tile.keys].mT).mul_(self.problem.scale)
        scores = cap_(scores, self.problem)
        if self._slopes is not None:
            key = torch.arange(tile.keys.start, tile.keys.stop, device=scores.device)
            away = (self._at[rows, None] - key).abs()
            scores = scores.sub_(grouped_mask((self._slopes * away).to(scores.dtype), self.problem))
        return scores if tile.hidden is None else scores.add_(tile.hidden)

    def nothing(self, q_bhnd: Tensor, rows: slice) -> Part:
        """A block that sees no key: zeros that still depend on the queries."""
        zero_bhn1 = q_bhnd[:, :, rows, :1] * 0.0
        out_bhne = zero_bhn1.expand(-1, -1, -1, self.problem.v_head_dim)
        return Part(out_bhne, widened(zero_bhn1[..., 0]))

    def close(self, parts: list[Part], sinks: Tensor | None) -> Any:
        """The blocks end to end, zero where a row may see nothing: the output, or (out, lse)."""
        out = torch.cat([x.out_bhne for x in parts], 2) if len(parts) > 1 else parts[0].out_bhne
        out = out if self.blind is None else out.masked_fill(self.blind, 0.0)
        if not self.problem.lse:
            return out
        log_sums = [x.log_sums_bhn for x in parts if x.log_sums_bhn is not None]
        return out, closed_log_sums(torch.cat(log_sums, 2), sinks, self.blind)
