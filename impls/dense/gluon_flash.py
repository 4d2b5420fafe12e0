"""FlashAttention for Hopper in Gluon, ours, after FlashAttention-3 (Shah et al., arXiv:2407.08608).

A producer warp brings tiles by TMA, and two groups of four warps take 64 queries each. The next
product with the keys is in flight while the weights of this one are made. There is one program a
processor: it takes tiles in turn, long and short ones alternating. The mask is looked at in tiles
at its edges alone, and the sums are scaled down only where a maximum grew by more than ``lazy``, in
powers of two: until then weights are up to 2^lazy, and the division by their sum takes that away.
Backward, one kernel makes dq and another dk and dv, of the same structure: seven products for five,
and the same bits from call to call.

Gluon has no interpreter. The tests run the kernels' own source on a CPU, with barriers, copies and
products that end as late as they may (tests/impls/in_triton/gluon_emulated.py), so there is no twin
of it in ``tl``. No GPU has run it yet.

Legend of the kernels: query i sees the keys from i + low up to i + high; scale includes log2(e),
since exponentials are powers of two; begin, whole, rest as in ``stretch``.

Cost: 4 n m d FLOPs a head forward over the tiles read, 14 backward for the 8 that are needed and 2
made again; memory: the output, a float32 a row, and backward another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from impls.heads import Attend
from impls.jit import HOPPER, band, capability, kernels, processors, rows_of
from impls.problem import Problem
from impls.spec import Unsupported

MODULE, BACKWARD = "impls.dense.gluon_kernels", "impls.dense.gluon_backward_kernels"
ROWS, BLOCK = 128, 128
"""Queries and keys of a tile."""
BACKWARD_BLOCK = 64
"""Rows of the other side, backward: two products of it are in registers at a time."""
REGISTERS, LAUNCHED_WITH = 240, 168
"""Registers of a thread that makes products, after it took the producer's; of each at the start."""
L2_BYTES = 32 << 20
"""Bytes of keys and values that programs read at a time: of Hopper's 50 MB, what surely stays."""


