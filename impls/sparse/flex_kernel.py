"""FlexAttention under the problem's mask, its block mask made from spans.

Legend in :mod:`impls.heads`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from impls.graph import Graph
from impls.problem import Problem
from impls.score_mask import beside_sinks, closed_log_sums, with_log_sums
from impls.spec import Unsupported

Blocks = NDArray[np.bool_]
"""A yes or no for each block of queries and keys: [b|1, h|1, q_blocks, k_blocks]."""


def mask_blocks(problem: Problem, block: int) -> tuple[Blocks, Blocks]:
    """Blocks in which a row may see a key, and those in which all rows may see all.

    Without the n x m form where the mask reads no file. A block that is cut off by the end of the
    sequence is never whole.
    """
    files = any(p.file for p in problem.mask.parts)
    return (_table_blocks if files else _span_blocks)(problem, block)


def _span_blocks(problem: Problem, block: int) -> tuple[Blocks, Blocks]:
    first, past = (x.copy() for x in problem.mask.spans(problem.shape))
    blind = past <= first
    q_blocks, k_blocks = -(-problem.q_len // block), -(-problem.kv_len // block)
    ragged = ((0, 0), (0, q_blocks * block - problem.q_len))

    def by_block(x: NDArray[np.int64], filler: int) -> NDArray[np.int64]:
        return np.pad(x, ragged, constant_values=filler).reshape(len(x), q_blocks, block)

    low = by_block(np.where(blind, problem.kv_len, first), problem.kv_len).min(-1)[..., None]
    high = by_block(np.where(blind, 0, past), 0).max(-1)[..., None]
    inner_low = by_block(first, problem.kv_len).max(-1)[..., None]
    inner_high = by_block(past, 0).min(-1)[..., None]
    start = np.arange(k_blocks) * block
    touched = (start < high) & (start + block > low)
    whole = (start >= inner_low) & (start + block <= inner_high)
    return touched[:, None], whole[:, None]


def _table_blocks(problem: Problem, block: int) -> tuple[Blocks, Blocks]:
    k_blocks = -(-problem.kv_len // block)
    touched, whole = [], []
    for start in range(0, problem.q_len, block):
        rows = np.arange(start, min(start + block, problem.q_len))
        visible = problem.mask.visible(problem.shape, rows)
        edges = ((0, 0), (0, 0), (0, block - len(rows)), (0, k_blocks * block - problem.kv_len))
        tiles = np.pad(visible, edges).reshape(*visible.shape[:2], block, k_blocks, block)
        touched.append(tiles.any((2, 4)))
        whole.append(tiles.all((2, 4)))
    return np.stack(touched, 2), np.stack(whole, 2)


ALONE: dict[str, str | int | bool | Callable[..., Any]] = {"compile_threads": 1}
"""Compiled in this thread: a pool would stay when it is done."""


def _flex_attention(q: Tensor, k: Tensor, v: Tensor, score: Callable[..., Any] | None, plan: Any,
                    scale: float, gqa: bool, kernel: Any, sinks: Tensor | None,
                    lse: bool) -> Any:  # fmt: skip
    more: Any = {} if sinks is None and not lse else {"return_aux": AuxRequest(lse=True)}
    out = flex_attention(
        q, k, v, score_mod=score, block_mask=plan, scale=scale, enable_gqa=gqa,
        kernel_options=kernel, **more,
    )  # fmt: skip
    if not more:
        return out
    out, log_sums = out[0], out[1].lse
    closed = closed_log_sums(log_sums, sinks, None) if lse else None
    return with_log_sums(out if sinks is None else beside_sinks(out, log_sums, sinks), closed)


AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


class Flex:
    """FlexAttention, compiled at the first call, under the problem's mask.

    It visits the blocks that hold a visible pair, or of those the ones that ``layout`` names.
    ``backend`` is a kernel of torch's to force, where torch would choose.
    ``alike(problem)``, by ``build(problem, graph=…)``, is this for a problem of other lengths: all
    of those share one graph.
    """

    def __init__(
        self, problem: Problem, block: int, build: Callable[..., Flex], graph: Graph | None,
        layout: Blocks | None = None, backend: str = "",
    ) -> None:  # fmt: skip
        last = problem.kv_len % block or block
        if problem.device == "cpu" and 8 in (block % 16, last % 16) and not AVX512:
            raise Unsupported(
                "on a processor without AVX-512 torch's FlexAttention is wrong where a block holds "
                f"8, 24, 40 … keys: of {problem.kv_len} keys in blocks of {block} the last block "
                f"has {last}; use another block or length"
            )
        if problem.lse and problem.device == "cpu":
            raise Unsupported(
                "on a CPU torch's FlexAttention gives no log-sum-exp; on CUDA it does, and "
                "einsum, matmul, chunked and online do anywhere"
            )
        self._graph = graph.another() if graph else Graph(_flex_attention, options=ALONE)
        self.alike = partial(build, graph=Graph(_flex_attention, lengths=True, options=ALONE))
        self._problem, self._block = problem, block
        self._kernel = {"BACKEND": backend} if backend else None
        self._score = score_mod(problem)
        may_see = problem.mask.flex_mask(problem.shape, problem.device)
        self._touched: Blocks | None = None
        self._plan: Any = None
        self._sinks: Tensor | None = None
        keys, whole = problem.kv_len, None
        if may_see is not None or layout is not None:
            touched, whole = mask_blocks(problem, block)
            self._touched = touched if layout is None else touched & layout
        if problem.sinks and problem.device == "cpu":  # torch gives no log-sums there
            self._sinks, keys = torch.zeros(problem.heads), keys + 1
            self._score = _at_last(keys - 1, self._score, self._sinks)
            if self._touched is not None and whole is not None:
                may_see = None if may_see is None else _or_last(keys - 1, may_see)
                self._touched = _with_key(self._touched, keys, block, seen=True)
                whole = _with_key(whole, keys, block, seen=False)
        if self._touched is not None and whole is not None:
            self._plan = _plan(problem, self._touched, whole, block, may_see, keys)

    def __call__(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None = None
    ) -> Any:
        """One call; the first compiles."""
        if self._sinks is not None and sinks is not None:
            k_bcmd, v_bcme = (F.pad(x, (0, 0, 0, 1)) for x in (k_bcmd, v_bcme))
            self._sinks.copy_(sinks)
            sinks = None
        return self._graph(
            q_bhnd, k_bcmd, v_bcme, self._score, self._plan, self._problem.scale,
            self._problem.group > 1, self._kernel, sinks, bool(self._problem.lse),
        )  # fmt: skip

    def note(self) -> str:
        """The number of blocks that the kernel visits."""
        if self._touched is None:
            return "FlexAttention without a block mask: every block is visited"
        visited, all_ = int(self._touched.sum()), self._touched.size
        share = f"{visited / all_:.1%}"
        return f"FlexAttention visits {visited} of {all_} blocks of {self._block} ({share})"


def score_mod(problem: Problem) -> Callable[..., Any] | None:
    """A ``score_mod`` with the problem's soft cap and what its mask adds; None for neither."""
    added, cap = problem.mask.flex_score(problem.shape, problem.device), problem.softcap
    if cap is None:
        return added

    def capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        score = cap * torch.tanh(score / cap)
        return score if added is None else added(score, b, h, q, k)

    return capped


