"""FlashAttention in Triton, ours: no score ever leaves the chip (Dao, arXiv:2307.08691).

Forward, a program takes a block of queries along the keys with a running maximum and sum, in base
two, and keeps the log of the sum of each row. Backward makes the weights again from it. The masks
none, causal and window are a band: blocks outside of it are not visited, and only those at its
edges, and at the end of the keys, look at single pairs. Sums are float32; float32 inputs are
multiplied in full, without tensor cores. A head_dim that is no power of two costs what the next
one does.

Blocks, warps and stages are a table by compute capability, bytes of a number and head_dim. It fits
the shared memory that a block has there (227 KiB on Hopper, 99 on a 4090), as the compiler says;
no GPU has tuned it. ``q_block``, ``k_block``, ``warps`` and ``stages`` stand for the forward
kernel's; ``keys=64x64x4x2`` for those of dk and dv, and ``queries`` for dq's.

Legend of the kernels: first, last places of a block; begin, whole, rest, end as in ``stretch``;
scale includes log2(e), since exponentials are powers of two.

Cost: 4 n m d FLOPs a head forward over the blocks read, 14 backward for the 8 that are needed and
2 made again; memory: the output, a float32 a row, and backward another.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor

from impls.heads import Attend
from impls.jit import (
    Band,
    band,
    capability,
    fitting,
    kernels,
    power,
    precision,
    rows_of,
    steps,
)
from impls.problem import Problem
from impls.spec import Unsupported


class Launch(NamedTuple):
    """The blocks of a kernel, and what the compiler is told."""

    q_block: int
    k_block: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return (
            f"blocks of {self.q_block} queries by {self.k_block} keys, {self.warps} warps, "
            f"{self.stages} stages"
        )


Table = dict[int, tuple[Launch, Launch, Launch]]
"""By head_dim, up to: forward, dk and dv, dq."""
FLOAT32: Table = {
    64: (Launch(32, 32, 8, 2), Launch(32, 32, 8, 1), Launch(32, 32, 8, 1)),
    128: (Launch(32, 32, 8, 2), Launch(32, 32, 8, 1), Launch(32, 32, 8, 1)),
    256: (Launch(32, 16, 8, 1), Launch(16, 16, 8, 1), Launch(16, 16, 8, 1)),
}
HALF_ON_HOPPER: Table = {
    64: (Launch(128, 64, 4, 3), Launch(64, 128, 8, 2), Launch(128, 64, 8, 2)),
    128: (Launch(64, 64, 4, 2), Launch(32, 128, 8, 2), Launch(64, 64, 4, 2)),
    256: (Launch(128, 32, 8, 2), Launch(32, 64, 8, 2), Launch(128, 32, 8, 2)),
}
HALF_ELSEWHERE: Table = {
    64: (Launch(128, 64, 4, 2), Launch(32, 128, 8, 2), Launch(128, 64, 8, 2)),
    128: (Launch(64, 64, 4, 2), Launch(64, 64, 8, 2), Launch(64, 64, 8, 2)),
    256: (Launch(64, 32, 8, 2), Launch(32, 32, 8, 2), Launch(64, 16, 8, 2)),
}
ROOMY = (90, 100, 103)
"""Compute capabilities with the 227 KiB of shared memory and the registers of Hopper's table."""
SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)")


def launches(problem: Problem) -> tuple[Launch, Launch, Launch]:
    """Forward, dk and dv, dq."""
    half = HALF_ON_HOPPER if capability(problem.device) in ROOMY else HALF_ELSEWHERE
    table = FLOAT32 if problem.item_bytes == 4 else half
    return next(found for most, found in table.items() if problem.head_dim <= most)