class Flash:
    """``attend``: the kernel, and what it is launched with."""

    def __init__(self, problem: Problem, stages: int, lazy: float) -> None:
        self.kernels = kernels(MODULE, "gluon.flash", problem)
        self.back = kernels(BACKWARD, "gluon.flash", problem)
        self.problem, self.stages, self.lazy = problem, stages, lazy
        self.programs = processors(problem.device)
        shift, left, right = band(problem)
        self.band = (shift - left, shift + right + 1)
        self.mask = {"LOW": left >= 0, "HIGH": right >= 0}

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor) -> Tensor:
        """One call; the first of each kernel compiles it."""
        out: Tensor = _Attention.apply(q_bhnd, k_bcmd, v_bcmd, self)  # type: ignore[no-untyped-call]
        return out

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the log of the sum of each row, in base two, of whole tiles of rows."""
        p = self.problem
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        blocks, all_heads = -(-p.q_len // ROWS), p.batch * p.heads
        rows = (p.batch, p.heads, blocks * ROWS)
        log_sums = torch.empty(rows, dtype=torch.float32, device=q.device)
        described = self.kernels.described
        self.kernels.forward[(min(self.programs, blocks * all_heads),)](
            described(q, ROWS // 2), described(k, BLOCK), described(v, BLOCK),
            described(out, ROWS // 2), log_sums, p.batch, p.heads, blocks, self.section, p.group,
            p.q_len, p.kv_len, *self.band, p.scale * math.log2(math.e), BLOCK=BLOCK,
            STAGES=self.stages, LAZY=self.lazy, REGISTERS=REGISTERS, num_warps=4,
            maxnreg=LAUNCHED_WITH, **self.mask,
        )  # fmt: skip
        return out, log_sums

    def backward(self, read: Sequence[Tensor], out: Tensor, log_sums: Tensor) -> tuple[Tensor, ...]:
        """dq, dk and dv, by what was read (q, k, v and the output's gradient)."""
        p, described = self.problem, self.kernels.described
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in read[:3])
        delta = torch.empty_like(log_sums)
        block = BACKWARD_BLOCK
        shared = {"BLOCK": block, "STAGES": 2, "REGISTERS": REGISTERS, "num_warps": 4,
                  "maxnreg": LAUNCHED_WITH}  # fmt: skip
        scales = (p.scale * math.log2(math.e), p.scale)
        blocks = -(-p.q_len // ROWS)
        rows = (ROWS // 2, block, block, ROWS // 2)
        self.back.backward_queries[(min(self.programs, blocks * p.batch * p.heads),)](
            *map(described, read, rows), described(dq, ROWS // 2), out, log_sums, delta, p.batch,
            p.heads, blocks, self.section, p.group, p.q_len, p.kv_len, *self.band, *scales,
            **shared, **self.mask,
        )  # fmt: skip
        low, high = self.band
        blocks = -(-p.kv_len // ROWS)
        rows = (block, ROWS // 2, ROWS // 2, block)
        self.back.backward_keys[(min(self.programs, blocks * p.batch * p.kv_heads),)](
            *map(described, read, rows), described(dk, ROWS // 2), described(dv, ROWS // 2),
            log_sums, delta, p.batch, p.kv_heads, blocks, max(1, self.section // p.group), p.group,
            p.q_len, p.kv_len, 1 - high, 1 - low, *scales, **shared, LOW=self.mask["HIGH"],
            HIGH=self.mask["LOW"],
        )  # fmt: skip
        return dq, dk, dv

    @property
    def section(self) -> int:
        """Heads that are read at a time, so that their keys and values stay in the L2 cache."""
        p = self.problem
        each = 2 * p.kv_len * p.head_dim * p.item_bytes
        return max(1, min(L2_BYTES // each, p.batch * p.kv_heads)) * p.group

    def note(self) -> str:
        """The kernel's launch."""
        return f"tiles of {ROWS} queries by {BLOCK} keys, {self.stages} stages, lazy {self.lazy:g}"


class _Attention(torch.autograd.Function):
    """Keeps q, k, v, the output and a log-sum a row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, flash: Flash) -> Tensor:
        read = [aligned(x) for x in (q, k, v)]
        out, log_sums = flash.forward(*read)
        ctx.save_for_backward(*read, out, log_sums)
        ctx.flash = flash
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        *read, out, log_sums = ctx.saved_tensors
        return *ctx.flash.backward([*read, aligned(upstream[0])], out, log_sums), None


def aligned(x_bhnd: Tensor) -> Tensor:
    """The same where TMA can read it: each token at a multiple of 16 bytes, none twice."""
    x = rows_of(x_bhnd)
    twice = any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True))
    return x.clone(memory_format=torch.contiguous_format) if twice or x.data_ptr() % 16 else x


def build(problem: Problem, stages: int, lazy: float) -> Attend:
    """``stages`` tiles of keys and as many of values are in shared memory."""
    if (device := capability(problem.device)) != HOPPER:
        raise Unsupported(
            f"gluon.flash is written for Hopper's instructions, compute capability 9.0, and the "
            f"device has {device / 10}"
        )
    if problem.head_dim not in (64, 128):
        raise Unsupported(f"gluon.flash takes head_dim 64 and 128, not {problem.head_dim}")
    most = 2 if problem.head_dim == 128 else 5
    if not 1 < stages <= most:
        raise Unsupported(
            f"gluon.flash?stages={stages} has no room, or nothing to overlap: from 2 to {most} at "
            f"head_dim {problem.head_dim}"
        )
    if not 0 <= lazy <= 15:
        raise Unsupported(
            f"gluon.flash?lazy={lazy:g} is not between 0 and 15: weights are up to 2^lazy, and "
            "float16 ends at 2^16"
        )
    return Flash(problem, stages, lazy)
