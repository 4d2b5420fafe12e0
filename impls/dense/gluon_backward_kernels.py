"""gluon.flash backward: weights made again from their log-sums. Legend in the variant's file.

    p = exp2(s scale - log_sum);  ds = p (do v^T - delta);  delta = rows' sums of o do
    dv = p^T do;  dk = ds^T q;  dq = ds k

A kernel takes 128 queries along the keys, for dq, and leaves their deltas to the next, which takes
128 keys along the queries, for dk and dv. No two programs add to the same number, so repeats give
the same bits. The weights go from registers into the products: none is in shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from impls.dense.gluon_kernels import (
    ROWS,
    barriers_of,
    bring,
    flat,
    give,
    hidden,
    of_product,
    ring_of,
    send,
    share,
    stretch,
    tile_of,
)


@gluon.jit
def produce(own_tensors, tensors, own_rings, rings, own_barriers, barriers, extents, ends, band,
            group, members, BLOCK: gl.constexpr, STAGES: gl.constexpr, LOW: gl.constexpr,
            HIGH: gl.constexpr, KEYS: gl.constexpr):  # fmt: skip
    """Brings two tensors' tiles of 128 rows, and those of the other two that they meet: of KEYS,
    the queries of all ``members`` that share them.
    """
    a, b = own_tensors
    x, y = tensors
    a_ring, b_ring = own_rings
    x_ring, y_ring = rings
    ready, free = own_barriers
    x_ready, x_free, y_ready, y_free = barriers
    rows, others = ends
    low, high = band
    batch, heads, blocks, _ = extents
    used = 0
    for turn in range(share(batch * heads * blocks)):
        element, head, block = tile_of(turn, extents)
        if KEYS:
            block = blocks - 1 - block  # the first keys are seen most
        first = block * 2 * ROWS
        past = gl.minimum(first + 2 * ROWS, rows)
        begin, steps, _, _ = stretch(first, past, low, high, others, BLOCK, LOW, HIGH)
        for own in gl.static_range(2):
            mbarrier.wait(free.index(own), (turn + 1) & 1)
            mbarrier.expect(ready.index(own), 2 * a.block_type.nbytes)
            at = [element, head, first + own * ROWS, 0]
            bring(a, at, ready.index(own), a_ring.index(own))
            bring(b, at, ready.index(own), b_ring.index(own))
        for step in range(members * steps):
            at = [element, head * members // group + step // steps,
                  begin + step % steps * BLOCK, 0]  # fmt: skip
            give(x, at, x_ring, x_ready, x_free, used, STAGES)
            give(y, at, y_ring, y_ready, y_free, used, STAGES)
            used += 1


@gluon.jit
def of_queries(OWN: gl.constexpr,  # noqa: PLR0915 - one loop
               dq, out, log_sums, delta, own_rings, rings, own_barriers,
               barriers, extents, ends, band, scale, ends_scale, BLOCK: gl.constexpr,
               STAGES: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr):  # fmt: skip
    """dq and delta of 64 queries a tile."""
    q_ring, do_ring = own_rings
    k_ring, v_ring = rings
    ready, free = own_barriers
    k_ready, k_free, v_ready, v_free = barriers
    queries, keys = ends
    low, high = band
    batch, heads, blocks, _ = extents
    dtype: gl.constexpr = dq.dtype
    WIDTH: gl.constexpr = dq.block_type.shape[3]
    SCORES: gl.constexpr = of_product(BLOCK)
    SUMS: gl.constexpr = of_product(WIDTH)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    KEY: gl.constexpr = gl.SliceLayout(0, SCORES)
    nothing = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
    q, do = flat(q_ring.index(OWN)), flat(do_ring.index(OWN))
    used = 0
    for turn in range(share(batch * heads * blocks)):
        element, head, block = tile_of(turn, extents)
        first = block * 2 * ROWS
        past = gl.minimum(first + 2 * ROWS, queries)
        begin, steps, whole, rest = stretch(first, past, low, high, keys, BLOCK, LOW, HIGH)
        before = gl.cast(element * heads + head, gl.int64) * (blocks * 2 * ROWS)
        mbarrier.wait(ready.index(OWN), turn & 1)
        row = first + OWN * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))
        o_before = gl.cast(element * heads + head, gl.int64) * queries
        at = (o_before + row)[:, None] * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, SUMS))[
            None, :
        ]
        o = gl.load(out + at, mask=(row < queries)[:, None], other=0.0)
        lost = gl.sum(o.to(gl.float32) * do.load(SUMS).to(gl.float32), 1)
        lost = gl.convert_layout(lost, ROW)
        query = first + OWN * ROWS + gl.arange(0, ROWS, ROW)
        log_sum = gl.load(log_sums + before + query)
        gl.store(delta + before + query, lost)
        gradient = gl.zeros([ROWS, WIDTH], gl.float32, SUMS)
        mbarrier.wait(k_ready.index(used % STAGES), used // STAGES & 1)
        for step in range(steps):
            slot = used % STAGES
            phase = used // STAGES & 1
            start = begin + step * BLOCK
            k = flat(k_ring.index(slot))
            scores = warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
            mbarrier.wait(v_ready.index(slot), phase)
            dp = warpgroup_mma(do, flat(v_ring.index(slot)).permute((1, 0)), nothing,
                               use_acc=False, is_async=True)  # fmt: skip
            scores = warpgroup_mma_wait(1, deps=(scores,))
            scores = hidden(scores, query, start, (whole, rest), band, keys, KEY, BLOCK, LOW, HIGH)
            p = gl.exp2(scores * scale - log_sum[:, None])
            used += 1
            if step + 1 < steps:  # here, or ptxas would wait for dp before it makes p
                mbarrier.wait(k_ready.index(used % STAGES), used // STAGES & 1)
            dp = warpgroup_mma_wait(0, deps=(dp,))
            mbarrier.arrive(v_free.index(slot), count=1)
            ds = gl.convert_layout((p * (dp - lost[:, None])).to(dtype), WEIGHTS)
            gradient = warpgroup_mma(ds, k, gradient, is_async=True)
            gradient = warpgroup_mma_wait(0, deps=(gradient,))
            mbarrier.arrive(k_free.index(slot), count=1)
        q.store((gradient * ends_scale).to(dtype))  # where the queries were
        fence_async_shared()
        send(dq, [element, head, first + OWN * ROWS, 0], q_ring.index(OWN))
        tma.store_wait(0)
        mbarrier.arrive(free.index(OWN), count=1)


@gluon.jit
def of_keys(OWN: gl.constexpr,  # noqa: PLR0915 - one loop
            dk, dv, log_sums, delta, own_rings, rings, own_barriers,
            barriers, extents, ends, band, group, scale, ends_scale, BLOCK: gl.constexpr,
            STAGES: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr):  # fmt: skip
    """dk and dv of 64 keys a tile, over all the query heads that they serve. Scores lie with a row
    a key, and past the last key rows hold numbers that nobody stores.
    """
    k_ring, v_ring = own_rings
    q_ring, do_ring = rings
    ready, free = own_barriers
    q_ready, q_free, do_ready, do_free = barriers
    keys, queries = ends
    low, high = band
    batch, kv_heads, blocks, _ = extents
    dtype: gl.constexpr = dk.dtype
    WIDTH: gl.constexpr = dk.block_type.shape[3]
    SCORES: gl.constexpr = of_product(BLOCK)
    SUMS: gl.constexpr = of_product(WIDTH)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    QUERY: gl.constexpr = gl.SliceLayout(0, SCORES)
    nothing = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
    k, v = flat(k_ring.index(OWN)), flat(v_ring.index(OWN))
    used = 0
    for turn in range(share(batch * kv_heads * blocks)):
        element, kv_head, block = tile_of(turn, extents)
        first = (blocks - 1 - block) * 2 * ROWS
        past = gl.minimum(first + 2 * ROWS, keys)
        begin, steps, whole, rest = stretch(first, past, low, high, queries, BLOCK, LOW, HIGH)
        key = first + OWN * ROWS + gl.arange(0, ROWS, ROW)
        gradient_k = gl.zeros([ROWS, WIDTH], gl.float32, SUMS)
        gradient_v = gl.zeros([ROWS, WIDTH], gl.float32, SUMS)
        mbarrier.wait(ready.index(OWN), turn & 1)
        for step in range(group * steps):
            slot = used % STAGES
            phase = used // STAGES & 1
            start = begin + step % steps * BLOCK
            head = (element * kv_heads + kv_head) * group + step // steps
            before = gl.cast(head, gl.int64) * (gl.cdiv(queries, 2 * ROWS) * 2 * ROWS)
            query = start + gl.arange(0, BLOCK, QUERY)
            mbarrier.wait(q_ready.index(slot), phase)
            q = flat(q_ring.index(slot))
            scores = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
            mbarrier.wait(do_ready.index(slot), phase)
            do = flat(do_ring.index(slot))
            dp = warpgroup_mma(v, do.permute((1, 0)), nothing, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(1, deps=(scores,))
            scores = hidden(scores, key, start, (whole, rest), band, queries, QUERY, BLOCK, LOW,
                            HIGH)  # fmt: skip
            log_sum = gl.load(log_sums + before + query)
            p = gl.exp2(scores * scale - log_sum[None, :])
            weights = gl.convert_layout(p.to(dtype), WEIGHTS)
            gradient_v = warpgroup_mma(weights, do, gradient_v, is_async=True)
            dp, gradient_v = warpgroup_mma_wait(0, deps=(dp, gradient_v))
            mbarrier.arrive(do_free.index(slot), count=1)
            lost = gl.load(delta + before + query)
            ds = gl.convert_layout((p * (dp - lost[None, :])).to(dtype), WEIGHTS)
            gradient_k = warpgroup_mma(ds, q, gradient_k, is_async=True)
            gradient_k = warpgroup_mma_wait(0, deps=(gradient_k,))
            mbarrier.arrive(q_free.index(slot), count=1)
            used += 1
        k.store((gradient_k * ends_scale).to(dtype))  # where the keys and the values were
        v.store(gradient_v.to(dtype))
        fence_async_shared()
        send(dk, [element, kv_head, first + OWN * ROWS, 0], k_ring.index(OWN))
        send(dv, [element, kv_head, first + OWN * ROWS, 0], v_ring.index(OWN))
        tma.store_wait(0)
        mbarrier.arrive(free.index(OWN), count=1)


@gluon.jit
def queries_0(dq, out, log_sums, delta, own_rings, rings, own_barriers, barriers, extents, ends,
              band, scale, ends_scale, BLOCK: gl.constexpr, STAGES: gl.constexpr,
              LOW: gl.constexpr, HIGH: gl.constexpr):  # fmt: skip
    """The first 64 of a tile's queries."""
    of_queries(0, dq, out, log_sums, delta, own_rings, rings, own_barriers, barriers, extents, ends,
               band, scale, ends_scale, BLOCK, STAGES, LOW, HIGH)  # fmt: skip