class Flash:
    """``attend``: the kernels, how they are launched, and the mask as a band."""

    def __init__(self, problem: Problem, forward: Launch, keys: Launch, queries: Launch) -> None:
        self.made = kernels("impls.dense.flash_kernels", "triton.flash", problem)
        self.back = kernels("impls.dense.flash_backward_kernels", "triton.flash", problem)
        self.problem, self.forward, self.keys, self.queries = problem, forward, keys, queries
        self.band: Band = band(problem)
        self.mask = {"LEFT": self.band.left >= 0, "RIGHT": self.band.right >= 0}

    @fitting("triton.flash")
    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor) -> Tensor:
        """One call; the first of each kernel compiles it."""
        out: Tensor = _Attention.apply(q_bhnd, k_bcmd, v_bcmd, self)  # type: ignore[no-untyped-call]
        return out

    def note(self) -> str:
        """How the kernels are launched."""
        return (
            f"{self.forward}; backward, dk and dv: {self.keys}; dq: {self.queries}"
            if self.problem.gradients
            else f"{self.forward}"
        )

    def told(self, launch: Launch, dtype: torch.dtype) -> dict[str, Any]:
        """What every kernel is told by name."""
        d = self.problem.head_dim
        return {
            **self.mask, "Q_BLOCK": launch.q_block, "K_BLOCK": launch.k_block, "HEAD_DIM": d,
            "D": power(d), "PRECISION": precision(dtype), "num_warps": launch.warps,
            "num_stages": launch.stages,
        }  # fmt: skip

    @property
    def scale(self) -> float:
        """Of scores whose exponentials are powers of two."""
        return self.problem.scale * math.log2(math.e)


def build(problem: Problem, q_block: int, k_block: int, warps: int, stages: int, keys: str = "",
          queries: str = "") -> Attend:  # fmt: skip
    """An option of 0, or of no text, is the table's."""
    forward, of_keys, of_queries = launches(problem)
    given = (q_block, k_block, warps, stages)
    forward = Launch(*(n or own for n, own in zip(given, forward, strict=True)))
    found = (forward, _asked("keys", keys, of_keys), _asked("queries", queries, of_queries))
    for *sizes, stages in found:
        if any(n < 1 or n & (n - 1) for n in sizes) or min(sizes[:2]) < 16 or stages < 1:
            raise Unsupported(
                f"q_block={q_block}, k_block={k_block} and warps={warps} must be powers of two, "
                "the blocks 16 or more, as in keys and queries (such as 64x64x4x2: blocks of "
                "queries and of keys, warps, stages); 0, or nothing, takes what the table of "
                "triton.flash has"
            )
    return Flash(problem, *found)


def _asked(option: str, text: str, own: Launch) -> Launch:
    if not text:
        return own
    if (told := SHAPE.fullmatch(text)) is None:
        raise Unsupported(
            f"{option}={text} is not like 64x64x4x2: blocks of queries and of keys, warps, stages"
        )
    return Launch(*map(int, told.groups()))


class _Attention(torch.autograd.Function):
    """Keeps q, k, v, the output and a log-sum a row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, flash: Flash) -> Tensor:
        q, k, v = (rows_of(x) for x in (q, k, v))
        out, problem = torch.empty_like(q), flash.problem
        log_sums = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        blocks = -(-problem.q_len // flash.forward.q_block)
        flash.made.forward[(blocks * problem.batch * problem.heads,)](
            q, k, v, out, log_sums, steps(q), steps(k), steps(v), steps(out), problem.heads,
            problem.group, problem.q_len, problem.kv_len, *flash.band, flash.scale,
            **flash.told(flash.forward, q.dtype),
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, log_sums)
        ctx.flash = flash
        return out

    @staticmethod
    @fitting("triton.flash")
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sums = ctx.saved_tensors
        flash, dout = ctx.flash, rows_of(upstream[0])
        problem, delta = flash.problem, torch.empty_like(log_sums)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        d, heads = problem.head_dim, problem.batch * problem.heads
        flash.back.deltas[(-(-problem.q_len // 64) * heads,)](
            out, dout, delta, steps(out), steps(dout), problem.heads, problem.q_len, BLOCK=64,
            HEAD_DIM=d, D=power(d),
        )  # fmt: skip
        ends = (problem.q_len, problem.kv_len, *flash.band, flash.scale, problem.scale)
        read = (q, k, v, dout, log_sums, delta)
        read_steps = (steps(q), steps(k), steps(v), steps(dout))
        blocks = -(-problem.kv_len // flash.keys.k_block)
        flash.back.backward_keys[(blocks * problem.batch * problem.kv_heads,)](
            *read, dk, dv, *read_steps, steps(dk), steps(dv), problem.kv_heads, problem.group,
            *ends, **flash.told(flash.keys, q.dtype),
        )  # fmt: skip
        blocks = -(-problem.q_len // flash.queries.q_block)
        flash.back.backward_queries[(blocks * heads,)](
            *read, dq, *read_steps, steps(dq), problem.heads, problem.group, *ends,
            **flash.told(flash.queries, q.dtype),
        )  # fmt: skip
        return dq, dk, dv, None
