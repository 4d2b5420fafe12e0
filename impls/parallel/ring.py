"""Ring attention (Liu, Zaharia and Abbeel, arXiv:2310.01889), exact, forward and backward.

Each of W processes holds the queries, keys and values of n / W tokens. Keys and values travel round
the ring; after W steps every query has met every key that it may see. Step i leaves

    o_i = softmax(s_i) v_i        lse_i = log sum exp s_i        s_i = q k_i^T d^-1/2

and the steps add up to the whole softmax by their log-sums, in float32 or wider:

    lse = log sum_i exp lse_i      out = sum_i exp(lse_i - lse) o_i

Backward the same ring goes round again: the weights come back as exp(s_i - lse), dq stays at home,
and dk and dv travel with the keys that they belong to.

    dv_i = p_i^T do      ds_i = p_i (do v_i^T - do.out) d^-1/2
    dq = sum_i ds_i k_i      dk_i = ds_i^T q

The share of a rank is a piece from either end of the sequence (:mod:`impls.parallel.shares`), early
and late. Under a causal mask keys from a rank before show their early piece to all queries here,
and keys from a rank behind show both their pieces to the late queries: what nobody sees is not
computed, and each rank has as many pairs as the next. The next keys are under way while the present
ones are used.

Cost: 4 n m d / W FLOPs a head forward on each rank, half of that causal; scores of ``block``
queries at a time. Sent by each rank, K and V the bytes of its own keys and values: forward
(W-1)(K + V); backward (W-1)(K + V) and W times the bytes of dk and dv, which travel in float32 or
wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from impls.heads import Attend, grouped, ungrouped, wide
from impls.parallel.ranks import Coming, Ranks
from impls.problem import Problem
from impls.score_mask import with_log_sums
from impls.spec import at_least


class Tile(NamedTuple):
    """Some of the queries here against some of the keys that are here now."""

    rows: slice
    keys: slice
    hidden: Tensor | None
    """The bias of the scores, where a mask cuts through; by grouped rows."""


class Block:
    """Keys and values of one rank in one tensor, as they travel; or their gradients."""

    def __init__(self, flat: Tensor, problem: Problem, length: int) -> None:
        self.flat = flat
        b, c = problem.batch, problem.kv_heads
        keys = b * c * length * problem.head_dim
        self.k_bcmd = flat[:keys].view(b, c, length, problem.head_dim)
        self.v_bcme = flat[keys:].view(b, c, length, problem.v_head_dim)


class Ring:
    """One rank's part: its tokens, and what of each block of keys they see."""

    def __init__(self, problem: Problem, ranks: Ranks, block: int) -> None:
        self.problem, self.ranks, self.size = problem, ranks, block
        self.length = problem.q_len // ranks.world
        self.causal = not problem.mask.plain
        self.wide = wide(problem)
        self._own = list(self._cut_by_the_mask()) if self.causal else []

    def tiles(self, source: int) -> list[Tile]:
        """The visible tiles among the keys that come from a rank."""
        half, length = self.length // 2, self.length
        if not self.causal:
            return list(self._tiles(0, length, slice(0, length)))
        if source == self.ranks.rank:
            return self._own
        if source < self.ranks.rank:
            return list(self._tiles(0, length, slice(0, half)))
        return list(self._tiles(half, length, slice(0, length)))

    def _tiles(self, start: int, stop: int, keys: slice) -> Iterator[Tile]:
        for row in range(start, stop, self.size):
            yield Tile(slice(row, min(row + self.size, stop)), keys, None)

    def _cut_by_the_mask(self) -> Iterator[Tile]:
        """The rank's own keys: early before late, so a query sees those up to its own place."""
        device, dtype = self.problem.device, getattr(torch, self.problem.dtype)
        size = min(self.size, self.length)
        hidden = torch.full((size, size), -torch.inf, device=device, dtype=dtype).triu_(1)
        for rows, *_ in self._tiles(0, self.length, slice(0, 0)):
            if rows.start:
                yield Tile(rows, slice(0, rows.start), None)
            size = rows.stop - rows.start
            yield Tile(rows, rows, hidden[:size, :size].repeat(self.problem.group, 1))

    def block(self, *parts: Tensor) -> Block:
        """Keys and values, or their gradients, as one tensor."""
        return Block(torch.cat([x.reshape(-1) for x in parts]), self.problem, self.length)

    def scores(self, q_bcrd: Tensor, block: Block, tile: Tile) -> Tensor:
        """Scores of one tile in the wide dtype: [b, c, g n, m]."""
        scores = (q_bcrd @ block.k_bcmd[:, :, tile.keys].mT).to(self.wide)
        scores = scores.mul_(self.problem.scale)
        return scores if tile.hidden is None else scores.add_(tile.hidden)

    def forward(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sums of the queries here, both wide."""
        b, h, n, _ = q_bhnd.shape
        out = q_bhnd.new_zeros(b, h, n, self.problem.v_head_dim, dtype=self.wide)
        lse = q_bhnd.new_full((b, h, n, 1), -torch.inf, dtype=self.wide)
        block = self.block(k_bcmd, v_bcme)
        for step in range(self.ranks.world):
            coming = self._next(block, step)
            for tile in self.tiles((self.ranks.rank - step) % self.ranks.world):
                self._add(out[:, :, tile.rows], lse[:, :, tile.rows], q_bhnd, block, tile)
            if coming is not None:
                block = self.block(coming.wait())
        return out, lse

    def _next(self, block: Block, step: int) -> Coming | None:
        """Hand the keys on, but for the last step: then everybody has seen them."""
        return self.ranks.rotate(block.flat) if step < self.ranks.world - 1 else None

    def _add(self, out: Tensor, lse: Tensor, q_bhnd: Tensor, block: Block, tile: Tile) -> None:
        """Adds a tile's part to its rows."""
        scores = self.scores(grouped(q_bhnd[:, :, tile.rows], self.problem), block, tile)
        sums = scores.logsumexp(-1, keepdim=True)
        weights = scores.sub_(sums).exp_().to(q_bhnd.dtype)
        values = ungrouped((weights @ block.v_bcme[:, :, tile.keys]).to(self.wide), self.problem)
        more = ungrouped(sums, self.problem)
        both = torch.logaddexp(lse, more)
        out.mul_((lse - both).exp_()).add_(values.mul_((more - both).exp_()))
        lse.copy_(both)

    def backward(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, out: Tensor, lse: Tensor,
                 dout_bhne: Tensor, *dlse_bhn: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
        """dq, dk and dv of this rank's share."""
        delta = (dout_bhne.to(self.wide) * out).sum(-1, keepdim=True)
        for each in dlse_bhn:
            delta -= each[..., None]
        dq = torch.zeros_like(q_bhnd, dtype=self.wide)
        block, home = self.block(k_bcmd, v_bcme), None
        for step in range(self.ranks.world):
            coming = self._next(block, step)
            gradients = self.block(torch.zeros_like(block.flat, dtype=self.wide))
            for tile in self.tiles((self.ranks.rank - step) % self.ranks.world):
                self._differentiate(tile, block, gradients, dq, q_bhnd, dout_bhne, lse, delta)
            if home is not None:
                gradients.flat.add_(home.wait())
            home = self.ranks.rotate(gradients.flat)
            if coming is not None:
                block = self.block(coming.wait())
        assert home is not None
        own = self.block(home.wait())
        return dq.to(q_bhnd.dtype), own.k_bcmd.to(k_bcmd.dtype), own.v_bcme.to(v_bcme.dtype)

    def _differentiate(self, tile: Tile, block: Block, gradients: Block, dq: Tensor, q_bhnd: Tensor,
                       dout_bhne: Tensor, lse: Tensor, delta: Tensor) -> None:  # fmt: skip
        """A tile's part of dq, and of the dk and dv that travel."""
        q, dout, sums, dots = (
            grouped(x[:, :, tile.rows], self.problem) for x in (q_bhnd, dout_bhne, lse, delta)
        )
        keys = block.k_bcmd[:, :, tile.keys]
        weights = self.scores(q, block, tile).sub_(sums).exp_()
        gradients.v_bcme[:, :, tile.keys] += weights.to(q.dtype).mT @ dout
        steps = (dout @ block.v_bcme[:, :, tile.keys].mT).to(self.wide)
        steps = steps.sub_(dots).mul_(weights).mul_(self.problem.scale).to(q.dtype)
        dq[:, :, tile.rows] += ungrouped(steps @ keys, self.problem)
        gradients.k_bcmd[:, :, tile.keys] += steps.mT @ q


class _Attention(torch.autograd.Function):
    """The ring as autograd sees it: a rank's share in, a rank's share out."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, q: Tensor, k: Tensor, v: Tensor) -> Any:
        out, lse = ring.forward(q, k, v)
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, out, lse)
        return with_log_sums(out.to(q.dtype), lse[..., 0].clone() if ring.problem.lse else None)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.ring.backward(*ctx.saved_tensors, *above))


def build(problem: Problem, ranks: Ranks, block: int) -> Attend:
    """Legend in :mod:`impls.heads`; n and m are of one rank's share."""
    at_least("block", block, 1)
    ring = Ring(problem, ranks, block)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        return _Attention.apply(ring, q_bhnd, k_bcmd, v_bcme)  # type: ignore[no-untyped-call]

    return attend
