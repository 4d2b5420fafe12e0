"""triton.flash backward: weights made again from their log-sums. Legend in the variant's file.

    p = exp2(s scale - log_sum);  ds = p (do v^T - delta);  delta = rows' sums of o do
    dv = p^T do;  dk = ds^T q;  dq = ds k

CAP: s is the tanh of the scores times ``inner``, and ds becomes ds (1 - s^2).

One kernel goes along the queries of a block of keys, for dk and dv, another along the keys of a
block of queries, for dq: seven products for five, but no two programs add to the same number, so
repeats give the same bits. FUSED, the first adds what its keys give to dq in place, in float32:
five products, in whatever order its programs come.
"""

from __future__ import annotations

import triton
import triton.language as tl

from impls.dense.flash_kernels import (
    head_at,
    loaded,
    pointer,
    put,
    sees,
    stretch,
    tanh,
    tokens,
)
from impls.jit_kernels import align


@triton.jit
def deltas(out, dout, delta, out_steps, dout_steps, heads,
           queries, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """The gradient that a row's weights lose as their sum is one."""
    blocks = tl.cdiv(queries, BLOCK)
    which, first = tl.program_id(0) // blocks, (tl.program_id(0) % blocks) * BLOCK
    batch, head = which // heads, which % heads
    o = loaded(pointer(out, out_steps, batch, head, HEAD_DIM), first, out_steps[2], queries, BLOCK,
               HEAD_DIM, D, True)  # fmt: skip
    do = loaded(pointer(dout, dout_steps, batch, head, HEAD_DIM), first, dout_steps[2], queries,
                BLOCK, HEAD_DIM, D, True)  # fmt: skip
    query = first + tl.arange(0, BLOCK)
    sums = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta + tl.cast(which, tl.int64) * queries + query, sums, mask=query < queries)


