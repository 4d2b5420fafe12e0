"""Few queries on many keys in Triton, ours: the keys split over programs (flash-decoding).

One query has too few rows to keep a GPU busy, so each head's keys are dealt out to programs, as
many as end at nearly the same time; each keeps a maximum, a sum and an output of its share, and a
second kernel puts them together. The query heads of one key/value head stand as rows of one block,
so every key is read once. Masks: none, causal and window; keys that no query sees are not read.

To copy at 4.2 TB/s, 132 processors that wait 700 ns for memory need 22 KB under way on each (the
product of the two, shared out). Of the two stages that a program loads ahead each is 32 KB at width
128, and three programs share a processor.

``triton.decode8`` keeps its cache in 8 bits, with a float32 scale a token and head:

    scale_m = max |k_m| / 127 for int8, / 448 for fp8 (e4m3)      kept_m = k_m / scale_m, rounded

and the same of v; a row of zeros has scale 1. The tokens before are rounded by ``remember``, which
no time counts, the new ones by the step. Scores and weights are multiplied by the scales, so that
a number is only widened. What it computes is softmax attention over the rounded keys and values:
that is its definition.

Cost: 4 n m d FLOPs a head; the bytes of the cache, d + 4 a token and head for each of k and v in 8
bits; float32 parts, d + 2 a row and share.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from impls.dense.common import over
from impls.heads import Define
from impls.jit import (
    band,
    capability,
    fitting,
    kernels,
    power,
    precision,
    processors,
    rows_of,
    steps,
)
from impls.problem import Problem
from impls.spec import Unsupported

K_BLOCK: dict[int | str, dict[int, int]] = {
    "int8": {64: 128, 128: 64, 256: 32},
    "fp8": {64: 64, 128: 32, 256: 16},
    2: {64: 128, 128: 64, 256: 32},
    4: {64: 64, 128: 32, 256: 16},
}
"""Keys at a time, by the cache or a number's bytes, and head_dim: registers hold them unspilled."""
MOST_SPLITS = 128
SIDE_BY_SIDE = 3
"""Programs on a processor: what a block's shared memory lets in."""
BEGINNING = 4
"""The time of a program's beginning and end, in blocks of keys."""
CACHE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LARGEST = {"int8": 127.0, "fp8": 448.0}
LEAST_FP8 = 89
"""The capability from which a GPU widens e4m3 in one instruction."""


class Cache(NamedTuple):
    """Keys and values in 8 bits with room for all, their scales, and how many tokens are there."""

    k_bcmd: Tensor
    v_bcmd: Tensor
    k_scales_bcm: Tensor
    v_scales_bcm: Tensor
    tokens: int


