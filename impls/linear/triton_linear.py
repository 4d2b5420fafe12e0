"""linear.elu under a causal mask in Triton, ours: the state stays on the chip.

What it computes is :mod:`impls.linear.elu`'s, features included. The tokens of a head are cut into
segments, up to eight for each processor of the device over all heads. Of each, one kernel sums up
phi(k) v^T and phi(k), a second adds these up over the segments before it, sixteen at a time, and a
third walks from chunk to chunk of 64 tokens with the state in registers: no state is written for a
chunk. Where the heads alone fill the device, there is one segment and only the walk.

Bytes, at width 128 in bfloat16, forward: 64 KiB a chunk for q, k, v and the output, 32 for k and v
again, and 256 / S for float32 states of segments of S chunks, written and read twice: with eight
twice a copy's. A state a chunk would be 5.5 times a copy's, in bfloat16 4.

Backward is the same walk three times, with other tensors in its roles (x, y, w; the kernels' own
legend), u = do / sum and r = -(o . u):

    dphi(q)_i = sum over j <= i of (u_i . v_j + r_i) phi(k)_j
    dphi(k)_j = sum over i >= j of (v_j . u_i + r_i) phi(q)_i
    dv_j      = sum over i >= j of (phi(k)_j . phi(q)_i) u_i

Of query heads that share keys each writes its own dk and dv, in float32, and those are added.
Products are bfloat16's for bfloat16; float16 has too short a range for sums, so it is multiplied as
TF32, which has its digits; float32 in full, without tensor cores. Chunks, and how much of a state a
program holds, are a table by dtype and width: in bfloat16 up to 128 wide all products are wgmma on
Hopper, and no register is spilled. No GPU has tuned it.

Cost: as linear.elu; besides, 2 C (d + e) FLOPs a query, and k and v read twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from impls.heads import Attend
from impls.jit import fitting, kernels, power, precision, processors, rows_of, steps
from impls.problem import Problem
from impls.spec import Unsupported

TABLES = {  # by the wider head, up to: tokens in a chunk, numbers of a state that a program holds
    "bfloat16": {64: (64, 1 << 13), 128: (64, 1 << 13), 256: (32, 1 << 12)},
    "float16": {256: (32, 1 << 12)},
    "float32": {256: (16, 1 << 11)},
}
WIDEST = 256
TILE = 64
"""Channels of x and y that the walk holds at a time where there are two tiles of them."""
WARPS, STAGES = 8, 1
FILL, LEAST = 8, 4
"""Segments for each processor, so that the last round is a small part, and the fewest chunks of a
segment: with fewer, states cost more than waiting."""


class Part(NamedTuple):
    """A tensor in a role of the walk; ``group`` query heads share each of its heads."""

    tensor: Tensor
    role: str
    """A role: "features" of q or k; v is "plain"; "upstream" is over the sum of its row."""
    group: int

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.tensor.shape[-1]

    @property
    def columns(self) -> int:
        """The same as a power of two, which tensors of Triton must be wide."""
        return power(self.width)


class Walk:
    """``attend``, and how its kernels are launched."""

    def __init__(self, problem: Problem, chunk: int, segments: int) -> None:
        self.kernels = kernels("impls.linear.walk_kernels", "triton.linear", problem)
        self.problem, self.half = problem, problem.dtype == "bfloat16"
        widest = max(problem.head_dim, problem.v_head_dim)
        table = TABLES[problem.dtype]
        own_chunk, self.state = next(choice for most, choice in table.items() if widest <= most)
        self.chunk = chunk or own_chunk
        chunks = -(-problem.kv_len // self.chunk)
        heads = problem.batch * problem.heads
        fill = min(FILL * processors(problem.device) // heads, chunks // LEAST)
        self.length = -(-chunks // max(1, segments or fill)) * self.chunk
        self.segments = -(-problem.kv_len // self.length)
        self.used = problem.head_dim * (problem.v_head_dim + 1)
        self.numbers = -(-self.used // 16) * 16

    @fitting("triton.linear")
    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """One call; the first of each kernel compiles it."""
        out: Tensor = _Attention.apply(q_bhnd, k_bcmd, v_bcme, self)  # type: ignore[no-untyped-call]
        return out

    def note(self) -> str:
        """The cut of the tokens."""
        return f"chunks of {self.chunk} tokens, segments: {self.segments}"

    def states(self, y: Part, w: Part, over: Tensor, terms: Tensor | None = None) -> Tensor:
        """The state before each segment: y's features by w. With ``terms``, the state after it."""
        heads = y.tensor.shape[0] * y.tensor.shape[1]
        sums = over.new_empty(heads, self.segments, self.numbers)
        if self.segments == 1:
            return sums
        states = torch.empty_like(sums)
        columns = self._columns(y, w)
        self.kernels.sums[(heads * self.segments * -(-w.width // columns),)](
            y.tensor, w.tensor, over, over if terms is None else terms, sums, steps(y.tensor),
            steps(w.tensor), y.tensor.shape[1], self.problem.kv_len, self.segments, self.length,
            self.numbers, Y_WIDTH=y.width, Y_COLUMNS=y.columns, W_WIDTH=w.width,
            W_COLUMNS=columns, Y_ROLE=y.role, W_ROLE=w.role,
            TERM="sum" if terms is None else "keys", **self.shared_arguments,
        )  # fmt: skip
        self.kernels.before[(heads * -(-self.numbers // 128),)](
            sums, states, self.segments, self.used, self.numbers, REVERSED=terms is not None,
            TILE=16, BLOCK=128,
        )  # fmt: skip
        return states

    def walk(self, x: Part, y: Part, w: Part, out: Tensor, over: Tensor, states: Tensor, *,
             group: int = 1, term: str = "none", terms: Tensor | None = None,
             slope: Part | None = None, unrounded: Tensor | None = None,
             reverse: bool = False) -> None:  # fmt: skip
        """Write ``out``; ``group`` query heads share each of the states."""
        features = x.role == "features"
        cancels = self.problem.dtype != "float32" and (term == "rows" or unrounded is not None)
        columns = self._columns(x, w)
        if x.columns > TILE and term != "none":  # else registers would be spilled
            columns = max(16, columns // 2)
        slope = slope or x
        blocks = -(-w.width // columns)
        self.kernels.walk[(self.problem.batch * self.problem.heads * self.segments * blocks,)](
            x.tensor, y.tensor, w.tensor, out, over if unrounded is None else unrounded,
            slope.tensor, over, over if terms is None else terms, states,
            *map(steps, (x.tensor, y.tensor, w.tensor, out, slope.tensor)),
            x.group, y.group, w.group, slope.group, group, self.problem.heads, self.problem.kv_len,
            self.segments, self.length, self.numbers, w.width if features else 1,
            1 if features else x.width, X_WIDTH=x.width, X_COLUMNS=x.columns,
            TILE=TILE if self.half and x.columns == 2 * TILE else x.columns, W_WIDTH=w.width,
            W_COLUMNS=columns, X_ROLE=x.role, Y_ROLE=y.role, W_ROLE=w.role, TERM=term,
            SLOPED=slope is not x, KEEPS=unrounded is not None, CANCELS=cancels,
            REVERSED=reverse, CARRIED=self.segments > 1,
            **self.shared_arguments,
        )  # fmt: skip

    def _columns(self, x: Part, w: Part) -> int:
        """Columns of a state: as many as there is room for."""
        return min(w.columns, max(16, self.state // x.columns))

    @property
    def shared_arguments(self) -> dict[str, Any]:
        """The named arguments of every kernel with products."""
        dtype = getattr(torch, self.problem.dtype)
        return {"CHUNK": self.chunk, "HALF": self.half, "PRECISION": precision(dtype),
                "num_warps": WARPS, "num_stages": STAGES}  # fmt: skip


def build(problem: Problem, chunk: int, segments: int) -> Attend:
    """An option of 0 is the table's, or what fills the device."""
    if chunk < 0 or chunk & (chunk - 1) or 0 < chunk < 16 or segments < 0:
        raise Unsupported(
            f"chunk={chunk} must be a power of two, 16 or more, or 0 for the table's; "
            f"segments={segments} 1 or more, or 0 for what fills the device"
        )
    if problem.v_head_dim > WIDEST:
        raise Unsupported(f"triton.linear has no blocks for v_head_dim={problem.v_head_dim}: "
                          f"{WIDEST} is the widest")  # fmt: skip
    return Walk(problem, chunk, segments)


class _Attention(torch.autograd.Function):
    """Keeps q, k, v, the output unrounded, a number a row, and a state a segment."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, walk: Walk) -> Tensor:
        q, k, v = (rows_of(x) for x in (q, k, v))
        group = walk.problem.group
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        over = q.new_empty(q.shape[:3], dtype=torch.float32)
        keys, values = Part(k, "features", group), Part(v, "plain", group)
        states = walk.states(keys, values, over)
        queries = Part(q, "features", 1)
        unrounded = None
        if q.dtype != torch.float32 and any(ctx.needs_input_grad):
            unrounded = torch.empty_like(
                out, dtype=torch.float32, memory_format=torch.contiguous_format
            )
        walk.walk(
            queries, keys, values, out, over, states, group=group, term="sum", unrounded=unrounded
        )
        ctx.save_for_backward(q, k, v, out if unrounded is None else unrounded, over, states)
        ctx.walk = walk
        return out

    @staticmethod
    @fitting("triton.linear")
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, unrounded, over, before = ctx.saved_tensors
        walk, dout = ctx.walk, rows_of(upstream[0])
        problem, lost = walk.problem, torch.empty_like(over)
        group, width = problem.group, v.shape[-1]
        walk.kernels.losses[(-(-problem.q_len // 64) * problem.batch * problem.heads,)](
            unrounded, dout, over, lost, steps(dout), problem.heads, problem.q_len, CHUNK=64,
            WIDTH=width, COLUMNS=power(width), HALF=walk.half,
            PRECISION=precision(q.dtype),
        )  # fmt: skip
        queries, keys = Part(q, "features", 1), Part(k, "features", group)
        values, u = Part(v, "plain", group), Part(dout, "upstream", 1)
        dq = torch.empty_like(q)
        walk.walk(
            u, values, keys, dq, over, before, group=group, term="rows", terms=lost, slope=queries
        )
        after = walk.states(queries, u, over, lost)
        dtype = q.dtype if group == 1 else torch.float32
        dk, dv = (q.new_empty(*q.shape[:3], x.shape[-1], dtype=dtype) for x in (k, v))
        walk.walk(
            values, u, queries, dk, over, after, term="keys", terms=lost, slope=keys, reverse=True
        )
        walk.walk(keys, queries, u, dv, over, after, reverse=True)
        if group > 1:
            dk, dv = (x.unflatten(1, (-1, group)).sum(2).to(q.dtype) for x in (dk, dv))
        return dq, dk, dv, None