@triton.jit
def add_queries(dk, dv, k, v, q, dout, dq, log_sums, delta, q_steps, dout_steps, dq_steps, batch,
                kv_head, group: tl.constexpr, key, begin, end, whole, rest, queries, keys, shift,
                left, right, scale, inner, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr,
                D: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, EDGE: tl.constexpr,
                PRECISION: tl.constexpr, TMA: tl.constexpr, CAP: tl.constexpr,
                FUSED: tl.constexpr):  # fmt: skip
    """Adds the gradients of the queries from ``begin`` to ``end`` to a block's keys and values.

    One loop over all of it: a loop over the heads around it would cost registers.
    """
    blocks = tl.cdiv(tl.maximum(end - begin, 0), BLOCK)
    for step in tl.range(0, group * blocks):
        member = step % group
        at, head = begin + step // group * BLOCK, kv_head * group + member
        start = at + tl.where(at < whole, 0, rest - whole) if EDGE else at
        query = start + tl.arange(0, BLOCK)
        row = member * queries + query
        q_block = tokens(head_at(q, q_steps, batch, head, HEAD_DIM, TMA), start, q_steps[2],
                         queries, BLOCK, HEAD_DIM, D, EDGE, TMA)  # fmt: skip
        do = tokens(head_at(dout, dout_steps, batch, head, HEAD_DIM, TMA), start, dout_steps[2],
                    queries, BLOCK, HEAD_DIM, D, EDGE, TMA)  # fmt: skip
        scores = tl.dot(k, tl.trans(q_block), input_precision=PRECISION)
        if CAP:
            scores = tanh(scores * inner)
        if EDGE:  # past the last query +inf, so that p is zero
            log_sum = tl.load(log_sums + row, mask=query < queries, other=float("inf"))
        else:
            log_sum = tl.load(log_sums + row)
        p = tl.math.exp2(scores * scale - log_sum[None, :])
        if EDGE:
            visible = sees(query[None, :], key[:, None], keys, shift, left, right, LEFT, RIGHT)
            p = tl.where(visible, p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        if EDGE:
            lost = tl.load(delta + row, mask=query < queries, other=0.0)
        else:
            lost = tl.load(delta + row)
        ds = p * (dp - lost[None, :])
        if CAP:
            ds *= 1.0 - scores * scores
        ds = ds.to(q_block.dtype)
        dk = tl.dot(ds, q_block, dk, input_precision=PRECISION)
        if FUSED:
            part = tl.dot(tl.trans(ds), k, input_precision=PRECISION)
            add(head_at(dq, dq_steps, batch, head, HEAD_DIM, TMA), part, start, dq_steps[2],
                queries, BLOCK, HEAD_DIM, D, TMA)  # fmt: skip
    return dk, dv


@triton.jit
def add(base, block, first, step, count, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr,
        D: tl.constexpr, TMA: tl.constexpr):  # fmt: skip
    """Add a block of tokens to what others have added in its place."""
    if TMA:
        base[0].atomic_add([base[1], base[2], first, 0], block.reshape(1, 1, BLOCK, D))
    else:
        row, d = tl.arange(0, BLOCK)[:, None], tl.arange(0, D)[None, :]
        step = align(step, HEAD_DIM)
        at = base + first * tl.cast(step, tl.int64) + row * step + d
        tl.atomic_add(at, block, mask=(first + row < count) & (d < HEAD_DIM), sem="relaxed")


@triton.jit
def backward_keys(q, k, v, dout, log_sums, delta, dk, dv, dq,
                  q_steps, k_steps, v_steps, dout_steps, dk_steps,
                  dv_steps, dq_steps, kv_heads, group: tl.constexpr, queries, keys, shift,
                  left, right, scale, inner, ends_scale, Q_BLOCK: tl.constexpr,
                  K_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
                  LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr,
                  TMA: tl.constexpr, CAP: tl.constexpr, FUSED: tl.constexpr):  # fmt: skip
    """dk and dv of a block of keys, over all the query heads that it serves."""
    blocks = tl.cdiv(keys, K_BLOCK)
    which, first = tl.program_id(0) // blocks, (tl.program_id(0) % blocks) * K_BLOCK
    batch, kv_head = which // kv_heads, which % kv_heads
    key = first + tl.arange(0, K_BLOCK)
    k_block = tokens(head_at(k, k_steps, batch, kv_head, HEAD_DIM, TMA), first,
                     k_steps[2], keys, K_BLOCK, HEAD_DIM, D, True, TMA)  # fmt: skip
    v_block = tokens(head_at(v, v_steps, batch, kv_head, HEAD_DIM, TMA), first,
                     v_steps[2], keys, K_BLOCK, HEAD_DIM, D, True, TMA)  # fmt: skip
    last = tl.minimum(first + K_BLOCK, keys) - 1
    begin, whole, rest, end = stretch(  # who sees them: the mask from the other side
        first, last, -shift, right, left, queries, Q_BLOCK, RIGHT, LEFT
    )
    if first + K_BLOCK > keys:  # places past the last key are hidden, or their weights overflow
        rest = whole
    dk_sums = tl.zeros([K_BLOCK, D], tl.float32)
    dv_sums = tl.zeros([K_BLOCK, D], tl.float32)
    row = (batch * tl.cast(kv_heads, tl.int64) + kv_head) * group * queries
    log_sums, delta = log_sums + row, delta + row
    dk_sums, dv_sums = add_queries(
        dk_sums, dv_sums, k_block, v_block, q, dout, dq, log_sums, delta, q_steps, dout_steps,
        dq_steps, batch, kv_head, group, key, whole, rest, whole, rest, queries, keys,
        shift, left, right, scale, inner, Q_BLOCK, HEAD_DIM, D, LEFT, RIGHT, False,
        PRECISION, TMA, CAP, FUSED,
    )  # fmt: skip
    dk_sums, dv_sums = add_queries(
        dk_sums, dv_sums, k_block, v_block, q, dout, dq, log_sums, delta, q_steps, dout_steps,
        dq_steps, batch, kv_head, group, key, begin, end - rest + whole, whole, rest,
        queries, keys, shift, left, right, scale, inner, Q_BLOCK, HEAD_DIM, D, LEFT, RIGHT,
        True, PRECISION, TMA, CAP, FUSED,
    )  # fmt: skip
    put(pointer(dk, dk_steps, batch, kv_head, HEAD_DIM), dk_sums * ends_scale, first, dk_steps[2],
        keys, K_BLOCK, HEAD_DIM, D)  # fmt: skip
    put(pointer(dv, dv_steps, batch, kv_head, HEAD_DIM), dv_sums, first, dv_steps[2], keys, K_BLOCK,
        HEAD_DIM, D)  # fmt: skip


@triton.jit
def add_to_queries(dq, q, do, log_sum, delta, k_at, v_at,
                   k_step, v_step, query, begin, end, whole, rest, keys,
                   shift, left, right, scale, inner, BLOCK: tl.constexpr,
                   HEAD_DIM: tl.constexpr, D: tl.constexpr, LEFT: tl.constexpr,
                   RIGHT: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr,
                   TMA: tl.constexpr, CAP: tl.constexpr):  # fmt: skip
    """Adds the gradients of the keys from ``begin`` to ``end`` to a block of queries."""
    for at in tl.range(begin, end, BLOCK):
        start = at + tl.where(at < whole, 0, rest - whole) if EDGE else at
        k = tokens(k_at, start, k_step, keys, BLOCK, HEAD_DIM, D, EDGE, TMA)
        v = tokens(v_at, start, v_step, keys, BLOCK, HEAD_DIM, D, EDGE, TMA)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if CAP:
            scores = tanh(scores * inner)
        power = scores * scale - log_sum[:, None]
        if EDGE:
            key = start + tl.arange(0, BLOCK)[None, :]
            visible = sees(query[:, None], key, keys, shift, left, right, LEFT, RIGHT)
            power = tl.where(visible, power, float("-inf"))
        p = tl.math.exp2(power)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        if CAP:
            ds *= 1.0 - scores * scores
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit
def backward_queries(q, k, v, dout, log_sums, delta, dq,
                     q_steps, k_steps, v_steps, dout_steps, dq_steps,
                     heads, group, queries, keys, shift, left,
                     right, scale, inner, ends_scale, Q_BLOCK: tl.constexpr,
                     K_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
                     LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr,
                     TMA: tl.constexpr, CAP: tl.constexpr):  # fmt: skip
    """dq of a block of queries. Under a causal mask the longest rows come first."""
    blocks = tl.cdiv(queries, Q_BLOCK)
    which, first = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    first = (blocks - 1 - first) * Q_BLOCK
    batch, head = which // heads, which % heads
    query = first + tl.arange(0, Q_BLOCK)
    q_block = tokens(head_at(q, q_steps, batch, head, HEAD_DIM, TMA), first, q_steps[2],
                     queries, Q_BLOCK, HEAD_DIM, D, True, TMA)  # fmt: skip
    do = tokens(head_at(dout, dout_steps, batch, head, HEAD_DIM, TMA), first, dout_steps[2],
                queries, Q_BLOCK, HEAD_DIM, D, True, TMA)  # fmt: skip
    row = tl.cast(which, tl.int64) * queries + query
    log_sum = tl.load(log_sums + row, mask=query < queries, other=float("inf"))
    lost = tl.load(delta + row, mask=query < queries, other=0.0)
    k_at = head_at(k, k_steps, batch, head // group, HEAD_DIM, TMA)
    v_at = head_at(v, v_steps, batch, head // group, HEAD_DIM, TMA)
    last = tl.minimum(first + Q_BLOCK, queries) - 1
    begin, whole, rest, end = stretch(first, last, shift, left, right, keys, K_BLOCK, LEFT, RIGHT)
    gradient = tl.zeros([Q_BLOCK, D], tl.float32)
    gradient = add_to_queries(
        gradient, q_block, do, log_sum, lost, k_at, v_at, k_steps[2], v_steps[2], query, whole,
        rest, whole, rest, keys, shift, left, right, scale, inner, K_BLOCK, HEAD_DIM, D, LEFT,
        RIGHT, False, PRECISION, TMA, CAP,
    )  # fmt: skip
    gradient = add_to_queries(
        gradient, q_block, do, log_sum, lost, k_at, v_at, k_steps[2], v_steps[2], query, begin,
        end - rest + whole, whole, rest, keys, shift, left, right, scale, inner, K_BLOCK, HEAD_DIM,
        D, LEFT, RIGHT, True, PRECISION, TMA, CAP,
    )  # fmt: skip
    put(pointer(dq, dq_steps, batch, head, HEAD_DIM), gradient * ends_scale, first, dq_steps[2],
        queries, Q_BLOCK, HEAD_DIM, D)  # fmt: skip
