"""The gated delta rules in Triton, ours: the state stays on the chip.

What they compute is :mod:`impls.linear.gated_delta`'s, where the letters are explained. One kernel
makes P, W and U of all chunks at once: decays a channel by halving the chunk, the triangular system
row after row. A second walks from chunk to chunk with some columns of a state in registers:

    N = U - W S        o = q' S + P N        S = diag(D) S + k''^T N

It takes a state and gives the last one. Between the two lie l + d + e numbers a token and head of
values, in float32. Forward alone is in Triton: backward goes over the chunks again in torch, as
gated_delta and kda do, and its gradients are those. Half precisions are multiplied as TF32, which
has float16's digits; float32 in full, without tensor cores. Chunks, and how much of a state a
program holds, are a table by width, so that no register is spilled: by the compiler's report none
is from sm_80 to sm_100, but for 24 bytes a thread of kda in float32, 128 wide, on sm_100 (4 on
sm_80 to sm_89) and 24 of gated_delta on sm_80. No GPU has run or tuned it.

Cost: 6 d e FLOPs a token and head of values; the chunks do l (5 d + 3 e) besides, and kda
3 l d log2(l) more. Memory: l + d + e numbers a token; in training what gated_delta and kda need.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from impls.heads import Attend
from impls.jit import fitting, kernels, power, precision, rows_of, steps
from impls.linear.gated_chunks import GatedDelta, Kda
from impls.problem import Problem
from impls.spec import Unsupported

TABLES = {  # by head_dim, up to: tokens in a chunk, and columns of a state that a program holds
    "triton.gated_delta": {64: (64, 32), 128: (32, 32)},
    "triton.kda": {64: (16, 64), 128: (16, 32)},
}
FULL = {64: (16, 64), 128: (16, 16)}
"""Of float32, whose products hold both blocks in registers."""
WIDEST = 256
WARPS, STAGES = 8, 1
TILE = 64
"""Channels that a chunk's products are summed over at a time."""
LENGTH = 64
"""Tokens in a chunk of backward, in torch."""


class Delta:
    """``attend``, and how its kernels are launched; ``form``: the same in torch, for backward."""

    def __init__(self, name: str, problem: Problem, chunk: int, form: type[GatedDelta]) -> None:
        if chunk < 0 or chunk & (chunk - 1) or 0 < chunk < 16:
            raise Unsupported(
                f"chunk={chunk} must be a power of two, 16 or more, or 0 for the table's"
            )
        if problem.v_head_dim > WIDEST:
            raise Unsupported(f"{name} has no blocks for v_head_dim={problem.v_head_dim}: "
                              f"{WIDEST} is the widest")  # fmt: skip
        self.kernels = kernels("impls.linear.delta_kernels", name, problem)
        table = FULL if problem.dtype == "float32" else TABLES[name]
        own, columns = next(choice for most, choice in table.items() if problem.head_dim <= most)
        self.name, self.problem, self.form = name, problem, form
        self.length = chunk or own
        self.columns = min(columns, power(problem.v_head_dim))
        self.by_channel = form is Kda

    def __call__(
        self, q_bcnd: Tensor, k_bcmd: Tensor, v_bhme: Tensor, g: Tensor, beta: Tensor,
        state: Tensor | None = None, return_state: bool = False,
    ) -> Any:  # fmt: skip
        """Every token, with the state after them if asked."""
        parts = q_bcnd, k_bcmd, v_bhme, state, g, beta
        out, after = _Attention.apply(self, *parts)  # type: ignore[no-untyped-call]
        return (out, after) if return_state else out

    def note(self) -> str:
        """The cut of the tokens."""
        backward = "; backward in torch" if self.problem.gradients else ""
        return f"chunks of {self.length} tokens{backward}"

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, g: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output and the state after it; the first call of each kernel compiles it."""
        p = self.problem
        (q, k, v), (g, beta) = map(rows_of, (q, k, v)), (x.float().contiguous() for x in (g, beta))
        count, heads = p.kv_len, p.batch * p.heads
        chunks = -(-count // self.length)
        between: dict[str, Any] = {"dtype": torch.float32}
        shape = heads, chunks, self.length
        pairs, w, u = (
            q.new_empty(*shape, n, **between) for n in (self.length, p.head_dim, p.v_head_dim)
        )
        out = q.new_empty(p.batch, p.heads, count, p.v_head_dim)
        after = q.new_empty(p.batch, p.heads, p.head_dim, p.v_head_dim, **between)
        shared = {
            "CHUNK": self.length, "WIDTH": p.head_dim, "V_WIDTH": p.v_head_dim,
            "V_COLUMNS": self.columns, "BY_CHANNEL": self.by_channel,
            "PRECISION": precision(q.dtype), "num_warps": WARPS, "num_stages": STAGES,
        }  # fmt: skip
        sizes = p.heads, p.group, count, chunks, p.scale
        self.kernels.prepare[(heads * chunks,)](
            q, k, v, g, beta, pairs, w, u, *map(steps, (q, k, v)), *sizes,
            LEVELS=self.length.bit_length() - 1, TILE=min(TILE, power(p.head_dim)), **shared,
        )  # fmt: skip
        before = after if state is None else state.float().contiguous()
        self.kernels.walk[(heads * -(-p.v_head_dim // self.columns),)](
            q, k, g, pairs, w, u, before, after, out, *map(steps, (q, k, out)), *sizes,
            COLUMNS=power(p.head_dim), STARTED=state is not None, **shared,
        )  # fmt: skip
        return out, after


def build(problem: Problem, chunk: int) -> Attend:
    """One decay a head; a chunk of 0 is the table's."""
    return Delta("triton.gated_delta", problem, chunk, GatedDelta)


def build_kda(problem: Problem, chunk: int) -> Attend:
    """One decay a channel."""
    return Delta("triton.kda", problem, chunk, Kda)


class _Attention(torch.autograd.Function):
    """Keeps its inputs alone."""

    @staticmethod
    def forward(ctx: Any, delta: Delta, *parts: Any) -> Any:
        ctx.save_for_backward(*parts)
        ctx.delta = delta
        return fitting(delta.name)(delta.run)(*parts)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            leaves: list[Any] = [
                x if x is None else x.detach().requires_grad_(needs)
                for x, needs in zip(ctx.saved_tensors, needed, strict=True)
            ]
            q, k, v, state, *gates = leaves
            in_torch = ctx.delta.form(ctx.delta.problem.with_(device=str(v.device)), LENGTH)
            wide = (x.to(in_torch.wide) for x in gates)
            results = in_torch.from_state(q, k, v, state, *wide)
        asked = [x for x in leaves if x is not None and x.requires_grad]
        gradients = iter(torch.autograd.grad(results, asked, upstream))
        return None, *(next(gradients) if needs else None for needs in needed)
