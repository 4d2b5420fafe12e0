"""Cost of the sparse variants: two products on the pairs that each one's pattern lets meet.

Over a whole sequence every key that the mask shows counts as read. In decode the few rows leave
most of the cache unread: there only the keys that one of them sees count as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from impls.cost import Cost, by_phase, end_bytes, softmax
from impls.problem import Problem
from impls.sparse.layouts import bigbird_layout, bigbird_sizes, block_layout
from impls.spec import Unsupported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Sees = Callable[[int, NDArray[np.int64]], NDArray[np.bool_]]
    """Which of the keys the row at a place sees."""


def on_pairs(problem: Problem, pairs: int, read: int | None = None) -> Cost:
    """Softmax attention on so many pairs of each head; ``read`` keys of each, or all in sight."""
    product_pair = 2 * pairs * (problem.head_dim + problem.v_head_dim)
    keys = None if read is None else read * problem.batch * problem.kv_heads
    moved = end_bytes(problem, keys, keys)
    return Cost(by_phase(problem, product_pair * problem.batch * problem.heads), moved)


def root(n: int) -> int:
    """About the square root."""
    return max(round(n**0.5), 1)


def stride_of(problem: Problem, stride: int, summary: int = 1) -> int:
    """The stride that is meant: 0 balances n / stride columns, ``summary`` each, with a block."""
    return min(stride if stride > 0 else root(problem.kv_len * max(summary, 1)), problem.kv_len)


def _new_rows(problem: Problem, keys_n: NDArray[np.int64], sees: Sees) -> Cost:
    """Cost of the rows asked for, of so many keys to each row: in decode the last ones."""
    import numpy as np

    pairs = int(keys_n[-problem.q_len :].sum())
    if problem.phase != "decode":
        return on_pairs(problem, pairs)
    key = np.arange(problem.kv_len)
    keys_read = np.zeros(problem.kv_len, bool)
    for row in range(max(problem.kv_len - problem.q_len, 0), problem.kv_len):
        keys_read |= sees(row, key) & ((key <= row) | (not _causal(problem)))
    return on_pairs(problem, pairs, int(keys_read.sum()))


def _sides(problem: Problem, left: Callable[[NDArray[np.int64]], NDArray[np.int64]],
           sees: Sees) -> Cost:  # fmt: skip
    """Row i sees left(i) keys before itself, itself, and as many after by symmetry."""
    import numpy as np

    row = np.arange(problem.kv_len)
    keys = left(row) + 1
    return _new_rows(problem, keys if _causal(problem) else keys + left(row[::-1]), sees)


def _causal(problem: Problem) -> bool:
    return "causal" in problem.mask.kinds


def strided(problem: Problem, stride: int) -> Cost:
    """The keys less than a stride away, and every stride-th."""
    step = stride_of(problem, stride)
    return _sides(
        problem,
        lambda i: i.clip(max=step - 1) + i // step,
        lambda i, key: (abs(i - key) < step) | ((i - key) % step == 0),
    )


def fixed(problem: Problem, stride: int, summary: int) -> Cost:
    """Its own block, and the last columns of the others."""
    import numpy as np

    n, step = problem.kv_len, stride_of(problem, stride, summary)
    last = max(min(summary, step), 0)
    row = np.arange(n)
    start = row // step * step

    def sees(i: int, key: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (key // step == i // step) | (key % step >= step - last)

    if _causal(problem):
        return _new_rows(problem, row - start + 1 + start // step * last, sees)
    columns = int((row % step >= step - last).sum())
    size = np.minimum(step, n - start)
    return _new_rows(problem, size + columns - np.maximum(size - (step - last), 0), sees)


def dilated(problem: Problem, dilation: int, width: int) -> Cost:
    """``width`` keys on each side, a dilation apart."""
    step, most = max(dilation, 1), max(width, 0)
    return _sides(
        problem,
        lambda i: (i // step).clip(max=most),
        lambda i, key: ((i - key) % step == 0) & (abs(i - key) <= most * step),
    )


def longformer(problem: Problem, window: int, globals: int) -> Cost:
    """The window and the global columns; without causality the global rows too."""
    import numpy as np

    n, near = problem.kv_len, max(window, 0)
    first = max(min(globals, n), 0)
    row = np.arange(n)

    def sees(i: int, key: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (abs(i - key) <= near) | (key < first) | (i < first)

    if _causal(problem):
        start = np.maximum(row - near, 0)
        return _new_rows(problem, row - start + 1 + np.minimum(first, start), sees)
    start, stop = np.maximum(row - near, first), np.minimum(row + near, n - 1)
    return _new_rows(problem, np.where(row < first, n, stop - start + 1 + first), sees)


def bigbird(problem: Problem, block: int, globals: int, random: int, seed: int) -> Cost:
    """The blocks of the layout as they are drawn; causal, a row's own block up to its place."""
    import numpy as np

    n, causal = problem.kv_len, _causal(problem)
    size, count, first = bigbird_sizes(problem, block, globals)
    apart = 0 if causal else first
    layout = bigbird_layout(count, first, max(random, 0), seed, causal)
    sizes = np.minimum(size, n - np.arange(count) * size)
    block_keys = np.full(count, n)
    block_keys[apart:] = np.where(layout >= 0, sizes[layout], 0).sum(-1)
    row = np.arange(n)
    keys = block_keys[row // size]
    if causal:
        keys = keys - sizes[row // size] + row % size + 1

    def sees(i: int, key: NDArray[np.int64]) -> NDArray[np.bool_]:
        line = i // size - apart
        return np.isin(key // size, layout[line]) if line >= 0 else key >= 0

    return _new_rows(problem, keys, sees)


# ---- chosen by the data --------------------------------------------------------------------------


def topk(problem: Problem, k: int) -> Cost:
    """Every visible score forward; of the output and all that is backward, the chosen alone.

    All keys in sight are read, but only the values of the chosen.
    """
    import numpy as np

    if any(p.file for p in problem.mask.parts):
        in_sight = problem.mask.visible(problem.shape).sum(-1)
    else:
        first, past = problem.mask.spans(problem.shape)
        in_sight = (past - first)[:, None]
    each = problem.batch * problem.heads
    pairs = int(np.minimum(in_sight, max(k, 0)).sum()) * each
    pairs //= in_sight.shape[0] * in_sight.shape[1]
    scores = 2 * problem.mask.pairs(problem.shape) * problem.head_dim
    forward = scores + 2 * pairs * problem.v_head_dim
    backward = 4 * pairs * (problem.head_dim + problem.v_head_dim)
    work = {"backward": backward, "train": forward + backward}.get(problem.phase, forward)
    in_all = problem.mask.keys_seen(problem.shape) * problem.kv_heads
    values = min(pairs // problem.group, in_all)  # the heads of a group may choose alike
    return Cost(work, end_bytes(problem, values=values))


def _places(problem: Problem) -> NDArray[np.int64]:
    """Where the queries stand among the keys."""
    import numpy as np

    return np.arange(problem.kv_len - problem.q_len, problem.kv_len)


def _selecting(problem: Problem, scored: int, pairs: int) -> Cost:
    """``scored`` products of one channel once forward, of all heads; ``pairs`` of each head.

    Every key and value in sight is read: some query may select it.
    """
    attend = on_pairs(problem, pairs)
    return attend._replace(flops=attend.flops + _once(problem, 2 * scored))


def _in_blocks(problem: Problem, block: int, top: int) -> int:
    """Pairs of a head whose queries take their own block up to themselves, and others whole."""
    size, place = max(block, 1), _places(problem)
    whole = (place // size).clip(max=max(top, 1) - 1)
    return int((place % size + 1 + whole * size).sum())


def moba(problem: Problem, block: int, top: int) -> Cost:
    """A score for every block before a query's own; then the pairs of the blocks it takes."""
    before = int((_places(problem) // max(block, 1)).sum())
    scored = problem.batch * problem.heads * before * problem.head_dim
    return _selecting(problem, scored, _in_blocks(problem, block, top))


def nsa(problem: Problem, block: int, top: int, window: int) -> Cost:
    """Compressed pairs, whose weights are the selector's scores too, selected ones and a window's;
    three gates a query and head are read besides.
    """
    size, place = max(block, 1), _places(problem)
    compressed = int(((place + 1) // size).sum())
    near = int((place + 1).clip(max=max(window, 1)).sum())
    cost = _selecting(problem, 0, compressed + _in_blocks(problem, size, top) + near)
    gates = 3 * problem.batch * problem.heads * problem.q_len * problem.item_bytes
    return cost._replace(bytes=cost.bytes + gates * (2 if problem.gradients else 1))


def dsa(problem: Problem, top: int) -> Cost:
    """The indexer on every pair in sight; then the pairs it takes, and its inputs besides."""
    place = _places(problem)
    pairs = problem.batch * int((place + 1).sum())
    query = problem.index_heads * (problem.index_dim + 1)
    cost = _selecting(problem, pairs * query, int((place + 1).clip(max=max(top, 1)).sum()))
    queries = problem.batch * problem.q_len * query
    keys = problem.batch * problem.kv_len * problem.index_dim
    read = 0 if problem.phase == "backward" else (queries + keys) * problem.item_bytes
    return cost._replace(bytes=cost.bytes + read)


def hash_widths(length: int, bucket: int) -> tuple[int, ...]:
    """The number of buckets: even; above 128 the product of two."""
    chunks = -(-length // max(bucket, 1))
    buckets = 2 * -(-chunks // 2)
    if buckets <= 128:
        return (buckets,)
    one = 2 * -(-round(buckets**0.5) // 2)
    return one, 2 * -(-buckets // (2 * one))


def lsh(problem: Problem, rounds: int, bucket: int, seed: int, shared: bool) -> Cost:
    """Each round: hashing, and each token with its own chunk and the one before.

    Shared, the keys are queries, and k is not read.
    """
    n, length = problem.kv_len, min(max(bucket, 1), problem.kv_len)
    attend = on_pairs(problem, max(rounds, 0) * n * min(2 * length, n))
    tokens = problem.batch * n * (problem.heads + (0 if shared else problem.kv_heads))
    columns = sum(hash_widths(n, bucket)) // 2
    hashing = 2 * tokens * problem.head_dim * columns * max(rounds, 0)
    moved = end_bytes(problem, keys=0) if shared else attend.bytes
    return Cost(attend.flops + _once(problem, hashing), moved)


def routes(problem: Problem, clusters: int, window: int) -> tuple[int, int, int]:
    """The number of clusters, and the queries and keys that each takes."""
    many = clusters if clusters > 0 else root(problem.kv_len)
    asks, gives = (
        min(window if window > 0 else -(-length // many), length)
        for length in (problem.q_len, problem.kv_len)
    )
    return many, asks, gives


def routing(problem: Problem, clusters: int, window: int, seed: int) -> Cost:
    """Ranking every token for every centroid, and attention inside the clusters."""
    many, asks, gives = routes(problem, clusters, window)
    attend = on_pairs(problem, many * asks * gives)
    tokens = problem.heads * problem.q_len + problem.kv_heads * problem.kv_len
    ranking = 2 * problem.batch * tokens * problem.head_dim * many
    return attend._replace(flops=attend.flops + _once(problem, ranking))


def _once(problem: Problem, forward: int) -> int:
    """Work that has no gradient: done forward, and not again."""
    return 0 if problem.phase == "backward" else forward


# ---- memories that forget ------------------------------------------------------------------------


def sinks(problem: Problem, budget: int, sinks: int = 0, window: int = 0) -> Cost:
    """A step's queries on what is held and on each other's tokens; a prompt counts as nothing."""
    n = problem.q_len
    held = min(max(budget, 0), problem.kv_len - n) if n <= problem.kv_len else 0
    return on_pairs(problem, n * held + n * (n + 1) // 2, held + min(n, problem.kv_len))


h2o = snapkv = random = sinks


def quest(problem: Problem, budget: int, page: int) -> Cost:
    """The pages that are read, and two products and the bytes of the bounds of all."""
    size, before = max(page, 1), max(problem.kv_len - problem.q_len, 0)
    pages, rest = before // size, before % size
    attend = sinks(problem, min(pages, max(budget - rest, 0) // size) * size + rest)
    rows = problem.batch * problem.heads * problem.q_len
    bounds = 2 * problem.batch * problem.kv_heads * pages * problem.head_dim
    ranking = 2 * rows * 2 * pages * problem.head_dim
    return attend._replace(
        flops=attend.flops + ranking, bytes=attend.bytes + bounds * problem.item_bytes
    )


# ---- a user's layout -----------------------------------------------------------------------------


def blocksparse(problem: Problem, layout: str, block: int) -> Cost:
    """The pairs that the layout and the mask allow."""
    import numpy as np

    size = max(block, 1)
    try:
        table = block_layout(problem, layout, size)
    except Unsupported:  # said by build; here only that there is no more work than without it
        return softmax(problem)
    decodes = problem.phase == "decode"
    by_pair = decodes or any(p.file for p in problem.mask.parts)
    key = np.arange(problem.kv_len)
    pairs, read_bhm = 0, np.zeros((1, 1, problem.kv_len), bool)
    for row_block in range(table.shape[1]):
        rows = np.arange(row_block * size, min((row_block + 1) * size, problem.q_len))
        allowed = table[:, row_block]
        if by_pair:
            mask = problem.mask.visible(problem.shape, rows) & allowed[None, :, None, key // size]
            share = problem.batch * problem.heads // (mask.shape[0] * mask.shape[1])
            pairs += int(mask.sum()) * share
            read_bhm = read_bhm | mask.any(2)
            continue
        first, past = (x[..., None] for x in problem.mask.spans(problem.shape, rows))
        start = np.arange(table.shape[2]) * size
        overlap = (np.minimum(past, start + size) - np.maximum(first, start)).clip(min=0)
        counted = np.einsum("brk,hk->", overlap, allowed.astype(np.int64))
        pairs += int(counted) * problem.batch * problem.heads // (len(first) * len(table))
    work = 2 * pairs * (problem.head_dim + problem.v_head_dim)
    read = _of_kv_heads(problem, read_bhm) if decodes else None
    return Cost(by_phase(problem, work), end_bytes(problem, read, read))


def _of_kv_heads(problem: Problem, visible_bhm: NDArray[np.bool_]) -> int:
    """Keys that some query head reads, over the batch and the key/value heads."""
    b, h, m = visible_bhm.shape
    if h > 1:
        by_group = visible_bhm.reshape(b, problem.kv_heads, -1, m)
        return int(by_group.any(2).sum()) * problem.batch // b
    return int(visible_bhm.sum()) * problem.batch * problem.kv_heads // b
