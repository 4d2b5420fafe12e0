"""FlashAttention in Triton, ours: no score ever leaves the chip (Dao, arXiv:2307.08691).

Forward, a program takes a block of queries along the keys with a running maximum and sum, in base
two, and keeps the log of the sum of each row. Backward makes the weights again from it. The masks
none, causal and window are a band: blocks outside of it are not visited, and only those at its
edges, and at the end of the keys, look at single pairs. Sums are float32; float32 inputs are
multiplied in full, without tensor cores. A head_dim that is no power of two costs what the next
one does.

Where the chip has a tensor memory accelerator (Hopper, and Blackwell but for desktops), blocks of
two-byte numbers are copied by it, as host descriptors say where they lie; elsewhere, and where
tokens lie at steps that a descriptor can't have, threads load them through pointers. That costs
them 110 registers of 255, so the blocks of the two tables differ.

Blocks, warps and stages are a table by compute capability, bytes of a number and head_dim. It fits
the shared memory that a block has there (227 KiB on Hopper, 99 on a 4090), as the compiler says;
no GPU has tuned it. ``q_block``, ``k_block``, ``warps`` and ``stages`` stand for the forward
kernel's; ``keys=64x64x4x2`` for those of dk and dv, and ``queries`` for dq's.

``fused=true``: the kernel of dk and dv adds to dq in place, in float32. That is five products for
seven, and dq is not the same to the last bit from call to call. It has no use for ``queries``.

Legend of the kernels: first, last places of a block; begin, whole, rest, end as in ``stretch``;
scale includes log2(e), since exponentials are powers of two; CAP, scores are a tanh of themselves
times inner, and scale is that of the soft cap.

Cost: 4 n m d FLOPs a head forward over the blocks read, 14 backward (10 where fused) for the 8 that
are needed and 2 made again; memory: the output, a float32 a row, and backward another, and dq in
float32 where fused.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor

from impls.heads import Attend
from impls.jit import (
    HOPPER,
    Band,
    band,
    capability,
    described,
    fitting,
    kernels,
    power,
    precision,
    rows_of,
    steps,
)
from impls.problem import Problem
from impls.score_mask import with_log_sums
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
BY_TMA: Table = {
    64: (Launch(128, 128, 8, 3), Launch(64, 128, 8, 2), Launch(128, 128, 8, 2)),
    128: (Launch(128, 128, 8, 2), Launch(64, 128, 8, 2), Launch(128, 64, 8, 2)),
    256: (Launch(128, 64, 8, 2), Launch(32, 64, 8, 2), Launch(128, 32, 8, 2)),
}
FUSED_ON_HOPPER = dict.fromkeys((64, 128), Launch(64, 128, 8, 2))
FUSED_ON_BLACKWELL = {64: Launch(64, 128, 8, 2), 128: Launch(64, 64, 8, 2)}
FUSED_ELSEWHERE = dict.fromkeys((64, 128), Launch(32, 64, 8, 2))
FUSED_FLOAT32 = {64: Launch(32, 32, 8, 1), 128: Launch(16, 32, 8, 1)}
"""Launches for dk and dv where dq is added to, by the largest head_dim."""
ROOMY = (90, 100, 103)
"""Compute capabilities with a tensor memory accelerator, and with the 227 KiB of shared memory and
the registers that two tables take."""
SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)")


class Launches(NamedTuple):
    """Those of one way to load blocks: by descriptors or through pointers."""

    forward: Launch
    keys: Launch
    queries: Launch


def launches(problem: Problem, tma: bool, fused: bool) -> Launches:
    """The table's, for this GPU."""
    roomy = capability(problem.device) in ROOMY
    table = FLOAT32 if problem.item_bytes == 4 else HALF_ON_HOPPER if roomy else HALF_ELSEWHERE
    if tma:
        table = BY_TMA
    forward, keys, queries = next(own for most, own in table.items() if problem.head_dim <= most)
    if fused:
        other = FUSED_FLOAT32 if problem.item_bytes == 4 else FUSED_ELSEWHERE
        if tma:
            hopper = capability(problem.device) == HOPPER
            other = FUSED_ON_HOPPER if hopper else FUSED_ON_BLACKWELL
        keys = next(own for most, own in other.items() if problem.head_dim <= most)
    return Launches(forward, keys, queries)