@gluon.jit
def queries_1(dq, out, log_sums, delta, own_rings, rings, own_barriers, barriers, extents, ends,
              band, scale, ends_scale, BLOCK: gl.constexpr, STAGES: gl.constexpr,
              LOW: gl.constexpr, HIGH: gl.constexpr):  # fmt: skip
    """The other 64."""
    of_queries(1, dq, out, log_sums, delta, own_rings, rings, own_barriers, barriers, extents, ends,
               band, scale, ends_scale, BLOCK, STAGES, LOW, HIGH)  # fmt: skip


@gluon.jit
def keys_0(dk, dv, log_sums, delta, own_rings, rings, own_barriers, barriers, extents, ends, band,
           group, scale, ends_scale, BLOCK: gl.constexpr, STAGES: gl.constexpr, LOW: gl.constexpr,
           HIGH: gl.constexpr):  # fmt: skip
    """The first 64 of a tile's keys."""
    of_keys(0, dk, dv, log_sums, delta, own_rings, rings, own_barriers, barriers, extents, ends,
            band, group, scale, ends_scale, BLOCK, STAGES, LOW, HIGH)  # fmt: skip


@gluon.jit
def keys_1(dk, dv, log_sums, delta, own_rings, rings, own_barriers, barriers, extents, ends, band,
           group, scale, ends_scale, BLOCK: gl.constexpr, STAGES: gl.constexpr, LOW: gl.constexpr,
           HIGH: gl.constexpr):  # fmt: skip
    """The other 64."""
    of_keys(1, dk, dv, log_sums, delta, own_rings, rings, own_barriers, barriers, extents, ends,
            band, group, scale, ends_scale, BLOCK, STAGES, LOW, HIGH)  # fmt: skip


