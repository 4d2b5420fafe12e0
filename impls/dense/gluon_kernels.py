"""gluon.flash forward, and what its kernels share. Legend in :mod:`impls.dense.gluon_flash`.

A producer warp brings tiles by TMA; two groups of four warps take 64 queries each, and read the
same keys and values. A tile is handed over by two barriers, ``ready`` and ``free``: the n-th use
of a ring of STAGES tiles is of slot n % STAGES, and the phase of both is n // STAGES % 2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

try:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
except ImportError:
    from triton.experimental.gluon.nvidia.blackwell import TensorDescriptor

ROWS = gl.constexpr(64)
"""Rows of a product of a group of warps, at the least."""
UNSEEN = gl.constexpr(-1e30)
"""The maximum of a row that has seen nothing: finite, so that differences of two are numbers."""
bring = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
send = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""Triton 3.9's names for async_copy_… of 3.6."""


def described(x_bhnd: Tensor, rows: int) -> TensorDescriptor:
    """A tensor as TMA reads it, so many tokens of a head at a time: zeros beyond a head's last."""
    block = [1, 1, rows, x_bhnd.shape[-1]]
    dtype = gl.bfloat16 if x_bhnd.dtype == torch.bfloat16 else gl.float16
    # a step that is never taken may be any number, but TMA takes multiples of 16 bytes alone
    steps = [s if n > 1 else x_bhnd.shape[-1]
             for n, s in zip(x_bhnd.shape, x_bhnd.stride(), strict=True)]  # fmt: skip
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(x_bhnd, list(x_bhnd.shape), [*steps[:-1], 1], block, layout)


@gluon.constexpr_function
def of_product(columns):
    """The layout of a group's 64 rows of a product in its registers."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16]
    )


@gluon.jit
def share(tiles):
    """The number of this program's tiles: one a round, every other round in reverse."""
    programs, own = gl.num_programs(0), gl.program_id(0)
    rounds = tiles // programs
    place = own
    if rounds % 2 == 1:
        place = programs - 1 - own
    if rounds * programs + place < tiles:
        rounds += 1
    return rounds


@gluon.jit
def tile_of(turn, extents):
    """Batch element, head, and which block of queries: of a section of heads whose keys the L2
    cache holds, the last blocks come first.
    """
    batch, heads, blocks, section = extents
    programs, own = gl.num_programs(0), gl.program_id(0)
    tile = turn * programs + own
    if turn % 2 == 1:
        tile = turn * programs + programs - 1 - own
    begin = tile // (section * blocks) * section
    place = tile % (section * blocks)
    wide = gl.minimum(section, batch * heads - begin)
    which = begin + place % wide
    return which // heads, which % heads, blocks - 1 - place // wide


@gluon.jit
def stretch(first, past, low, high, count,
            BLOCK: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr):  # fmt: skip
    """Which of ``count`` places the places from first to past see: where that begins, and how many
    blocks it has, one at the least; between ``whole`` and ``rest`` every place sees all.
    """
    begin, whole, end, rest = 0, 0, count, count
    if HIGH:
        end = gl.minimum(gl.maximum(past - 1 + high, 0), count)
        rest = gl.minimum(first + high, count)
    if LOW:
        begin = gl.minimum(gl.maximum(first + low, 0), gl.maximum(end - 1, 0)) // BLOCK * BLOCK
        whole = past - 1 + low
    return begin, gl.maximum(gl.cdiv(end - begin, BLOCK), 1), whole, rest


@gluon.jit
def hidden(scores, query, start, edges, band, keys, KEY_LAYOUT: gl.constexpr,
           BLOCK: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr):  # fmt: skip
    """The scores of a tile, with -inf where a query may not see the key: looked at in tiles at the
    edges alone.
    """
    whole, rest = edges
    low, high = band
    if (start < whole) | (start + BLOCK > rest):
        key = start + gl.arange(0, BLOCK, KEY_LAYOUT)[None, :]
        visible = key < keys
        if LOW:
            visible = visible & (key >= query[:, None] + low)
        if HIGH:
            visible = visible & (key < query[:, None] + high)
        scores = gl.where(visible, scores, float("-inf"))
    return scores


@gluon.jit
def flat(tile):
    """A tile of one head, [1, 1, tokens, width], as a matrix."""
    return tile.reshape([tile.shape[2], tile.shape[3]])


@gluon.jit
def ring_of(x, BLOCK: gl.constexpr, COUNT: gl.constexpr):
    """Tiles of a tensor in shared memory."""
    WIDTH: gl.constexpr = x.block_type.shape[3]
    return gl.allocate_shared_memory(x.dtype, [COUNT, 1, 1, BLOCK, WIDTH], x.layout)


@gluon.jit
def barriers_of(COUNT: gl.constexpr, READERS: gl.constexpr):
    """The barriers of a ring: ready, free."""
    ready = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(COUNT):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=READERS)
    return ready, free


