"""Softmax attention on a band around each row's own place.

Legend in :mod:`impls.heads`; t blocks, s keys of a span.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import widened
from impls.problem import Problem
from impls.score_mask import closed_log_sums, weights
from impls.sparse.blocks import (
    from_query_blocks,
    hide,
    masked,
    prescaled,
    query_blocks,
    slabs,
    spans,
)


class Band:
    """Softmax attention where row i sees keys first_i to past_i - 1, near its own place.

    Blocks of queries meet the span of keys that their rows reach, all in one batched product, so
    work and memory are n (block + left + right), backward too. Without gradients a few blocks at a
    time (a slab), so that the scores stay in the cache.

    ``first`` and ``past`` are [b|1, c|1, n]. Row i stands at key i + ``offset``. The first
    ``extra`` keys are seen besides by the rows that ``extra_past`` [n] says: that many of them.
    """

    def __init__(self, problem: Problem, first: Tensor, past: Tensor, *,
                 offset: int = 0, block: int = 0, slopes_h: Tensor | None = None,
                 extra_past: Tensor | None = None) -> None:  # fmt: skip
        self.problem, self.rows, self.offset = problem, first.shape[-1], offset
        at = torch.arange(self.rows) + offset
        reach = past > first
        self.left = max(int(torch.where(reach, at - first, 0).max()), 0)
        self.right = max(int(torch.where(reach, past - 1 - at, 0).max()), 0)
        width = self.left + self.right
        self.block = min(block or (64 if width <= 256 else 128), self.rows)
        self.span = self.block + width
        self.count = -(-self.rows // self.block)
        self.extra = 0 if extra_past is None else int(extra_past.max())
        self.blind: Tensor | None = None
        if self.extra == 0 and not bool(reach.all()):
            self.blind = ~reach[..., None].to(self.problem.device)
        self.slabs = slabs(problem, self.count, self.block * (self.span + self.extra))
        self.biases = self._biases(first, past, extra_past, slopes_h)

    def _biases(self, first: Tensor, past: Tensor, extra_past: Tensor | None,
                slopes_h: Tensor | None) -> list[Tensor]:  # fmt: skip
        """The bias of each slab's scores: [b|1, c|1, t|1, g block, extra + span]."""
        filler = (0, self.count * self.block - self.rows)
        start = torch.arange(self.count)[:, None] * self.block + self.offset - self.left
        opened = past <= first if self.extra == 0 else torch.zeros_like(past, dtype=torch.bool)

        def by_block(x: Tensor, opening: int) -> Tensor:
            x = F.pad(x.masked_fill(opened, opening), filler, value=opening)
            return x.reshape(*x.shape[:2], self.count, self.block) - start

        beyond = self.count * self.block + self.span + abs(self.offset)
        low, high = by_block(first, -beyond), by_block(past, 2 * beyond)
        low, high = low.clamp(0, self.span), high.clamp(0, self.span)
        extra_counts = torch.zeros(1, 1, self.count, self.block, dtype=torch.int64)
        if extra_past is not None:
            extra_counts = F.pad(extra_past, filler, value=self.extra).reshape(extra_counts.shape)
        biases = []
        for slab in self.slabs:
            parts = [x[:, :, slab, :, None] for x in (low, high, extra_counts)]
            if all(bool((x == x[:, :, :1]).all()) for x in parts):
                parts = [x[:, :, :1] for x in parts]
            at = torch.arange(self.span)
            visible = (at >= parts[0]) & (at < parts[1])
            if self.extra:
                head = torch.arange(self.extra) < parts[2]
                visible = torch.cat([head.expand(*visible.shape[:-1], -1), visible], -1)
            biases.append(hide(visible, self.problem))
        return biases if slopes_h is None else [b + self._slope(slopes_h) for b in biases]

    def _slope(self, slopes_h: Tensor) -> Tensor:
        """-slope |i - j| inside a block, the same in all of them: [1, c, 1, g block, span]."""
        row = torch.arange(self.block)[:, None] + self.left
        away = (row - torch.arange(self.span)).abs()
        bias = (-slopes_h[:, None, None] * away).reshape(1, self.problem.kv_heads, 1, -1, self.span)
        return bias.to(self.problem.device, getattr(torch, self.problem.dtype))

    def note(self) -> str:
        """The cut of the rows."""
        return f"blocks of {self.block} queries against spans of {self.span} keys"

    def __call__(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None = None
    ) -> Any:
        """The output of all rows, [b, h, n, e]; (out, lse) where the problem asks for it."""
        q_bctrd = query_blocks(prescaled(q_bhnd, self.problem), self.problem.group, self.block)
        parts = [
            self._mix(q_bctrd[:, :, slab], k_bcmd, v_bcme, sinks, slab, bias)
            for slab, bias in zip(self.slabs, self.biases, strict=True)
        ]
        out = self._by_rows([out for out, _ in parts], 0.0)
        if not self.problem.lse:
            return out
        lse = self._by_rows([lse for _, lse in parts if lse is not None], -torch.inf)[..., 0]
        return out, closed_log_sums(lse, sinks, None)

    def _by_rows(self, blocks_bctre: list[Tensor], blind: float) -> Tensor:
        """What was made of the slabs, by rows; of those that see nothing ``blind``."""
        whole_bctre = blocks_bctre[0] if len(blocks_bctre) == 1 else torch.cat(blocks_bctre, 2)
        group = self.problem.group
        x = from_query_blocks(whole_bctre, group, self.rows)
        if self.blind is None:
            return x
        b, h, n, e = x.shape
        by_group = x.reshape(b, -1, group, n, e)
        return by_group.masked_fill(self.blind[:, :, None], blind).reshape(b, h, n, e)

    def _mix(self, q_bctrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None,
             slab: slice, bias: Tensor) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """A slab's output, and its log-sums [b, c, t, g block, 1] where the problem asks for them;
        in a function of its own, so that its scores go before the next's.
        """
        k_bctsd, v_bctse = self._spans(k_bcmd, slab), self._spans(v_bcme, slab)
        scores_bctrs = masked(q_bctrd @ k_bctsd.mT, bias, self.problem)
        lse = widened(scores_bctrs).logsumexp(-1, keepdim=True) if self.problem.lse else None
        return weights(scores_bctrs, sinks, self.problem) @ v_bctse, lse

    def _spans(self, x_bcmd: Tensor, slab: slice) -> Tensor:
        """The extra keys and the span of each block, in order: [b, c, t, extra + span, d]."""
        count, start = slab.stop - slab.start, self.offset + slab.start * self.block
        near = spans(x_bcmd, count, self.block, self.left, self.right, start)
        if self.extra == 0:
            return near
        extra = x_bcmd[:, :, None, : self.extra].expand(-1, -1, count, -1, -1)
        return torch.cat([extra, near], 3)
