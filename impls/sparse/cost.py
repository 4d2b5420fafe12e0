"""What the sparse variants cost: two products on the pairs that each one's pattern lets meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from impls.cost import Cost, by_phase, end_bytes, softmax
from impls.problem import Problem
from impls.spec import Unsupported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "bigbird", "blocksparse", "dilated", "fixed", "longformer", "lsh", "routing", "strided", "topk",
    "window",
]  # fmt: skip


def on_pairs(problem: Problem, pairs: int) -> Cost:
    """Softmax attention on so many pairs of each head."""
    product_pair = 2 * pairs * (problem.head_dim + problem.v_head_dim)
    return Cost(by_phase(problem, product_pair * problem.batch * problem.heads), end_bytes(problem))


def window(problem: Problem, block: int = 0) -> Cost:
    """The pairs of the problem's mask, whatever the block."""
    return softmax(problem)


def root(n: int) -> int:
    """About the square root."""
    return max(round(n**0.5), 1)


def stride_of(problem: Problem, stride: int, summary: int = 1) -> int:
    """The stride that is meant: 0 balances n / stride columns, ``summary`` each, with a block."""
    return min(stride if stride > 0 else root(problem.kv_len * max(summary, 1)), problem.kv_len)


def _new_rows(problem: Problem, keys_n: NDArray[np.int64]) -> Cost:
    """Of so many keys to each row, those of the rows that are asked: in decode the last ones."""
    return on_pairs(problem, int(keys_n[-problem.q_len :].sum()))


