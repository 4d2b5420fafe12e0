"""What a variant's output should be: its definition in float64, and what the same plain form makes
of it in the problem's own dtype. The second error is the yardstick for the first.

For exact softmax the definition is the oracle. It serves every variant of a problem, so it is
computed once. For the others the definition is their own, differentiated by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.record import Error
from attnbench.truth.errors import compare
from attnbench.truth.inputs import Inputs, cast
from attnbench.truth.oracle import Exact, exact, sample_rows
from impls.problem import Problem

ROWS = 256
"""How many rows of queries are judged; all of them where there are fewer."""

BLOCK_BYTES = 128 << 20

Define = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Reference:
    """What should come out for some rows, and how near the plain form in the same dtype gets."""

    rows: Tensor
    dout: Tensor | None
    """The upstream gradient, full size, zero outside the rows."""
    want: dict[str, Tensor]
    """``forward`` and, with gradients, ``dq``, ``dk``, ``dv``, in float64. dq over the rows."""
    plain: dict[str, Error]


@dataclass(frozen=True)
class Judged:
    """A problem with its inputs and what exact softmax makes of them."""

    problem: Problem
    inputs: Inputs
    softmax: Reference
    mean: Tensor
    """What ``mean_v`` makes of the rows, in float64: the zero of skill."""
    entropy: float


def judge(problem: Problem, inputs: Inputs, seed: int) -> Judged:
    """Everything about a problem that its variants share."""
    rows = sample_rows(problem.q_len, ROWS, seed).to(problem.device)
    dout = _upstream(problem, rows, seed) if problem.gradients else None
    truth = exact(problem, *inputs, rows, None if dout is None else dout[:, :, rows])
    want = _named(truth)
    plain = _plain_errors(problem, inputs, rows, dout, softmax_define(problem), want)
    mean = exact(problem, *inputs, rows, uniform=True).out
    return Judged(problem, inputs, Reference(rows, dout, want, plain), mean, truth.entropy)


def defined(problem: Problem, inputs: Inputs, softmax: Reference, define: Define) -> Reference:
    """The reference of a variant that has a definition of its own."""
    rows, dout = softmax.rows, softmax.dout
    wide = Inputs(*(x.double() for x in inputs))
    want = _differentiated(problem, wide, rows, dout, define)
    plain = _plain_errors(problem, inputs, rows, dout, define, want)
    return Reference(rows, dout, want, plain)


def softmax_define(problem: Problem) -> Define:
    """Softmax attention of some rows as one would write it, in whatever dtype comes."""

    def define(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        picked = rows.cpu().numpy()
        seen = torch.from_numpy(problem.mask.visible(problem.shape, picked)).to(q.device)
        added = problem.mask.bias(problem.shape, picked)
        if problem.group > 1:
            k = k.repeat_interleave(problem.group, 1)
            v = v.repeat_interleave(problem.group, 1)
        scores = (q[:, :, rows] @ k.mT) * problem.scale
        if added is not None:
            scores = scores + torch.from_numpy(added).to(q.device, q.dtype)
        blind = ~seen.any(-1, keepdim=True)
        weights = scores.masked_fill(~(seen | blind), -torch.inf).softmax(-1)
        return (weights @ v).masked_fill(blind, 0.0)

    return define


def _upstream(problem: Problem, rows: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    shape = (problem.batch, problem.heads, problem.q_len, problem.v_head_dim)
    some = torch.randn((*shape[:2], len(rows), shape[3]), generator=generator)
    dout = cast(torch.zeros(1), problem).expand(shape).clone()
    dout[:, :, rows] = cast(some, problem)
    return dout


def _named(truth: Exact) -> dict[str, Tensor]:
    given = {"forward": truth.out, "dq": truth.dq, "dk": truth.dk, "dv": truth.dv}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def _differentiated(problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None,
                    define: Define) -> dict[str, Tensor]:  # fmt: skip
    """A definition's output and gradients, a block of rows at a time, summed in float64."""
    leaves = [x.detach().requires_grad_(dout is not None) for x in inputs]
    scores = problem.batch * problem.heads * problem.kv_len * leaves[0].element_size()
    step = max(1, BLOCK_BYTES // scores)
    outs: list[Tensor] = []
    sums = [torch.zeros_like(x, dtype=torch.float64) for x in leaves] if dout is not None else []
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        out = define(*leaves, some)
        outs.append(out.detach())
        if dout is not None:
            parts = torch.autograd.grad(out, leaves, dout[:, :, some].to(out.dtype),
                                        materialize_grads=True)  # fmt: skip
            for total, part in zip(sums, parts, strict=True):
                total += part
    made = {"forward": torch.cat(outs, 2)}
    if dout is not None:
        made |= {"dq": sums[0][:, :, rows], "dk": sums[1], "dv": sums[2]}
    return made


def _plain_errors(problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None,
                  define: Define, want: dict[str, Tensor]) -> dict[str, Error]:  # fmt: skip
    got = _differentiated(problem, inputs, rows, dout, define)
    return {name: compare(got[name], want[name]) for name in want}
