"""triton.gated_delta and triton.kda. Legend in the variants' file; numbers between are float32.

``prepare`` makes P, W and U of each chunk, all chunks at once; ``walk`` goes from chunk to chunk
with some columns of a state in registers. Sums of decays are taken each on its own, over the tokens
that it is about: none is a difference of others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from impls.linear.walk_kernels import places, rounded, start_of

LEAST = tl.constexpr(-1e4)
"""A decay's logarithm at the least: its exponential is zero, and times zero it is zero."""


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b, of numbers that are rounded to what the tensor cores take."""
    a, b = rounded(a, False, PRECISION), rounded(b, False, PRECISION)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def tokens(start, first, step, count, channel, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
           COLUMNS: tl.constexpr):  # fmt: skip
    """A chunk's tokens of a head, from a channel on; zeros after the last."""
    at, there = places(first, step, count, channel, WIDTH, CHUNK, COLUMNS)
    return tl.load(start + at, mask=there, other=0.0).to(tl.float32)


@triton.jit
def decays(g, which, first, count, after, channel, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
           COLUMNS: tl.constexpr, BY_CHANNEL: tl.constexpr):  # fmt: skip
    """The logarithms of a chunk's decays, or those of the tokens ``after`` each; 0 outside it."""
    row = tl.arange(0, CHUNK) + after
    start = tl.cast(which, tl.int64) * count + first
    there = (row < CHUNK) & (first + row < count)
    if BY_CHANNEL:
        column = channel + tl.arange(0, COLUMNS)[None, :]
        at = (start + row)[:, None] * WIDTH + column
        here = tl.load(g + at, mask=there[:, None] & (column < WIDTH), other=0.0)
    else:
        here = tl.load(g + start + row, mask=there, other=0.0)
    return tl.maximum(here, LEAST)