class Decode:
    """``attend``, and how its kernels are launched."""

    def __init__(self, problem: Problem, splits: int, row: str, storage: int | str) -> None:
        if splits < 0 or splits > MOST_SPLITS:
            raise Unsupported(f"splits={splits} must be 1 to {MOST_SPLITS}, or 0 for what fits")
        self.kernels = kernels("impls.dense.decode_kernels", row, problem)
        self.problem, self.band = problem, band(problem)
        rows, d = problem.group * problem.q_len, problem.head_dim
        self.k_block = next(b for most, b in K_BLOCK[storage].items() if d <= most)
        self.row_block = min(power(rows), 64 if problem.item_bytes == 2 else 16)
        self.heads = problem.batch * problem.kv_heads * -(-rows // self.row_block)
        begin, end, _ = self._span(problem.kv_len)
        blocks = -(-max(end - begin, 1) // self.k_block)
        share = -(-blocks // min(splits or self._splits(blocks), blocks))
        self.share, self.parts = share * self.k_block, -(-blocks // share)
        self.widths = {"HEAD_DIM": d, "D": power(d)}

    def _splits(self, blocks: int) -> int:
        """Into how many shares: what ends first, in rounds of the device by the longest share."""
        room = SIDE_BY_SIDE * processors(self.problem.device)

        def time_of(splits: int) -> int:
            share = -(-blocks // splits)
            rounds = -(-self.heads * -(-blocks // share) // room)
            return rounds * (share + BEGINNING)

        return min(range(1, min(blocks, MOST_SPLITS) + 1), key=time_of)

    def _span(self, keys: int) -> tuple[int, int, int]:
        """The first visible key of so many, and past the last; the place of the queries."""
        n, (_, left, right) = self.problem.q_len, self.band
        shift = 0 if self.problem.mask.upper_left else keys - n
        begin = max(shift - left, 0) if left >= 0 else 0
        return begin, min(max(n + shift + right, 0), keys) if right >= 0 else keys, shift

    @fitting("triton.decode")
    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor) -> Tensor:
        """All tokens' keys and values as they are."""
        return self._read(q_bhnd, rows_of(k_bcmd), rows_of(v_bcmd), self.problem.kv_len)

    def note(self) -> str:
        """The shares of the keys."""
        return f"{self.parts} shares of {self.share} keys"

    def _read(self, q_bhnd: Tensor, k: Tensor, v: Tensor, keys: int,
              scales: tuple[Tensor, Tensor] | None = None) -> Tensor:  # fmt: skip
        problem, q, parts = self.problem, rows_of(q_bhnd), self.parts
        n, d = problem.q_len, problem.head_dim
        begin, end, shift = self._span(keys)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        parts_rsd = q.new_empty((*q.shape[:3], parts, d), dtype=torch.float32)
        tops, totals = q.new_empty((2, *q.shape[:3], parts), dtype=torch.float32)
        self.kernels.read_keys[(self.heads * parts,)](
            q, k, v, *(scales or (tops, tops)), parts_rsd, tops, totals, steps(q), steps(k),
            steps(v), problem.kv_heads, problem.group, n, problem.kv_len, begin, end, shift,
            self.band.left, self.band.right, problem.scale * math.log2(math.e), parts, self.share,
            ROWS=self.row_block, K_BLOCK=self.k_block, LEFT=self.band.left >= 0,
            RIGHT=self.band.right >= 0, SCALED=scales is not None, PRECISION=precision(q.dtype),
            num_warps=4, num_stages=3, **self.widths,
        )  # fmt: skip
        self.kernels.put_together[(problem.batch * problem.heads * n,)](
            parts_rsd, tops, totals, out, parts, SPLITS=power(parts, 1), TILE=16, **self.widths
        )
        return out


class Decode8(Decode):
    """The same over a cache in 8 bits."""

    def __init__(self, problem: Problem, splits: int) -> None:
        cache = problem.kv_dtype or ""
        if cache not in CACHE_DTYPES:
            able = ", ".join(CACHE_DTYPES)
            raise Unsupported(f"triton.decode8 takes kv_dtype {able}, not {cache or 'none'}")
        if cache == "fp8" and capability(problem.device) < LEAST_FP8:
            raise Unsupported(
                "kv_dtype=fp8 needs compute capability 8.9 or more; int8 runs from 8.0"
            )
        if problem.q_len > problem.kv_len:
            raise Unsupported(f"q_len={problem.q_len} new tokens need kv_len to be as many or more")
        super().__init__(problem, splits, "triton.decode8", cache)
        self.cache = cache

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor) -> Tensor:
        """From a cache that is made first."""
        past = self.problem.kv_len - self.problem.q_len
        memory = self.remember(k_bcmd[:, :, :past], v_bcmd[:, :, :past])
        return self.step(q_bhnd, k_bcmd[:, :, past:], v_bcmd[:, :, past:], memory)[0]

    @torch.no_grad()
    def remember(self, k_bcmd: Tensor, v_bcmd: Tensor) -> Cache:
        """These tokens in 8 bits, with room for all."""
        p = self.problem
        room, dtype = (p.batch, p.kv_heads, p.kv_len), CACHE_DTYPES[self.cache]
        k, v = k_bcmd.new_zeros((2, *room, p.head_dim), dtype=dtype)
        scales = torch.ones(2, *room, device=k.device)
        return self._append(k_bcmd, v_bcmd, Cache(k, v, scales[0], scales[1], 0))

    @torch.no_grad()
    @fitting("triton.decode8")
    def step(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor,
             memory: Cache) -> tuple[Tensor, Cache]:  # fmt: skip
        """Round the new tokens into the cache's room, and attend."""
        after = self._append(k_bcmd, v_bcmd, memory)
        scales = after.k_scales_bcm, after.v_scales_bcm
        return self._read(q_bhnd, after.k_bcmd, after.v_bcmd, after.tokens, scales), after

    def _append(self, k_bcmd: Tensor, v_bcmd: Tensor, memory: Cache) -> Cache:
        k, v, tokens = rows_of(k_bcmd), rows_of(v_bcmd), k_bcmd.shape[2]
        heads = self.problem.batch * self.problem.kv_heads
        if tokens:
            block = min(power(tokens, 1), 16)
            self.kernels.keep[(heads * -(-tokens // block),)](
                k, v, *memory[:4], steps(k), steps(v), self.problem.kv_heads, tokens,
                memory.tokens, self.problem.kv_len, TOKENS=block, LARGEST=LARGEST[self.cache],
                WHOLE=self.cache == "int8", **self.widths,
            )  # fmt: skip
        return memory._replace(tokens=memory.tokens + tokens)


def build(problem: Problem, splits: int) -> Decode:
    """``splits`` of 0 is what ends first."""
    return Decode(problem, splits, "triton.decode", problem.item_bytes)


build8 = Decode8


def definition8(problem: Problem, splits: int) -> Define:
    """Softmax attention over keys and values that were rounded to 8 bits and widened again."""
    cache = problem.kv_dtype or ""

    def rounded(x_bcmd: Tensor) -> Tensor:
        x = x_bcmd.float()
        scale = x.abs().amax(-1, keepdim=True) / LARGEST[cache]
        scale = torch.where(scale == 0, 1.0, scale)
        x = (x / scale).round() if cache == "int8" else (x / scale).to(CACHE_DTYPES[cache]).float()
        return (x.double() * scale.double()).to(x_bcmd.dtype)

    return over(problem, rounded)
