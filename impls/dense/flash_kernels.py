"""triton.flash forward, and what its kernels share. Legend in :mod:`impls.dense.triton_flash`.

Steps between tokens are multiplied in 64 bits: a cache of 131,072 tokens of 128 heads of 128 has
2^31 numbers. Inside a block of tokens 32 bits do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from impls.jit_kernels import align


@triton.jit
def tokens(base, first, step, count, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr,
           D: tl.constexpr, EDGE: tl.constexpr, TMA: tl.constexpr):  # fmt: skip
    """A block of tokens [BLOCK, D] from ``first`` on; zeros past ``count`` and HEAD_DIM.

    ``base`` is where a head begins, as :func:`head_at` says it.
    """
    if TMA:
        block = base[0].load([base[1], base[2], first, 0]).reshape(BLOCK, D)
    else:
        block = loaded(base, first, step, count, BLOCK, HEAD_DIM, D, EDGE)
    return block


@triton.jit
def loaded(base, first, step, count, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr,
           D: tl.constexpr, EDGE: tl.constexpr):  # fmt: skip
    """The same through pointers."""
    row, d = tl.arange(0, BLOCK)[:, None], tl.arange(0, D)[None, :]
    step = align(step, HEAD_DIM)
    at = base + first * tl.cast(step, tl.int64) + row * step + d
    if EDGE and D != HEAD_DIM:
        block = tl.load(at, mask=(first + row < count) & (d < HEAD_DIM), other=0.0)
    elif EDGE:
        block = tl.load(at, mask=first + row < count, other=0.0)
    elif D != HEAD_DIM:
        block = tl.load(at, mask=d < HEAD_DIM, other=0.0)
    else:
        block = tl.load(at)
    return block


@triton.jit
def put(base, block, first, step, count, BLOCK: tl.constexpr,
        HEAD_DIM: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """A block of tokens into its place."""
    row, d = tl.arange(0, BLOCK)[:, None], tl.arange(0, D)[None, :]
    step = align(step, HEAD_DIM)
    at = base + first * tl.cast(step, tl.int64) + row * step + d
    tl.store(at, block.to(base.dtype.element_ty), mask=(first + row < count) & (d < HEAD_DIM))


@triton.jit
def head_at(base, steps, batch, head, HEAD_DIM: tl.constexpr, TMA: tl.constexpr):
    """The start of a head's tokens: a pointer, or a descriptor of all heads and its place there."""
    return (base, batch, head) if TMA else pointer(base, steps, batch, head, HEAD_DIM)


@triton.jit
def pointer(base, steps, batch, head, HEAD_DIM: tl.constexpr):
    """A pointer to the start of a head's tokens."""
    across, on = align(steps[0], HEAD_DIM), align(steps[1], HEAD_DIM)
    return base + batch * tl.cast(across, tl.int64) + head * tl.cast(on, tl.int64)


@triton.jit
def stretch(first, last, shift, before, after, count,
            BLOCK: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr):  # fmt: skip
    """Which of ``count`` places the places from first to last see: four ends.

    From ``begin`` to ``end`` some are seen; between ``whole`` and ``rest``, blocks of which every
    place sees all. A mask has to be looked at outside of these alone, at the two edges.
    """
    begin, whole = tl.cast(0, tl.int32), tl.cast(0, tl.int32)
    end, rest = tl.cast(count, tl.int32), tl.cast(count, tl.int32)
    if AFTER:
        end = tl.minimum(tl.maximum(last + shift + after + 1, 0), count)
        rest = tl.minimum(tl.maximum(first + shift + after + 1, 0), count)
    if BEFORE:
        begin = tl.minimum(tl.maximum(first + shift - before, 0) // BLOCK * BLOCK, end)
        whole = tl.minimum(tl.cdiv(tl.maximum(last + shift - before, 0), BLOCK) * BLOCK, end)
    return begin, whole, tl.maximum(rest // BLOCK * BLOCK, whole), end


@triton.jit
def sees(place, key, keys, shift, left, right,
         LEFT: tl.constexpr, RIGHT: tl.constexpr):  # fmt: skip
    """True where a query may see a key."""
    visible = key < keys
    if LEFT:
        visible &= key >= place + shift - left
    if RIGHT:
        visible &= key <= place + shift + right
    return visible


@triton.jit
def tanh(x):
    """The hyperbolic tangent, to some 3e-7: near zero a quotient, which loses no digits there."""
    square = x * x
    above = x * (135135.0 + square * (17325.0 + square * (378.0 + square)))
    near = above / (135135.0 + square * (62370.0 + square * (3150.0 + square * 28.0)))
    far = 1.0 - 2.0 / (tl.math.exp2(tl.abs(x) * 2.8853900817779268) + 1.0)
    return tl.where(tl.abs(x) < 1.0, near, tl.where(x < 0, -far, far))


@triton.jit
def add_keys(out, total, top, q, k_at, v_at, k_step,
             v_step, query, begin, end, whole, rest, keys, shift, left,
             right, scale, inner, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr,
             D: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, EDGE: tl.constexpr,
             PRECISION: tl.constexpr, TMA: tl.constexpr, CAP: tl.constexpr):  # fmt: skip
    """The online softmax over the keys from ``begin`` to ``end``; EDGE leaves out what lies between
    ``whole`` and ``rest``, and looks at the mask.
    """
    for at in tl.range(begin, end, BLOCK):
        start = at + tl.where(at < whole, 0, rest - whole) if EDGE else at
        k = tokens(k_at, start, k_step, keys, BLOCK, HEAD_DIM, D, EDGE, TMA)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if CAP:
            scores = tanh(scores * inner)
        if EDGE:
            key = start + tl.arange(0, BLOCK)[None, :]
            visible = sees(query[:, None], key, keys, shift, left, right, LEFT, RIGHT)
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * scale)
        base = higher
        if EDGE:
            base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet
        p = tl.math.exp2(scores * scale - base[:, None])
        decay = tl.math.exp2(top - base)
        v = tokens(v_at, start, v_step, keys, BLOCK, HEAD_DIM, D, EDGE, TMA)
        total = total * decay + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * decay[:, None], input_precision=PRECISION)
        top = higher
    return out, total, top


