"""Attention to keys that each query selects by what they hold: what such variants share.

A selector gives ``picks`` [b, x, n, t]: for each query the numbers of t items, each ``block`` keys
long, and -1 for none. x heads select: one for all, one for each key/value head, or every head.

Legend in :mod:`impls.heads`; u items, t picked by a query, r some rows of queries, l keys of a
block, a ask: a query with one block that it picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from impls.heads import Attend, to_query_heads, widened
from impls.problem import Problem
from impls.sparse.common import need_one_sequence, softmax_rows
from impls.sparse.picks import largest
from impls.spec import Unsupported

SCORES = 1 << 20
"""Numbers that one block of rows makes, or some tiles: few enough for a cache."""
TILE = 16, 128
"""The fewest and the most queries that meet a block of keys in one product."""


Qkv = tuple[Tensor, Tensor, Tensor]


def again(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives; backward it is computed again, so that nothing inside is kept."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


class Selecting:
    """The attend of a variant that selects: its parts, and both in one call.

    ``select(q, k, **more)`` gives picks, and ``selected(q, k, v, picks, **more)`` the output;
    further inputs come by name.
    """

    name = ""
    least = 1
    """The fewest that a query can select."""

    def __init__(self, problem: Problem, block: int, top: int) -> None:
        need_one_sequence(problem, self.name)
        if block < 1:
            raise Unsupported(f"block={block} must be 1 or more: the keys of a block")
        if top < self.least:
            raise Unsupported(
                f"top={top} must be {self.least} or more: what {self.name} always takes"
            )
        self.problem, self.block = problem, block
        self.items = -(-problem.kv_len // block)
        self.count = min(top, self.items)
        self.before = problem.kv_len - problem.q_len

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, **more: Tensor) -> Tensor:
        """One call."""
        return self.selected(q_bhnd, k_bcmd, v_bcme, self.select(q_bhnd, k_bcmd, **more), **more)

    @torch.no_grad()
    def select(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> Tensor:
        """The picks, from scores in blocks of rows."""
        scores = self.scores(q_bhnd, k_bcmd, **more)
        return torch.cat([picked(each, self.count) for each in scores], 2)

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> Iterator[Tensor]:
        """Scores of the items that begin by the last of some rows, [b, x, r, u], for one block of
        rows after another.
        """
        raise NotImplementedError

    def selected(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, picks: Tensor, **more: Tensor
    ) -> Tensor:
        """The output, given the picks."""
        raise NotImplementedError

    def parts(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, **more: Tensor
    ) -> tuple[Attend, Attend]:
        """The selector, and attention to what it picked of these inputs."""
        picks = self.select(q_bhnd, k_bcmd, **more)
        return (
            lambda q, k, v, **named: self.select(q, k, **named),
            lambda q, k, v, **named: self.selected(q, k, v, picks, **named),
        )

    def row_blocks(self, numbers: int, least: int = 0) -> list[slice]:
        """Rows in blocks, where each row makes so many numbers in all heads together; ``least`` is
        how many a block makes at the least.
        """
        n = self.problem.q_len
        step = max(1, max(SCORES, least) // (self.problem.batch * max(1, numbers)))
        return [slice(start, min(start + step, n)) for start in range(0, n, step)]

    def items_of(self, rows: slice) -> int:
        """How many items begin by the last of some rows."""
        return (rows.stop - 1 + self.before) // self.block + 1

    def places(self, rows: slice, device: torch.device) -> Tensor:
        """Where some rows stand among the keys."""
        return torch.arange(rows.start, rows.stop, device=device) + self.before

    def note(self) -> str:
        """How much a query selects."""
        what = "keys" if self.block == 1 else f"blocks of {self.block} keys"
        all_ = " (all there are)" if self.count == self.items else ""
        return f"{self.count} of {self.items} {what} a query{all_}"


def picked(scores_bxru: Tensor, count: int) -> Tensor:
    """The items of the largest scores, the earlier of equal ones; -1 where a score is -inf, and
    where there are no more.
    """
    picks = largest(scores_bxru, min(count, scores_bxru.shape[-1]))
    picks = picks.masked_fill(scores_bxru.gather(-1, picks) == -torch.inf, -1)
    return F.pad(picks, (0, count - picks.shape[-1]), value=-1)


def block_means(x_bcmd: Tensor, block: int) -> Tensor:
    """The mean of each block, [b, c, u, d]; of the last as if zeros filled it up."""
    filled = F.pad(x_bcmd, (0, 0, 0, -x_bcmd.shape[2] % block))
    return filled.unflatten(2, (-1, block)).mean(3)


# ---- attention to blocks ----


class Asks(NamedTuple):
    """Every query with every block that it picked, in tiles that have one block of keys each."""

    queries_al: Tensor
    """The row of q [b h n] in each place of each tile; one past the last where it is empty."""
    blocks_a: Tensor
    """The block among those of all heads, [b c u]."""
    places_bhnt: Tensor
    """Where each pick stands among the places; one past the last for no pick."""


def asks_of(problem: Problem, picks_bxnt: Tensor, items: int, size: int) -> Asks:
    """Sorts picks by block, and cuts what asks for each block into tiles of ``size`` queries."""
    b, c, h, n = problem.batch, problem.kv_heads, problem.heads, problem.q_len
    device = picks_bxnt.device
    picks = picks_bxnt.repeat_interleave(h // picks_bxnt.shape[1], 1)
    head = torch.arange(b * h, device=device).view(b, h, 1, 1) // problem.group
    wanted = torch.where(picks >= 0, head * items + picks, b * c * items).flatten()
    order = wanted.argsort(stable=True)
    counts = torch.bincount(wanted, minlength=b * c * items + 1)
    tiles = -(-counts[:-1] // size)
    first_tile, first_ask = tiles.cumsum(0) - tiles, counts.cumsum(0) - counts
    order = order[: int(counts[:-1].sum())]
    block = wanted[order]
    rank = torch.arange(len(order), device=device) - first_ask[block]
    place = first_tile[block] * size + rank
    total = int(tiles.sum())
    queries = torch.full((total * size,), b * h * n, device=device)
    queries[place] = order // picks.shape[-1]
    places = torch.full_like(wanted, total * size)
    places[order] = place
    of_tiles = torch.arange(len(tiles), device=device).repeat_interleave(tiles)
    return Asks(queries.view(total, size), of_tiles, places.view(picks.shape))


def attend_blocks(
    problem: Problem, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, picks_bxnt: Tensor, block: int
) -> Tensor:
    """Causal softmax attention of each query over the blocks that it picked, in a wide dtype.

    Each block of keys meets all the queries that picked it, a tile of them at a time; what a query
    got from its blocks is then one softmax, by their maxima and sums.
    """
    q, k, v = (widened(x) for x in (q_bhnd, k_bcmd, v_bcme))
    b, h, n, d = q.shape
    items = -(-problem.kv_len // block)
    size = min(max(block, TILE[0]), TILE[1])
    asks = asks_of(problem, picks_bxnt, items, size)
    tables = [
        F.pad(x, (0, 0, 0, -x.shape[2] % block)).reshape(-1, block * x.shape[-1]) for x in (k, v)
    ]
    rows = F.pad(q.reshape(b * h * n, d) * problem.scale, (0, 0, 0, 1))
    row = asks.queries_al
    before = problem.kv_len - n
    at = torch.where(row < b * h * n, row % n + before, items * block)  # an empty place sees all
    step = max(1, SCORES // (size * (block + d)))
    tiles = zip(*(x.split(step) for x in (row, at, asks.blocks_a)), strict=True)
    parts = [again(_tiles, rows, *tables, *some, block, items) for some in tiles]
    out, total, most = (torch.cat(some) for some in zip(*parts, strict=True))
    return _combined(out, total, most, asks.places_bhnt)


def _tiles(
    rows_xd: Tensor,
    k_ux: Tensor,
    v_ux: Tensor,
    row_al: Tensor,
    at_al: Tensor,
    block_a: Tensor,
    block: int,
    items: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each place of some tiles: the weighted values, the sum of weights, and their maximum."""
    q = F.embedding(row_al, rows_xd)
    k, v = (F.embedding(block_a, x).unflatten(-1, (block, -1)) for x in (k_ux, v_ux))
    key = (block_a % items * block)[:, None] + torch.arange(block, device=block_a.device)
    scores = (q @ k.mT).masked_fill(key[:, None] > at_al[..., None], -torch.inf)
    most = scores.detach().amax(-1, keepdim=True)
    weights = (scores - most).exp()
    out = (weights @ v).flatten(0, 1)
    return out, weights.sum(-1).flatten(), most.flatten()