@gluon.jit(do_not_specialize=[
    "batch", "heads", "blocks", "section", "group", "queries", "keys", "low", "high"
])  # fmt: skip
def backward_queries(q, k, v, do, dq, out, log_sums, delta, batch, heads, blocks, section, group,
                     queries, keys, low, high, scale, ends_scale, BLOCK: gl.constexpr,
                     STAGES: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr,
                     REGISTERS: gl.constexpr):  # fmt: skip
    """dq and the deltas, in tiles of 128 queries."""
    own_rings = (ring_of(q, ROWS, 2), ring_of(do, ROWS, 2))
    rings = (ring_of(k, BLOCK, STAGES), ring_of(v, BLOCK, STAGES))
    own_barriers = barriers_of(2, 1)
    k_ready, k_free = barriers_of(STAGES, 2)
    v_ready, v_free = barriers_of(STAGES, 2)
    fence_async_shared()
    barriers = (k_ready, k_free, v_ready, v_free)
    extents, ends, band = (batch, heads, blocks, section), (queries, keys), (low, high)
    gl.warp_specialize(
        [
            (queries_0, (dq, out, log_sums, delta, own_rings, rings, own_barriers, barriers,
                         extents, ends, band, scale, ends_scale, BLOCK, STAGES, LOW, HIGH)),
            (queries_1, (dq, out, log_sums, delta, own_rings, rings, own_barriers, barriers,
                         extents, ends, band, scale, ends_scale, BLOCK, STAGES, LOW, HIGH)),
            (produce, ((q, do), (k, v), own_rings, rings, own_barriers, barriers, extents, ends,
                       band, group, 1, BLOCK, STAGES, LOW, HIGH, False)),
        ],
        [4, 1],
        [REGISTERS, 504 - 2 * REGISTERS],
    )  # fmt: skip