class Flash:
    """``attend``: the kernels, how they are launched, and the mask as a band."""

    def __init__(self, problem: Problem, by_tma: Launches | None, by_pointers: Launches,
                 fused: bool) -> None:  # fmt: skip
        self.kernels = kernels("impls.dense.flash_kernels", "triton.flash", problem)
        self.back = kernels("impls.dense.flash_backward_kernels", "triton.flash", problem)
        self.problem, self.by_tma, self.by_pointers = problem, by_tma, by_pointers
        self.fused = fused
        self.band: Band = band(problem)
        self.mask = {"LEFT": self.band.left >= 0, "RIGHT": self.band.right >= 0}

    @fitting("triton.flash")
    def __call__(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor, sinks: Tensor | None = None
    ) -> Any:
        """One call; the first of each kernel compiles it."""
        return _Attention.apply(q_bhnd, k_bcmd, v_bcmd, sinks, self)  # type: ignore[no-untyped-call]

    def note(self) -> str:
        """The kernels' launches."""
        own = self.by_tma or self.by_pointers
        words = f"{own.forward}, {'by TMA' if self.by_tma else 'by pointers'}"
        if not self.problem.gradients:
            return words
        if self.fused:
            return f"{words}; backward fused, not deterministic: {own.keys}"
        return f"{words}; backward, dk and dv: {own.keys}; dq: {own.queries}"

    def options(self, launch: Launch, dtype: torch.dtype, tma: bool) -> dict[str, Any]:
        """The named arguments of every kernel."""
        d = self.problem.head_dim
        return {
            **self.mask, "Q_BLOCK": launch.q_block, "K_BLOCK": launch.k_block, "HEAD_DIM": d,
            "D": power(d), "PRECISION": precision(dtype), "TMA": tma,
            "CAP": self.problem.softcap is not None, "num_warps": launch.warps,
            "num_stages": launch.stages,
        }  # fmt: skip

    def read(self, tensors: list[Tensor], rows: tuple[str, ...],
             kernel: str) -> tuple[list[Any], Launch, bool]:  # fmt: skip
        """The tensors as the kernel takes them, all by descriptors or none, and its launch.

        ``rows`` says for each whose tokens it holds: a block of q_block or of k_block.
        """
        if self.by_tma is not None:
            launch: Launch = getattr(self.by_tma, kernel)
            d = power(self.problem.head_dim)
            descriptors = [described(x, getattr(launch, size), d)
                     for x, size in zip(tensors, rows, strict=True)]  # fmt: skip
            if all(x is not None for x in descriptors):
                return descriptors, launch, True
        return list(tensors), getattr(self.by_pointers, kernel), False

    @property
    def scales(self) -> tuple[float, float]:
        """The scale of scores whose exponentials are powers of two, and the one inside a tanh."""
        scale, cap = self.problem.scale, self.problem.softcap
        return math.log2(math.e) * (cap or scale), scale / cap if cap else 1.0


def build(problem: Problem, q_block: int, k_block: int, warps: int, stages: int, keys: str = "",
          queries: str = "", fused: bool = False) -> Attend:  # fmt: skip
    """An option of 0, or of no text, is the table's."""
    tma = capability(problem.device) in ROOMY and problem.item_bytes == 2
    if fused and problem.head_dim > max(FUSED_ELSEWHERE):
        widest = max(FUSED_ELSEWHERE)
        raise Unsupported(
            f"fused=true has no blocks for head_dim={problem.head_dim}: {widest} is the widest"
        )
    sizes_of_forward = (q_block, k_block, warps, stages)

    def own(tma: bool) -> Launches:
        table = launches(problem, tma, fused)
        forward = Launch(*(n or m for n, m in zip(sizes_of_forward, table.forward, strict=True)))
        return Launches(
            forward,
            _parse_launch("keys", keys, table.keys),
            _parse_launch("queries", queries, table.queries),
        )

    by_pointers = own(False)
    for *sizes, stages in by_pointers:
        if any(n < 1 or n & (n - 1) for n in sizes) or min(sizes[:2]) < 16 or stages < 1:
            raise Unsupported(
                f"q_block={q_block}, k_block={k_block} and warps={warps} must be powers of two, "
                "the blocks 16 or more, as in keys and queries (such as 64x64x4x2: blocks of "
                "queries and of keys, warps, stages); 0, or nothing, takes what the table of "
                "triton.flash has"
            )
    return Flash(problem, own(True) if tma else None, by_pointers, fused)