@triton.jit
def by_head(q, k, logs, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """The products of queries, and of keys, with keys, faded by one decay a token."""
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    between = tl.cumsum(tl.where(i > j, logs[:, None], 0.0), 0)
    inside = tl.where(i >= j, tl.exp(between), 0.0)
    scores = product(q, tl.trans(k), PRECISION) * inside
    return scores, product(k, tl.trans(k), PRECISION) * inside


@triton.jit
def by_channel(q, k, logs, CHUNK: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
    """The same by a decay a channel: a chunk is halved again and again, and pairs across a middle
    are faded to it, so that nothing is divided.
    """
    EXACT: tl.constexpr = "ieee" if PRECISION == "ieee" else "tf32x3"
    row = tl.arange(0, CHUNK)
    i, j = row[:, None], row[None, :]
    scores = tl.where(i == j, tl.sum(q * k, 1)[:, None], 0.0)
    overlaps = tl.zeros([CHUNK, CHUNK], tl.float32)
    for level in tl.range(0, LEVELS):
        half = 1 << level
        block, right = row // (2 * half), (i // half) % 2 == 1
        middle = (block * 2 * half + half - 1)[:, None]
        within = (right & (j > middle) & (j <= i)) | ((right == 0) & (j > i) & (j <= middle))
        fade = tl.exp(tl.dot(within.to(tl.float32), logs, input_precision=EXACT))
        same, k_faded = block[:, None] == block[None, :], k * fade
        k_left = tl.trans(tl.where(right, 0.0, k_faded))
        of_q = product(tl.where(right, q * fade, 0.0), k_left, PRECISION)
        of_k = product(tl.where(right, k_faded, 0.0), k_left, PRECISION)
        scores += tl.where(same, of_q, 0.0)
        overlaps += tl.where(same, of_k, 0.0)
    return scores, overlaps


@triton.jit
def solution(overlaps, CHUNK: tl.constexpr):
    """(I + L)^-1, L what is below the diagonal, row after row: no power of L is taken."""
    row = tl.arange(0, CHUNK)
    i, j = row[:, None], row[None, :]
    solved = tl.where(i > j, -overlaps, 0.0)
    for n in tl.range(1, CHUNK):
        here = tl.sum(tl.where(i == n, solved, 0.0), 0)
        here += tl.sum(here[:, None] * solved, 0)
        solved = tl.where(i == n, here[None, :], solved)
    return tl.where(i == j, 1.0, solved)


@triton.jit
def prepare(q, k, v, g, beta, pairs, w, u, q_steps, k_steps, v_steps, heads, group, count, chunks,
            scale, CHUNK: tl.constexpr, LEVELS: tl.constexpr, TILE: tl.constexpr,
            WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, V_COLUMNS: tl.constexpr,
            BY_CHANNEL: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """P, W and U of one chunk of a head of values."""
    which, first = tl.program_id(0) // chunks, tl.program_id(0) % chunks * CHUNK
    q_at = start_of(q, q_steps, which, heads, group, WIDTH)
    k_at = start_of(k, k_steps, which, heads, group, WIDTH)
    v_at = start_of(v, v_steps, which, heads, 1, V_WIDTH)
    row = tl.arange(0, CHUNK)
    rate = tl.load(beta + tl.cast(which, tl.int64) * count + first + row,
                   mask=first + row < count, other=0.0)  # fmt: skip
    scores = tl.zeros([CHUNK, CHUNK], tl.float32)
    overlaps = tl.zeros([CHUNK, CHUNK], tl.float32)
    for channel in tl.range(0, WIDTH, TILE):
        q_block = tokens(q_at, first, q_steps[2], count, channel, WIDTH, CHUNK, TILE) * scale
        k_block = tokens(k_at, first, k_steps[2], count, channel, WIDTH, CHUNK, TILE)
        logs = decays(g, which, first, count, 0, channel, WIDTH, CHUNK, TILE, BY_CHANNEL)
        if BY_CHANNEL:
            of_q, of_k = by_channel(q_block, k_block, logs, CHUNK, LEVELS, PRECISION)
        else:
            of_q, of_k = by_head(q_block, k_block, logs, CHUNK, PRECISION)
        scores += of_q
        overlaps += of_k
    solved = solution(rate[:, None] * overlaps, CHUNK)
    place = tl.cast(tl.program_id(0), tl.int64) * CHUNK + row[:, None]
    tl.store(pairs + place * CHUNK + row[None, :], scores)
    for channel in tl.range(0, WIDTH, TILE):
        k_block = tokens(k_at, first, k_steps[2], count, channel, WIDTH, CHUNK, TILE)
        logs = decays(g, which, first, count, 0, channel, WIDTH, CHUNK, TILE, BY_CHANNEL)
        begun = tl.exp(tl.cumsum(logs, 0))
        if not BY_CHANNEL:
            begun = begun[:, None]
        w_block = product(solved, rate[:, None] * k_block * begun, PRECISION)
        column = channel + tl.arange(0, TILE)[None, :]
        tl.store(w + place * WIDTH + column, w_block, mask=column < WIDTH)
    for done in tl.range(0, V_WIDTH, V_COLUMNS):
        at, there = places(first, v_steps[2], count, done, V_WIDTH, CHUNK, V_COLUMNS)
        v_block = tl.load(v_at + at, mask=there, other=0.0).to(tl.float32)
        column_v = done + tl.arange(0, V_COLUMNS)[None, :]
        u_block = product(solved, rate[:, None] * v_block, PRECISION)
        tl.store(u + place * V_WIDTH + column_v, u_block, mask=column_v < V_WIDTH)


@triton.jit
def walk(q, k, g, pairs, w, u, before, after, out, q_steps, k_steps, out_steps, heads, group,
         count, chunks, scale, CHUNK: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
         V_WIDTH: tl.constexpr, V_COLUMNS: tl.constexpr, BY_CHANNEL: tl.constexpr,
         STARTED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """The output of a head of values, some of its columns, and the state after the last token."""
    blocks = tl.cdiv(V_WIDTH, V_COLUMNS)
    which, first_column = tl.program_id(0) // blocks, tl.program_id(0) % blocks * V_COLUMNS
    q_at = start_of(q, q_steps, which, heads, group, WIDTH)
    k_at = start_of(k, k_steps, which, heads, group, WIDTH)
    out_at = start_of(out, out_steps, which, heads, 1, V_WIDTH)
    row, channel = tl.arange(0, CHUNK)[:, None], tl.arange(0, COLUMNS)
    column = first_column + tl.arange(0, V_COLUMNS)[None, :]
    numbers = tl.cast(which, tl.int64) * WIDTH * V_WIDTH + channel[:, None] * V_WIDTH + column
    of_state = (channel[:, None] < WIDTH) & (column < V_WIDTH)
    state = tl.zeros([COLUMNS, V_COLUMNS], tl.float32)
    if STARTED:
        state = tl.load(before + numbers, mask=of_state, other=0.0)
    for chunk in tl.range(0, chunks):
        first = chunk * CHUNK
        place = (tl.cast(which, tl.int64) * chunks + chunk) * CHUNK + row
        w_block = tl.load(w + place * WIDTH + channel[None, :], mask=channel[None, :] < WIDTH,
                          other=0.0)  # fmt: skip
        new = tl.load(u + place * V_WIDTH + column, mask=column < V_WIDTH, other=0.0)
        new -= product(w_block, state, PRECISION)
        logs = decays(g, which, first, count, 0, 0, WIDTH, CHUNK, COLUMNS, BY_CHANNEL)
        later = decays(g, which, first, count, 1, 0, WIDTH, CHUNK, COLUMNS, BY_CHANNEL)
        begun, left = tl.exp(tl.cumsum(logs, 0)), tl.exp(tl.cumsum(later, 0, reverse=True))
        whole = tl.exp(tl.sum(logs, 0))
        if BY_CHANNEL:
            whole = whole[:, None]
        else:
            begun, left = begun[:, None], left[:, None]
        q_block = tokens(q_at, first, q_steps[2], count, 0, WIDTH, CHUNK, COLUMNS) * scale
        rows = product(q_block * begun, state, PRECISION)
        scores = tl.load(pairs + place * CHUNK + tl.arange(0, CHUNK)[None, :])
        rows += product(scores, new, PRECISION)
        at, there = places(first, out_steps[2], count, first_column, V_WIDTH, CHUNK, V_COLUMNS)
        tl.store(out_at + at, rows.to(out.dtype.element_ty), mask=there)
        k_block = tokens(k_at, first, k_steps[2], count, 0, WIDTH, CHUNK, COLUMNS)
        state = state * whole + product(tl.trans(k_block * left), new, PRECISION)
    tl.store(after + numbers, state, mask=of_state)
