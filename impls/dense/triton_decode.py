"""Few queries on many keys in Triton, ours: the keys split over programs (flash-decoding).

One query has too few rows to keep a GPU busy, so each head's keys are dealt out to programs, as
many as twice fill the device; each keeps a maximum, a sum and an output of its share, and a second
kernel puts them together. The query heads of one key/value head stand as rows of one block, so
every key is read once. Masks: none, causal and window; keys that no query sees are not read.

Cost: 4 n m d FLOPs a head; the bytes of the cache; float32 parts, d + 2 a row and share.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from impls.heads import Attend
from impls.jit import band, fitting, kernels, power, precision, processors, rows_of, steps
from impls.problem import Problem
from impls.spec import Unsupported

K_BLOCK = {2: {64: 128, 128: 64, 256: 32}, 4: {64: 64, 128: 32, 256: 16}}
"""Keys at a time, by bytes of a number and head_dim."""
MOST_SPLITS = 64


def build(problem: Problem, splits: int) -> Attend:
    """``splits`` of 0 fills the device twice."""
    if splits < 0 or splits > MOST_SPLITS:
        raise Unsupported(f"splits={splits} must be 1 to {MOST_SPLITS}, or 0 for what fits")
    made = kernels("impls.dense.decode_kernels", "triton.decode", problem)
    own = band(problem)
    n, m, d, rows = problem.q_len, problem.kv_len, problem.head_dim, problem.group * problem.q_len
    begin = max(own.shift - own.left, 0) if own.left >= 0 else 0
    end = min(max(n + own.shift + own.right, 0), m) if own.right >= 0 else m
    k_block = next(b for most, b in K_BLOCK[problem.item_bytes].items() if d <= most)
    row_block = min(power(rows), 64 if problem.item_bytes == 2 else 16)
    heads = problem.batch * problem.kv_heads * -(-rows // row_block)
    blocks = -(-max(end - begin, 1) // k_block)
    wanted = splits or -(-2 * processors(problem.device) // heads)
    share = -(-blocks // min(wanted, blocks, MOST_SPLITS)) * k_block
    parts = -(-blocks * k_block // share)
    told = {"HEAD_DIM": d, "D": power(d)}
    scale = problem.scale * math.log2(math.e)

    @fitting("triton.decode")
    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor) -> Tensor:
        q, k, v = (rows_of(x) for x in (q_bhnd, k_bcmd, v_bcmd))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        parts_rsd = q.new_empty((*q.shape[:3], parts, d), dtype=torch.float32)
        tops, totals = q.new_empty((2, *q.shape[:3], parts), dtype=torch.float32)
        made.read_keys[(heads * parts,)](
            q, k, v, parts_rsd, tops, totals, steps(q), steps(k), steps(v), problem.kv_heads,
            problem.group, n, m, begin, end, *own, scale, parts, share, ROWS=row_block,
            K_BLOCK=k_block, LEFT=own.left >= 0, RIGHT=own.right >= 0,
            PRECISION=precision(q.dtype), num_warps=4, num_stages=3, **told,
        )  # fmt: skip
        made.put_together[(problem.batch * problem.heads * n,)](
            parts_rsd, tops, totals, out, parts, SPLITS=power(parts, 1), **told
        )
        return out

    return attend