def _parse_launch(option: str, text: str, own: Launch) -> Launch:
    if not text:
        return own
    if (match := SHAPE.fullmatch(text)) is None:
        raise Unsupported(
            f"{option}={text} is not like 64x64x4x2: blocks of queries and of keys, warps, stages"
        )
    return Launch(*map(int, match.groups()))


Q, K = "q_block", "k_block"


def _natural(log_sums: Tensor, sinks: Tensor | None) -> Tensor:
    """The natural logarithm of a base of two; of a row that sees nothing its sink, or -inf."""
    blind = log_sums == torch.inf
    alone = torch.tensor(-torch.inf, device=log_sums.device) if sinks is None else sinks.float()
    return torch.where(blind, alone[..., None], log_sums * math.log(2))


class _Attention(torch.autograd.Function):
    """Keeps q, k, v, the output and a log-sum a row, in base two, into which a sink is counted at
    the end. The upstream gradient of the log-sum-exp, where it is an output, is taken off delta.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, flash: Flash
    ) -> Any:
        q, k, v = (rows_of(x) for x in (q, k, v))
        out, problem = torch.empty_like(q), flash.problem
        log_sums = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        ends, launch, tma = flash.read([q, k, v], (Q, K, K), "forward")
        blocks = -(-problem.q_len // launch.q_block)
        flash.kernels.forward[(blocks * problem.batch * problem.heads,)](
            *ends, out, log_sums, steps(q), steps(k), steps(v), steps(out), problem.heads,
            problem.group, problem.q_len, problem.kv_len, *flash.band, *flash.scales,
            **flash.options(launch, q.dtype, tma),
        )  # fmt: skip
        if sinks is not None:
            beside = sinks.float()[:, None] * math.log2(math.e)
            out.mul_(torch.sigmoid((log_sums - beside) * math.log(2))[..., None])
            log_sums = torch.logaddexp2(log_sums, beside.expand_as(log_sums))
        ctx.save_for_backward(q, k, v, sinks, out, log_sums)
        ctx.flash = flash
        return with_log_sums(out, _natural(log_sums, sinks) if problem.lse else None)

    @staticmethod
    @fitting("triton.flash")
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, log_sums = ctx.saved_tensors
        flash, dout = ctx.flash, rows_of(upstream[0])
        problem, delta = flash.problem, torch.empty_like(log_sums)
        dk, dv = (torch.empty_like(x) for x in (k, v))
        d, heads = problem.head_dim, problem.batch * problem.heads
        flash.back.deltas[(-(-problem.q_len // 64) * heads,)](
            out, dout, delta, steps(out), steps(dout), problem.heads, problem.q_len, BLOCK=64,
            HEAD_DIM=d, D=power(d),
        )  # fmt: skip
        for each in upstream[1:]:
            delta -= each
        d_sinks = None
        if sinks is not None:
            taken = torch.exp2(sinks.float()[:, None] * math.log2(math.e) - log_sums)
            if problem.lse:
                taken.masked_fill_(log_sums == torch.inf, 1.0)
            d_sinks = (taken * delta).sum((0, 2)).neg().to(sinks.dtype)
        numbers = (problem.q_len, problem.kv_len, *flash.band, *flash.scales, problem.scale)
        over = torch.zeros(q.shape, dtype=torch.float32, device=q.device) if flash.fused else q
        ends, launch, tma = flash.read([q, k, v, dout, over], (Q, K, K, Q, Q), "keys")
        blocks = -(-problem.kv_len // launch.k_block)
        flash.back.backward_keys[(blocks * problem.batch * problem.kv_heads,)](
            *ends[:4], log_sums, delta, dk, dv, ends[4],
            *map(steps, (q, k, v, dout, dk, dv, over)), problem.kv_heads, problem.group, *numbers,
            FUSED=flash.fused, **flash.options(launch, q.dtype, tma),
        )  # fmt: skip
        if flash.fused:
            return over.mul_(problem.scale).to(q.dtype), dk, dv, d_sinks, None
        dq = torch.empty_like(q)
        ends, launch, tma = flash.read([q, k, v, dout], (Q, K, K, Q), "queries")
        blocks = -(-problem.q_len // launch.q_block)
        flash.back.backward_queries[(blocks * heads,)](
            *ends, log_sums, delta, dq, *map(steps, (q, k, v, dout, dq)), problem.heads,
            problem.group, *numbers, **flash.options(launch, q.dtype, tma),
        )  # fmt: skip
        return dq, dk, dv, d_sinks, None