def _at_last(last: int, score: Callable[..., Any] | None, sinks: Tensor) -> Callable[..., Any]:
    """A ``score_mod`` that gives the last key each head's sink for a score."""

    def with_sink(x: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        own = x if score is None else score(x, b, h, q, k.clamp(max=last - 1))
        return torch.where(k == last, sinks[h], own)

    return with_sink


def _or_last(last: int, may_see: Callable[..., Any]) -> Callable[..., Any]:
    """A ``mask_mod`` that lets every query see the last key too."""

    def sees(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (k == last) | may_see(b, h, q, k.clamp(max=last - 1))

    return sees


def _with_key(blocks: Blocks, keys: int, block: int, *, seen: bool) -> Blocks:
    """Blocks with those of the last key set, in a column of their own where it begins one."""
    column = np.full((*blocks.shape[:-1], 1), seen)
    return np.concatenate([blocks[..., : (keys - 1) // block], column], -1)


def _plan(problem: Problem, touched: Blocks, whole: Blocks, block: int,
          may_see: Callable[..., Any] | None, keys: int) -> Any:  # fmt: skip
    def listed(some: Blocks) -> tuple[Tensor, Tensor]:
        """The number of blocks in a row, and their places: those first, in order."""
        table = torch.from_numpy(some.copy()).to(problem.device)
        order = table.int().argsort(dim=-1, descending=True, stable=True)
        return table.sum(-1, dtype=torch.int32), order.int().contiguous()

    counts, places = listed(touched & ~whole)
    full_counts, full_places = listed(touched & whole)
    return BlockMask.from_kv_blocks(
        counts, places, full_counts, full_places, BLOCK_SIZE=block, mask_mod=may_see,
        seq_lengths=(problem.q_len, keys),
    )  # fmt: skip
