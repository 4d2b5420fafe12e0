"""Shared by the dense variants: the scores cut into tiles, and caches in few bits.

Legend in :mod:`impls.heads`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from impls.heads import Define, grouped, to_query_heads, ungrouped, wide, widened
from impls.masks import alibi_slopes
from impls.problem import Problem
from impls.score_mask import (
    beside_sinks,
    blind_rows,
    cap_,
    closed_log_sums,
    grouped_mask,
    masked_softmax,
)


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
        """Masked scores of one tile, of whose keys k is: [b, c, g n, m]."""
        scores = (q_bcrd @ k_bcmd.mT).mul_(self.problem.scale)
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


def attend_online(tiles: Tiles, q_bhnd: Tensor, k_of: Callable[[slice], Tensor],
                  v_of: Callable[[slice], Tensor], sinks: Tensor | None = None) -> Any:  # fmt: skip
    """Attention with a running maximum and sum over tiles; keys and values come tile by tile.

    r = g n rows, n of them in a block.
    """
    problem, parts = tiles.problem, []
    sums_dtype = wide(problem)

    def add_tile(so_far: Running | None, q_bcrd: Tensor, rows: slice, tile: Tile) -> Running:
        scores_bcrm = tiles.scores(q_bcrd, k_of(tile.keys), rows, tile)
        top = scores_bcrm.detach().amax(-1, keepdim=True)
        if so_far is not None:
            top = torch.maximum(top, so_far.top_bcr1)
        shift = top.clamp(min=torch.finfo(top.dtype).min)  # of a row that has seen nothing yet
        p_bcrm = (scores_bcrm - shift).exp_()
        del scores_bcrm
        total = p_bcrm.sum(-1, keepdim=True, dtype=sums_dtype)
        out = (p_bcrm @ v_of(tile.keys)).to(sums_dtype)
        if so_far is not None:
            decay = (so_far.top_bcr1 - shift).exp().to(sums_dtype)
            total, out = total + so_far.total_bcr1 * decay, out + so_far.out_bcre * decay
        return Running(top, total, out)

    for rows, blocks in tiles.blocks:
        q_bcrd, so_far = tiles.queries(q_bhnd, rows), None
        for tile in blocks:
            so_far = add_tile(so_far, q_bcrd, rows, tile)
        if so_far is None:
            parts.append(tiles.nothing(q_bhnd, rows))
        else:
            parts.append(_whole(so_far, sinks, problem, q_bhnd.dtype))
    return tiles.close(parts, sinks)


def over(problem: Problem, rounded: Callable[[Tensor], Tensor]) -> Define:
    """The definition of softmax attention over keys and values that were rounded."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor, rows: Tensor) -> Tensor:
        k, v = (to_query_heads(rounded(x), problem) for x in (k_bcmd, v_bcmd))
        scores = q_bhnd[:, :, rows] @ k.mT * problem.scale
        return masked_softmax(scores, problem, rows) @ v

    return define