@triton.jit(do_not_specialize=["queries", "keys"])
def forward(q, k, v, out, log_sums, q_steps, k_steps,
            v_steps, out_steps, heads, group, queries, keys,
            shift, left, right, scale, inner, Q_BLOCK: tl.constexpr,
            K_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, LEFT: tl.constexpr,
            RIGHT: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
            CAP: tl.constexpr):  # fmt: skip
    """A block of queries of one head. Under a causal mask the longest rows come first.

    Counts are no constants where they are 1: of one query on one key, 64 wide in bfloat16, ptxas
    of CUDA 12.8 dies of a segmentation fault. Only the store of the log-sums is narrower for it.
    """
    blocks = tl.cdiv(queries, Q_BLOCK)
    which, first = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    first = (blocks - 1 - first) * Q_BLOCK
    batch, head = which // heads, which % heads
    query = first + tl.arange(0, Q_BLOCK)
    block = tokens(head_at(q, q_steps, batch, head, HEAD_DIM, TMA), first, q_steps[2], queries,
                   Q_BLOCK, HEAD_DIM, D, True, TMA)  # fmt: skip
    k_at = head_at(k, k_steps, batch, head // group, HEAD_DIM, TMA)
    v_at = head_at(v, v_steps, batch, head // group, HEAD_DIM, TMA)
    last = tl.minimum(first + Q_BLOCK, queries) - 1
    begin, whole, rest, end = stretch(first, last, shift, left, right, keys, K_BLOCK, LEFT, RIGHT)
    output = tl.zeros([Q_BLOCK, D], tl.float32)
    total = tl.zeros([Q_BLOCK], tl.float32)
    top = tl.full([Q_BLOCK], float("-inf"), tl.float32)
    output, total, top = add_keys(
        output, total, top, block, k_at, v_at, k_steps[2], v_steps[2], query, whole, rest, whole,
        rest, keys, shift, left, right, scale, inner, K_BLOCK, HEAD_DIM, D, LEFT, RIGHT, False,
        PRECISION, TMA, CAP,
    )  # fmt: skip
    output, total, top = add_keys(
        output, total, top, block, k_at, v_at, k_steps[2], v_steps[2], query, begin,
        end - rest + whole, whole, rest, keys, shift, left, right, scale, inner, K_BLOCK, HEAD_DIM,
        D, LEFT, RIGHT, True, PRECISION, TMA, CAP,
    )  # fmt: skip
    blind = total == 0.0
    output = output / tl.where(blind, 1.0, total)[:, None]
    put(pointer(out, out_steps, batch, head, HEAD_DIM), output, first, out_steps[2], queries,
        Q_BLOCK, HEAD_DIM, D)  # fmt: skip
    # of a row that sees nothing the log-sum is +inf, so that backward its weights are zero
    log_sum = tl.where(blind, float("inf"), top + tl.math.log2(tl.where(blind, 1.0, total)))
    at = tl.cast(which, tl.int64) * queries + query
    tl.store(log_sums + at, log_sum, mask=query < queries)
