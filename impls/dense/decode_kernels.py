"""triton.decode: the keys split over programs, and their parts put together.

Steps between tokens are multiplied in 64 bits, as in triton.flash.
"""

from __future__ import annotations

import triton
import triton.language as tl

from impls.jit_kernels import known


@triton.jit
def read_keys(q, k, v, parts, tops, totals, q_steps, k_steps, v_steps, kv_heads, group, queries,
              keys, begin, end, shift, left, right, scale, splits, share, ROWS: tl.constexpr,
              K_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, LEFT: tl.constexpr,
              RIGHT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """One share of one head's keys, for ROWS rows: its maxima, sums and output, not yet divided.

    The rows are the queries of all heads that the key/value head serves, so each key is read once.
    """
    split, which = tl.program_id(0) % splits, tl.program_id(0) // splits
    rows = group * queries
    blocks = tl.cdiv(rows, ROWS)
    first, which = (which % blocks) * ROWS, which // blocks
    batch, kv_head = tl.cast(which // kv_heads, tl.int64), tl.cast(which % kv_heads, tl.int64)
    row, d = first + tl.arange(0, ROWS), tl.arange(0, D)
    query = row % queries
    head = kv_head * group + row // queries
    q_step, k_step, v_step = (
        known(q_steps[2], HEAD_DIM), known(k_steps[2], HEAD_DIM), known(v_steps[2], HEAD_DIM)
    )  # fmt: skip
    q_at = batch * known(q_steps[0], HEAD_DIM) + head * known(q_steps[1], HEAD_DIM)
    q_at += query * tl.cast(q_step, tl.int64)
    own = (row < rows)[:, None] & (d < HEAD_DIM)[None, :]
    block = tl.load(q + q_at[:, None] + d[None, :], mask=own, other=0.0)
    k_at = k + batch * known(k_steps[0], HEAD_DIM) + kv_head * known(k_steps[1], HEAD_DIM)
    v_at = v + batch * known(v_steps[0], HEAD_DIM) + kv_head * known(v_steps[1], HEAD_DIM)
    made = tl.zeros([ROWS, D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    here = begin + split * share
    past = tl.minimum(here + share, end)
    key = tl.arange(0, K_BLOCK)
    for start in tl.range(here, past, K_BLOCK):
        place = start + key
        there = (place < past)[:, None] & (d < HEAD_DIM)[None, :]
        at = key[:, None] * k_step + d[None, :]
        k_block = tl.load(k_at + start * tl.cast(k_step, tl.int64) + at, mask=there, other=0.0)
        scores = tl.dot(block, tl.trans(k_block), input_precision=PRECISION) * scale
        seen = (place < past)[None, :]
        if LEFT:
            seen &= place[None, :] >= query[:, None] + shift - left
        if RIGHT:
            seen &= place[None, :] <= query[:, None] + shift + right
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet
        p = tl.math.exp2(scores - base[:, None])
        kept = tl.math.exp2(top - base)
        at = key[:, None] * v_step + d[None, :]
        v_block = tl.load(v_at + start * tl.cast(v_step, tl.int64) + at, mask=there, other=0.0)
        total = total * kept + tl.sum(p, 1)
        made = tl.dot(p.to(v_block.dtype), v_block, made * kept[:, None], input_precision=PRECISION)
        top = higher
    at = (tl.cast(which, tl.int64) * rows + row) * splits + split
    tl.store(tops + at, top, mask=row < rows)
    tl.store(totals + at, total, mask=row < rows)
    tl.store(parts + at[:, None] * HEAD_DIM + d[None, :], made, mask=own)


@triton.jit
def put_together(parts, tops, totals, out, splits, SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr,
                 D: tl.constexpr):  # fmt: skip
    """One row: its parts under one maximum, divided by the sum of all; zeros where none saw."""
    row = tl.cast(tl.program_id(0), tl.int64)
    split, d = tl.arange(0, SPLITS), tl.arange(0, D)
    at = row * splits + split
    there = split < splits
    top = tl.load(tops + at, mask=there, other=float("-inf"))
    total = tl.load(totals + at, mask=there, other=0.0)
    highest = tl.max(top, 0)
    weight = tl.math.exp2(top - tl.where(highest == float("-inf"), 0.0, highest))
    own = there[:, None] & (d < HEAD_DIM)[None, :]
    part = tl.load(parts + at[:, None] * HEAD_DIM + d[None, :], mask=own, other=0.0)
    whole = tl.sum(total * weight, 0)
    made = tl.sum(part * weight[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    tl.store(out + row * HEAD_DIM + d, made.to(out.dtype.element_ty), mask=d < HEAD_DIM)