def _sides(problem: Problem, left: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Cost:
    """Row i sees left(i) keys before itself, itself, and as many after by symmetry."""
    import numpy as np

    row = np.arange(problem.kv_len)
    keys = left(row) + 1
    return _new_rows(problem, keys if _causal(problem) else keys + left(row[::-1]))


def _causal(problem: Problem) -> bool:
    return "causal" in problem.mask.kinds


def strided(problem: Problem, stride: int) -> Cost:
    """The keys less than a stride away, and every stride-th."""
    step = stride_of(problem, stride)
    return _sides(problem, lambda i: i.clip(max=step - 1) + i // step)


def fixed(problem: Problem, stride: int, summary: int) -> Cost:
    """Its own block, and the last columns of the others."""
    import numpy as np

    n, step = problem.kv_len, stride_of(problem, stride, summary)
    last = max(min(summary, step), 0)
    row = np.arange(n)
    start = row // step * step
    if _causal(problem):
        return _new_rows(problem, row - start + 1 + start // step * last)
    columns = int((row % step >= step - last).sum())
    size = np.minimum(step, n - start)
    return _new_rows(problem, size + columns - np.maximum(size - (step - last), 0))


def dilated(problem: Problem, dilation: int, width: int) -> Cost:
    """``width`` keys on each side, a dilation apart."""
    step = max(dilation, 1)
    return _sides(problem, lambda i: (i // step).clip(max=max(width, 0)))


def longformer(problem: Problem, window: int, globals: int) -> Cost:
    """The window and the global columns; without causality the global rows too."""
    import numpy as np

    n, near = problem.kv_len, max(window, 0)
    first = max(min(globals, n), 0)
    row = np.arange(n)
    if _causal(problem):
        start = np.maximum(row - near, 0)
        return _new_rows(problem, row - start + 1 + np.minimum(first, start))
    start, stop = np.maximum(row - near, first), np.minimum(row + near, n - 1)
    return _new_rows(problem, np.where(row < first, n, stop - start + 1 + first))


def bigbird(problem: Problem, block: int, globals: int, random: int, seed: int) -> Cost:
    """Blocks by blocks; under a causal mask a row's own block up to its place."""
    import numpy as np

    n, size = problem.kv_len, max(min(block, problem.kv_len), 1)
    count = -(-n // size)
    first, more = max(min(globals, count), 0), max(random, 0)
    keys = np.zeros(n, np.int64)
    for t in range(count):
        rows = slice(t * size, min((t + 1) * size, n))
        stop = t + 1 if _causal(problem) else count
        if t < first and not _causal(problem):
            keys[rows] = n
            continue
        sure = set(range(min(first, stop))) | {x for x in (t - 1, t, t + 1) if 0 <= x < stop}
        # which blocks are drawn makes a difference for the last, shorter one alone: left out
        blocks = len(sure) + min(more, stop - len(sure))
        seen = min(blocks * size, n)
        inside = np.arange(1, rows.stop - rows.start + 1)
        keys[rows] = seen - size + inside if _causal(problem) else seen
    return _new_rows(problem, keys)


# ---- chosen by the data --------------------------------------------------------------------------


def topk(problem: Problem, k: int) -> Cost:
    """Every visible score forward; of the output and all that is backward, the chosen alone."""
    import numpy as np

    if any(p.file for p in problem.mask.parts):
        in_sight = problem.mask.visible(problem.shape).sum(-1)
    else:
        first, past = problem.mask.spans(problem.shape)
        in_sight = (past - first)[:, None]
    each = problem.batch * problem.heads
    chosen = int(np.minimum(in_sight, max(k, 0)).sum()) * each
    chosen //= in_sight.shape[0] * in_sight.shape[1]
    scores = 2 * problem.mask.pairs(problem.shape) * problem.head_dim
    forward = scores + 2 * chosen * problem.v_head_dim
    backward = 4 * chosen * (problem.head_dim + problem.v_head_dim)
    work = {"backward": backward, "train": forward + backward}.get(problem.phase, forward)
    return Cost(work, end_bytes(problem))


def hash_widths(length: int, bucket: int) -> tuple[int, ...]:
    """How many buckets are hashed to: even; above 128 the product of two."""
    chunks = -(-length // max(bucket, 1))
    buckets = 2 * -(-chunks // 2)
    if buckets <= 128:
        return (buckets,)
    one = 2 * -(-round(buckets**0.5) // 2)
    return one, 2 * -(-buckets // (2 * one))


def lsh(problem: Problem, rounds: int, bucket: int, seed: int, shared: bool) -> Cost:
    """Each round: hashing, and each token with its own chunk and the one before."""
    n, length = problem.kv_len, min(max(bucket, 1), problem.kv_len)
    attend = on_pairs(problem, max(rounds, 0) * n * min(2 * length, n))
    tokens = problem.batch * n * (problem.heads + (0 if shared else problem.kv_heads))
    columns = sum(hash_widths(n, bucket)) // 2
    hashing = 2 * tokens * problem.head_dim * columns * max(rounds, 0)
    return attend._replace(flops=attend.flops + _once(problem, hashing))


def routes(problem: Problem, clusters: int, window: int) -> tuple[int, int, int]:
    """How many clusters there are, and how many queries and keys each takes."""
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


# ---- a user's layout -----------------------------------------------------------------------------


def block_layout(problem: Problem, layout: str, block: int) -> NDArray[np.bool_]:
    """Which blocks of queries and keys may meet, [heads or 1, q_blocks, k_blocks].

    Raises Unsupported with a sentence where the file is no such table.
    """
    import numpy as np

    q_blocks, k_blocks = -(-problem.q_len // block), -(-problem.kv_len // block)
    if not layout:
        offset = 0 if problem.mask.upper_left else problem.kv_len - problem.q_len
        start = np.arange(q_blocks)[:, None] * block + offset
        stop = np.minimum(start + block, problem.q_len + offset)
        key = np.arange(k_blocks)
        near = (key >= start // block - 1) & (key <= (stop - 1) // block)
        return np.asarray(near | (key == 0))[None]
    try:
        table = np.load(layout)
    except (OSError, ValueError, EOFError) as why:
        raise Unsupported(f"layout={layout} can't be read as an .npy file: {why}") from None
    wanted = f"booleans [{q_blocks}, {k_blocks}] or [{problem.heads}, {q_blocks}, {k_blocks}]"
    if not isinstance(table, np.ndarray) or table.dtype != np.bool_:
        held = table.dtype if isinstance(table, np.ndarray) else "several arrays"
        raise Unsupported(f"layout={layout} holds {held}; with block={block} it must be {wanted}")
    shapes = (q_blocks, k_blocks), (problem.heads, q_blocks, k_blocks)
    if table.shape not in shapes:
        held = list(table.shape)
        raise Unsupported(f"layout={layout} is {held}; with block={block} it must be {wanted}")
    return table.reshape(-1, q_blocks, k_blocks)


def blocksparse(problem: Problem, layout: str, block: int) -> Cost:
    """The pairs that the layout and the mask allow."""
    import numpy as np

    size = max(block, 1)
    try:
        table = block_layout(problem, layout, size)
    except Unsupported:  # said by build; here only that there is no more work than without it
        return window(problem)
    files = any(p.file for p in problem.mask.parts)
    key = np.arange(problem.kv_len)
    pairs = 0
    for row_block in range(table.shape[1]):
        rows = np.arange(row_block * size, min((row_block + 1) * size, problem.q_len))
        allowed = table[:, row_block]
        if files:
            seen = problem.mask.visible(problem.shape, rows) & allowed[None, :, None, key // size]
            share = problem.batch * problem.heads // (seen.shape[0] * seen.shape[1])
            pairs += int(seen.sum()) * share
            continue
        first, past = (x[..., None] for x in problem.mask.spans(problem.shape, rows))
        start = np.arange(table.shape[2]) * size
        overlap = (np.minimum(past, start + size) - np.maximum(first, start)).clip(min=0)
        counted = np.einsum("brk,hk->", overlap, allowed.astype(np.int64))
        pairs += int(counted) * problem.batch * problem.heads // (len(first) * len(table))
    work = 2 * pairs * (problem.head_dim + problem.v_head_dim)
    return Cost(by_phase(problem, work), end_bytes(problem))
