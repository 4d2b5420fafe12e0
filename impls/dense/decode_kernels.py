"""triton.decode: the keys split over programs, and their parts put together.

Steps between tokens are multiplied in 64 bits, as in triton.flash.
"""

from __future__ import annotations

import triton
import triton.language as tl

from impls.jit_kernels import align


@triton.jit
def visible(scores, place, past, at, left, right, LEFT: tl.constexpr,
            RIGHT: tl.constexpr):  # fmt: skip
    """Scores of keys that the queries, which stand at ``at``, may see."""
    inside = (place < past)[None, :]
    if LEFT:
        inside &= place[None, :] >= at[:, None] - left
    if RIGHT:
        inside &= place[None, :] <= at[:, None] + right
    return tl.where(inside, scores, float("-inf"))


@triton.jit
def scaled(p, v_block, v_scale, PRECISION: tl.constexpr):
    """Weights by values in 8 bits: by the block's largest scale, so that float16 holds them."""
    largest = tl.max(v_scale, 0)
    p *= (v_scale / largest)[None, :]
    return tl.dot(p.to(v_block.dtype), v_block, input_precision=PRECISION) * largest


@triton.jit
def read_keys(q, k, v, k_scales, v_scales, parts, tops, totals, q_steps, k_steps, v_steps, kv_heads,
              group, queries, keys, begin, end, shift, left, right, scale, splits, share,
              ROWS: tl.constexpr, K_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
              LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALED: tl.constexpr,
              PRECISION: tl.constexpr):  # fmt: skip
    """One share of one head's keys, for ROWS rows: its maxima, sums and output, not yet divided.

    The rows are the queries of all heads that the key/value head serves, so each key is read once.
    SCALED: k and v are a cache in 8 bits, token after token, with room for ``keys`` of them.
    """
    split, which = tl.program_id(0) % splits, tl.program_id(0) // splits
    rows = group * queries
    blocks = tl.cdiv(rows, ROWS)
    first, which = (which % blocks) * ROWS, which // blocks
    batch, kv_head = tl.cast(which // kv_heads, tl.int64), tl.cast(which % kv_heads, tl.int64)
    row, d = first + tl.arange(0, ROWS), tl.arange(0, D)
    query, head = row % queries, kv_head * group + row // queries
    k_step = HEAD_DIM if SCALED else align(k_steps[2], HEAD_DIM)
    v_step = HEAD_DIM if SCALED else align(v_steps[2], HEAD_DIM)
    q_at = batch * align(q_steps[0], HEAD_DIM) + head * align(q_steps[1], HEAD_DIM)
    q_at += query * tl.cast(align(q_steps[2], HEAD_DIM), tl.int64)
    own = (row < rows)[:, None] & (d < HEAD_DIM)[None, :]
    block = tl.load(q + q_at[:, None] + d[None, :], mask=own, other=0.0)
    k_at = k + batch * align(k_steps[0], HEAD_DIM) + kv_head * align(k_steps[1], HEAD_DIM)
    v_at = v + batch * align(v_steps[0], HEAD_DIM) + kv_head * align(v_steps[1], HEAD_DIM)
    scales_at = (batch * kv_heads + kv_head) * keys
    output = tl.zeros([ROWS, D], tl.float32)
    total, top = tl.zeros([ROWS], tl.float32), tl.full([ROWS], float("-inf"), tl.float32)
    here, past = begin + split * share, tl.minimum(begin + split * share + share, end)
    key = tl.arange(0, K_BLOCK)
    for start in tl.range(here, past, K_BLOCK):
        place = start + key
        there = (place < past)[:, None] & (d < HEAD_DIM)[None, :]
        at = key[:, None] * k_step + d[None, :]
        k_block = tl.load(k_at + start * tl.cast(k_step, tl.int64) + at, mask=there, other=0.0)
        k_block = k_block.to(block.dtype)
        scores = tl.dot(block, tl.trans(k_block), input_precision=PRECISION) * scale
        if SCALED:
            k_scale = tl.load(k_scales + scales_at + place, mask=place < past, other=0.0)
            v_scale = tl.load(v_scales + scales_at + place, mask=place < past, other=0.0)
            scores *= k_scale[None, :]
        scores = visible(scores, place, past, query + shift, left, right, LEFT, RIGHT)
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet
        p = tl.math.exp2(scores - base[:, None])
        decay = tl.math.exp2(top - base)
        at = key[:, None] * v_step + d[None, :]
        v_block = tl.load(v_at + start * tl.cast(v_step, tl.int64) + at, mask=there, other=0.0)
        v_block = v_block.to(block.dtype)
        total = total * decay + tl.sum(p, 1)
        output *= decay[:, None]
        if SCALED:
            output += scaled(p, v_block, v_scale, PRECISION)
        else:
            output = tl.dot(p.to(block.dtype), v_block, output, input_precision=PRECISION)
        top = higher
    at = (tl.cast(which, tl.int64) * rows + row) * splits + split
    tl.store(tops + at, top, mask=row < rows)
    tl.store(totals + at, total, mask=row < rows)
    tl.store(parts + at[:, None] * HEAD_DIM + d[None, :], output, mask=own)


@triton.jit
def put_together(parts, tops, totals, out, splits, SPLITS: tl.constexpr, TILE: tl.constexpr,
                 HEAD_DIM: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """One row: its parts under one maximum, divided by the sum of all; zeros where none saw."""
    row = tl.cast(tl.program_id(0), tl.int64)
    split, d = tl.arange(0, SPLITS), tl.arange(0, D)
    at, there = row * splits + split, split < splits
    top = tl.load(tops + at, mask=there, other=float("-inf"))
    total = tl.load(totals + at, mask=there, other=0.0)
    highest = tl.max(top, 0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    whole = tl.sum(total * tl.math.exp2(top - highest), 0)
    output = tl.zeros([D], tl.float32)
    for first in tl.range(0, splits, TILE):
        one = first + tl.arange(0, TILE)
        here = row * splits + one
        weight = tl.load(tops + here, mask=one < splits, other=float("-inf"))
        weight = tl.math.exp2(weight - highest)
        own = (one < splits)[:, None] & (d < HEAD_DIM)[None, :]
        part = tl.load(parts + here[:, None] * HEAD_DIM + d[None, :], mask=own, other=0.0)
        output += tl.sum(part * weight[:, None], 0)
    output /= tl.where(whole == 0.0, 1.0, whole)
    tl.store(out + row * HEAD_DIM + d, output.to(out.dtype.element_ty), mask=d < HEAD_DIM)


@triton.jit
def keep_rows(x, cache, scales, which, first, x_steps, kv_heads, tokens, start, room,
              TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, LARGEST: tl.constexpr,
              WHOLE: tl.constexpr):  # fmt: skip
    """Some rows of one head in 8 bits, and their scales."""
    batch, head = tl.cast(which // kv_heads, tl.int64), tl.cast(which % kv_heads, tl.int64)
    row, d = first + tl.arange(0, TOKENS), tl.arange(0, D)
    inside = (row < tokens)[:, None] & (d < HEAD_DIM)[None, :]
    at = batch * align(x_steps[0], HEAD_DIM) + head * align(x_steps[1], HEAD_DIM)
    at += row[:, None] * tl.cast(align(x_steps[2], HEAD_DIM), tl.int64) + d[None, :]
    block = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.math.div_rn(tl.max(tl.abs(block), 1), tl.full([TOKENS], LARGEST, tl.float32))
    scale = tl.where(scale == 0.0, 1.0, scale)
    block = tl.math.div_rn(block, tl.broadcast_to(scale[:, None], [TOKENS, D]))
    if WHOLE:  # to the nearest: at this size float32 holds no fractions
        block = (block + 12582912.0) - 12582912.0
    place = (batch * kv_heads + head) * room + start + row
    tl.store(cache + place[:, None] * HEAD_DIM + d[None, :], block.to(cache.dtype.element_ty),
             mask=inside)  # fmt: skip
    tl.store(scales + place, scale, mask=row < tokens)


@triton.jit
def keep(k, v, cache_k, cache_v, k_scales, v_scales, k_steps, v_steps, kv_heads, tokens, start,
         room, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
         LARGEST: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """Tokens of one head's keys and values into the cache, from ``start`` on."""
    blocks = tl.cdiv(tokens, TOKENS)
    first, which = (tl.program_id(0) % blocks) * TOKENS, tl.program_id(0) // blocks
    keep_rows(k, cache_k, k_scales, which, first, k_steps, kv_heads, tokens, start, room, TOKENS,
              HEAD_DIM, D, LARGEST, WHOLE)  # fmt: skip
    keep_rows(v, cache_v, v_scales, which, first, v_steps, kv_heads, tokens, start, room, TOKENS,
              HEAD_DIM, D, LARGEST, WHOLE)  # fmt: skip