@gluon.jit(do_not_specialize=[
    "batch", "kv_heads", "blocks", "section", "group", "queries", "keys", "low", "high"
])  # fmt: skip
def backward_keys(q, k, v, do, dk, dv, log_sums, delta, batch, kv_heads, blocks, section, group,
                  queries, keys, low, high, scale, ends_scale, BLOCK: gl.constexpr,
                  STAGES: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr,
                  REGISTERS: gl.constexpr):  # fmt: skip
    """dk and dv, in tiles of 128 keys; key j is seen by queries from j + low up to j + high."""
    own_rings = (ring_of(k, ROWS, 2), ring_of(v, ROWS, 2))
    rings = (ring_of(q, BLOCK, STAGES), ring_of(do, BLOCK, STAGES))
    own_barriers = barriers_of(2, 1)
    q_ready, q_free = barriers_of(STAGES, 2)
    do_ready, do_free = barriers_of(STAGES, 2)
    fence_async_shared()
    barriers = (q_ready, q_free, do_ready, do_free)
    extents, ends, band = (batch, kv_heads, blocks, section), (keys, queries), (low, high)
    gl.warp_specialize(
        [
            (keys_0, (dk, dv, log_sums, delta, own_rings, rings, own_barriers, barriers, extents,
                      ends, band, group, scale, ends_scale, BLOCK, STAGES, LOW, HIGH)),
            (keys_1, (dk, dv, log_sums, delta, own_rings, rings, own_barriers, barriers, extents,
                      ends, band, group, scale, ends_scale, BLOCK, STAGES, LOW, HIGH)),
            (produce, ((k, v), (q, do), own_rings, rings, own_barriers, barriers, extents, ends,
                       band, 1, group, BLOCK, STAGES, LOW, HIGH, True)),
        ],
        [4, 1],
        [REGISTERS, 504 - 2 * REGISTERS],
    )  # fmt: skip
