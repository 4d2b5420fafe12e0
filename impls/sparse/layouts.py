"""Which blocks of queries and keys may meet: tables that variants and their costs both use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from impls.problem import Problem
from impls.spec import Unsupported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def bigbird_sizes(problem: Problem, block: int, globals: int) -> tuple[int, int, int]:
    """The size of a block, how many there are, how many of them are global."""
    size = max(min(block, problem.kv_len), 1)
    count = -(-problem.kv_len // size)
    return size, count, max(min(globals, count), 0)


def bigbird_layout(count: int, globals: int, random: int, seed: int,
                   causal: bool) -> NDArray[np.int64]:  # fmt: skip
    """The blocks of keys for each block of queries that is not done apart: [blocks, K].

    Each once, -1 where there are fewer than K. Global blocks of rows that see all are left out,
    so without causality the first line is that of block ``globals``.
    """
    import numpy as np

    draw, table = np.random.default_rng(abs(seed)), []
    for block in range(0 if causal else globals, count):
        stop = block + 1 if causal else count
        near = {x for x in (block - 1, block, block + 1) if 0 <= x < stop}
        sure = sorted(near | set(range(min(globals, stop))))
        free = stop - len(sure)
        more = max(min(random, free), 0)
        picked: list[int] = draw.choice(free, more, replace=False).tolist() if more else []
        for own in sure:  # from a number among the free ones to a block's own
            picked = [x + (x >= own) for x in picked]
        table.append([*sure, *sorted(picked)])
    width = max(map(len, table), default=0)
    rows = [line + [-1] * (width - len(line)) for line in table]
    return np.array(rows, dtype=np.int64).reshape(len(table), width)


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
    form = f"booleans [{q_blocks}, {k_blocks}] or [{problem.heads}, {q_blocks}, {k_blocks}]"
    if not isinstance(table, np.ndarray) or table.dtype != np.bool_:
        content = table.dtype if isinstance(table, np.ndarray) else "several arrays"
        raise Unsupported(f"layout={layout} holds {content}; with block={block} it must be {form}")
    shapes = (q_blocks, k_blocks), (problem.heads, q_blocks, k_blocks)
    if table.shape not in shapes:
        content = list(table.shape)
        raise Unsupported(f"layout={layout} is {content}; with block={block} it must be {form}")
    return table.reshape(-1, q_blocks, k_blocks)