@gluon.jit
def give(tensor, at, ring, ready, free, used, STAGES: gl.constexpr):
    """Brings a tile into a ring once nobody reads what was there."""
    slot = used % STAGES
    mbarrier.wait(free.index(slot), (used // STAGES + 1) & 1)
    mbarrier.expect(ready.index(slot), tensor.block_type.nbytes)
    bring(tensor, at, ready.index(slot), ring.index(slot))


@gluon.jit
def produce(descriptors, rings, barriers, extents, ends, band, group, BLOCK: gl.constexpr,
            STAGES: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr):  # fmt: skip
    """Brings the queries of each tile, and the keys and values that they see, in the order in which
    they are read: keys a step before the values of the last ones.
    """
    q, k, v = descriptors
    q_ring, k_ring, v_ring = rings
    q_ready, q_free, k_ready, k_free, v_ready, v_free = barriers
    queries, keys = ends
    low, high = band
    batch, heads, blocks, _ = extents
    used = 0
    for turn in range(share(batch * heads * blocks)):
        element, head, block = tile_of(turn, extents)
        first = block * 2 * ROWS
        past = gl.minimum(first + 2 * ROWS, queries)
        begin, steps, _, _ = stretch(first, past, low, high, keys, BLOCK, LOW, HIGH)
        kv_head = head // group
        start = begin + (steps - 1) * BLOCK
        give(k, [element, kv_head, start, 0], k_ring, k_ready, k_free, used, STAGES)
        for own in gl.static_range(2):
            mbarrier.wait(q_free.index(own), (turn + 1) & 1)
            mbarrier.expect(q_ready.index(own), q.block_type.nbytes)
            at = [element, head, first + own * ROWS, 0]
            bring(q, at, q_ready.index(own), q_ring.index(own))
        for _step in range(1, steps):
            give(k, [element, kv_head, start - BLOCK, 0], k_ring, k_ready, k_free, used + 1, STAGES)
            give(v, [element, kv_head, start, 0], v_ring, v_ready, v_free, used, STAGES)
            start -= BLOCK
            used += 1
        give(v, [element, kv_head, start, 0], v_ring, v_ready, v_free, used, STAGES)
        used += 1


@gluon.jit
def consume(OWN: gl.constexpr,  # noqa: PLR0915 - one loop
            out, log_sums, rings, barriers, extents, ends, band, scale,
            BLOCK: gl.constexpr, STAGES: gl.constexpr, LAZY: gl.constexpr, LOW: gl.constexpr,
            HIGH: gl.constexpr):  # fmt: skip
    """The online softmax of 64 queries a tile.

    The product with the next keys is in flight while the weights of these are made. The wait for
    the keys after those must stand between the weights and the wait for the product with the
    values: in one basic block ptxas would move that wait up.
    """
    q_ring, k_ring, v_ring = rings
    q_ready, q_free, k_ready, k_free, v_ready, v_free = barriers
    queries, keys = ends
    low, high = band
    batch, heads, blocks, _ = extents
    dtype: gl.constexpr = out.dtype
    WIDTH: gl.constexpr = out.block_type.shape[3]
    SCORES: gl.constexpr = of_product(BLOCK)
    SUMS: gl.constexpr = of_product(WIDTH)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    ROW_OF_SUMS: gl.constexpr = gl.SliceLayout(1, SUMS)
    KEY: gl.constexpr = gl.SliceLayout(0, SCORES)
    nothing = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
    q = flat(q_ring.index(OWN))
    used = 0
    for turn in range(share(batch * heads * blocks)):
        element, head, block = tile_of(turn, extents)
        first = block * 2 * ROWS
        past = gl.minimum(first + 2 * ROWS, queries)
        begin, steps, whole, rest = stretch(first, past, low, high, keys, BLOCK, LOW, HIGH)
        query = first + OWN * ROWS + gl.arange(0, ROWS, ROW)
        slot = used % STAGES
        phase = used // STAGES & 1
        mbarrier.wait(q_ready.index(OWN), turn & 1)
        mbarrier.wait(k_ready.index(slot), phase)
        scores = warpgroup_mma(q, flat(k_ring.index(slot)).permute((1, 0)), nothing,
                               use_acc=False, is_async=True)  # fmt: skip
        scores = warpgroup_mma_wait(0, deps=(scores,))
        mbarrier.arrive(k_free.index(slot), count=1)
        start = begin + (steps - 1) * BLOCK
        scores = hidden(scores, query, start, (whole, rest), band, keys, KEY, BLOCK, LOW, HIGH)
        top = gl.maximum(gl.max(scores, 1) * scale, UNSEEN)
        p = gl.exp2(scores * scale - top[:, None])
        total = gl.sum(p, 1)
        weights = gl.convert_layout(p.to(dtype), WEIGHTS)
        output = gl.zeros([ROWS, WIDTH], gl.float32, SUMS)
        if steps > 1:
            mbarrier.wait(k_ready.index((used + 1) % STAGES), (used + 1) // STAGES & 1)
        for step in range(1, steps):
            used += 1
            slot = used % STAGES
            behind, its_phase = (used - 1) % STAGES, (used - 1) // STAGES & 1
            scores = warpgroup_mma(q, flat(k_ring.index(slot)).permute((1, 0)), nothing,
                                   use_acc=False, is_async=True)  # fmt: skip
            mbarrier.wait(v_ready.index(behind), its_phase)
            output = warpgroup_mma(weights, flat(v_ring.index(behind)), output, is_async=True)
            scores = warpgroup_mma_wait(1, deps=(scores,))
            mbarrier.arrive(k_free.index(slot), count=1)
            start -= BLOCK
            scores = hidden(scores, query, start, (whole, rest), band, keys, KEY, BLOCK, LOW, HIGH)
            most = gl.max(scores, 1) * scale
            grew = gl.max(most - top, 0) > LAZY
            higher = gl.where(grew, gl.maximum(top, most), top)
            p = gl.exp2(scores * scale - higher[:, None])
            decay = gl.exp2(top - higher)
            total = total * decay + gl.sum(p, 1)
            top = higher
            weights = gl.convert_layout(p.to(dtype), WEIGHTS)
            if step + 1 < steps:
                mbarrier.wait(k_ready.index((used + 1) % STAGES), (used + 1) // STAGES & 1)
            output = warpgroup_mma_wait(0, deps=(output,))
            mbarrier.arrive(v_free.index(behind), count=1)
            if grew:
                output = output * gl.convert_layout(decay, ROW_OF_SUMS)[:, None]
        slot = used % STAGES
        mbarrier.wait(v_ready.index(slot), used // STAGES & 1)
        output = warpgroup_mma(weights, flat(v_ring.index(slot)), output, is_async=True)
        output = warpgroup_mma_wait(0, deps=(output,))
        mbarrier.arrive(v_free.index(slot), count=1)
        used += 1
        blind = total == 0.0
        total = gl.where(blind, 1.0, total)
        output = output / gl.convert_layout(total, ROW_OF_SUMS)[:, None]
        q.store(output.to(dtype))  # where the queries were: no product reads them any more
        fence_async_shared()
        send(out, [element, head, first + OWN * ROWS, 0], q_ring.index(OWN))
        # of a row that sees nothing the log-sum is +inf, so that backward its weights are zero
        log_sum = gl.where(blind, float("inf"), top + gl.log2(total))
        before = gl.cast(element * heads + head, gl.int64) * (blocks * 2 * ROWS)
        gl.store(log_sums + before + query, log_sum)
        tma.store_wait(0)
        mbarrier.arrive(q_free.index(OWN), count=1)


@gluon.jit
def first_rows(out, log_sums, rings, barriers, extents, ends, band, scale, BLOCK: gl.constexpr,
               STAGES: gl.constexpr, LAZY: gl.constexpr, LOW: gl.constexpr,
               HIGH: gl.constexpr):  # fmt: skip
    """The first 64 of a tile's queries."""
    consume(0, out, log_sums, rings, barriers, extents, ends, band, scale, BLOCK, STAGES, LAZY, LOW,
            HIGH)  # fmt: skip


@gluon.jit
def last_rows(out, log_sums, rings, barriers, extents, ends, band, scale, BLOCK: gl.constexpr,
               STAGES: gl.constexpr, LAZY: gl.constexpr, LOW: gl.constexpr,
               HIGH: gl.constexpr):  # fmt: skip
    """The other 64."""
    consume(1, out, log_sums, rings, barriers, extents, ends, band, scale, BLOCK, STAGES, LAZY, LOW,
            HIGH)  # fmt: skip


@gluon.jit(do_not_specialize=[
    "batch", "heads", "blocks", "section", "group", "queries", "keys", "low", "high"
])  # fmt: skip
def forward(q, k, v, out, log_sums, batch, heads, blocks, section, group,
            queries, keys, low, high, scale, BLOCK: gl.constexpr,
            STAGES: gl.constexpr, LAZY: gl.constexpr, LOW: gl.constexpr,
            HIGH: gl.constexpr, REGISTERS: gl.constexpr):  # fmt: skip
    """Tiles of 128 queries, as many programs as the device has processors."""
    rings = (ring_of(q, ROWS, 2), ring_of(k, BLOCK, STAGES), ring_of(v, BLOCK, STAGES))
    q_ready, q_free = barriers_of(2, 1)
    k_ready, k_free = barriers_of(STAGES, 2)
    v_ready, v_free = barriers_of(STAGES, 2)
    fence_async_shared()
    barriers = (q_ready, q_free, k_ready, k_free, v_ready, v_free)
    extents = (batch, heads, blocks, section)
    ends, band = (queries, keys), (low, high)
    gl.warp_specialize(
        [
            (first_rows, (out, log_sums, rings, barriers, extents, ends, band, scale, BLOCK,
                          STAGES, LAZY, LOW, HIGH)),
            (last_rows, (out, log_sums, rings, barriers, extents, ends, band, scale, BLOCK,
                         STAGES, LAZY, LOW, HIGH)),
            (produce, ((q, k, v), rings, barriers, extents, ends, band, group, BLOCK, STAGES,
                       LOW, HIGH)),
        ],
        [4, 1],
        [REGISTERS, 504 - 2 * REGISTERS],
    )  # fmt: skip