def _combined(out_se: Tensor, total_s: Tensor, most_s: Tensor, places_bhnt: Tensor) -> Tensor:
    """Each query's share of its places, in one softmax: [b, h, n, e]."""
    most = F.pad(most_s, (0, 1), value=-torch.inf)[places_bhnt]
    factor = (most - most.amax(-1, keepdim=True)).exp()
    sums = (F.pad(total_s, (0, 1))[places_bhnt] * factor).sum(-1, keepdim=True)
    table = F.pad(out_se, (0, 0, 0, 1))
    t = places_bhnt.shape[-1]
    out = F.embedding_bag(
        places_bhnt.reshape(-1, t), table, per_sample_weights=factor.view(-1, t), mode="sum"
    )
    return out.view(*places_bhnt.shape[:3], -1) / sums


# ---- definitions ----


class Defined:
    """The plain form: all pairs, those that were not selected at -inf; in any dtype.

    Without ``picks`` it selects by its own scores in the dtype of the problem.
    """

    def __init__(self, problem: Problem, block: int, top: int) -> None:
        self.problem, self.block = problem, max(block, 1)
        self.items = -(-problem.kv_len // self.block)
        self.count = min(max(top, 1), self.items)

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """Scores of all items for some rows, [b, x, r, u]: inf for what is always selected, -inf
        for what never is.
        """
        raise NotImplementedError

    def picks(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """Its own picks for some rows."""
        own = getattr(torch, self.problem.dtype)
        q, k = (x.detach().to(own) for x in (q_bhnd, k_bcmd))
        named = {name: x.detach().to(own) for name, x in more.items()}
        return picked(self.scores(q, k, rows, **named), self.count)

    def pairs(self, picks_bxrt: Tensor) -> Tensor:
        """The pairs that picks stand for, whether the mask hides them or not: [b, h, r, m]."""
        items = picks_bxrt.new_zeros((*picks_bxrt.shape[:3], self.items + 1), dtype=torch.bool)
        items.scatter_(-1, picks_bxrt.remainder(self.items + 1), True)  # -1 falls on the last
        keys = items[..., :-1].repeat_interleave(self.block, -1)[..., : self.problem.kv_len]
        return keys.repeat_interleave(self.problem.heads // keys.shape[1], 1)

    def places(self, rows: Tensor) -> Tensor:
        """Where some rows stand among the keys: [r, 1]."""
        return rows[:, None] + self.problem.kv_len - self.problem.q_len

    def block_means(self, x_bcmd: Tensor) -> Tensor:
        """The mean of each block by a loop over blocks, by query heads: [b, h, u, d]."""
        means = torch.stack([x.mean(2) for x in x_bcmd.split(self.block, 2)], 2)
        return to_query_heads(means, self.problem)

    def output(self, qkv: Qkv, rows: Tensor, pairs: Tensor, **more: Tensor) -> Tensor:
        """The output of some rows on some pairs: [b, h, r, e]."""
        return softmax_rows(self.problem, *qkv, rows, pairs)

    def __call__(
        self,
        q_bhnd: Tensor,
        k_bcmd: Tensor,
        v_bcme: Tensor,
        rows: Tensor,
        picks: Tensor | None = None,
        **more: Tensor,
    ) -> Tensor:
        """The output of some rows; ``picks`` are of these rows."""
        if picks is None:
            picks = self.picks(q_bhnd, k_bcmd, rows, **more)
        return self.output((q_bhnd, k_bcmd, v_bcme), rows, self.pairs(picks), **more)
