"""A definition's output and gradients for some rows, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.truth.call import weights_of
from attnbench.truth.errors import as_rows
from attnbench.truth.inputs import Ends, Inputs
from impls.problem import Problem

BLOCK_BYTES = 128 << 20
PLAIN_SCORES = 1 << 25
"""Scores that the plain forms compute at most: their errors are a yardstick, and a few rows of a
long sequence give it as well as many."""
EARLY = 4
"""Of the sampled rows the first are always tried: under a causal mask they mean over few keys, so
their outputs, and what rounding leaves of them, are hundreds of times those of late rows."""
ZERO_SHARE = 1e-10
"""Of the terms that cancel: what is below this of them is the oracle's own rounding."""

Tensors = dict[str, Tensor]
Defines = Callable[..., Tensor]
"""``define(q, k, v, rows)``; of a layer ``define(x, rows, weights)``, or with a context after x. A
layer's has ``weights``, the ones that its ``attend`` trains."""


def differentiated(problem: Problem, inputs: Ends, rows: Tensor, dout: Tensor | None,
                    define: Defines) -> Tensors:  # fmt: skip
    """A definition's output and gradients, block by block, summed in float64."""
    dtype = inputs[0].dtype
    leaves = [x.detach().requires_grad_(dout is not None) for x in inputs]
    weights = {
        name: weight.detach().to(dtype).requires_grad_(dout is not None)
        for name, weight in weights_of(define).items()
    }
    wanted = [*leaves, *weights.values()]
    sums = [torch.zeros_like(x, dtype=torch.float64) for x in wanted] if dout is not None else []
    outs: list[Tensor] = []
    for block in row_blocks(problem, rows, leaves[0].element_size()):
        out = _applied(define, inputs, leaves, rows[block], weights)
        outs.append(out.detach())
        if dout is not None:
            upstream = dout[:, :, rows[block]].to(out.dtype)
            parts = torch.autograd.grad(out, wanted, upstream, materialize_grads=True)
            for total, part in zip(sums, parts, strict=True):
                total += part
    made = {"forward": torch.cat(outs, 2)}
    if dout is not None:
        names = (*(f"d{n}" for n in inputs._fields), *(f"d:{n}" for n in weights))
        made |= dict(zip(names, sums, strict=True))
        if "dq" in made:
            made["dq"] = made["dq"][:, :, rows]
    return {name: as_rows(tensor) for name, tensor in made.items()}


def _applied(define: Defines, inputs: Ends, leaves: Sequence[Tensor], rows: Tensor,
             weights: Tensors) -> Tensor:  # fmt: skip
    if isinstance(inputs, Inputs):
        return define(*leaves, rows)
    more: tuple[Any, ...] = (weights,) if weights else ()
    return define(*(x.squeeze(1) for x in leaves), rows, *more).unsqueeze(1)


def row_blocks(problem: Problem, rows: Tensor, item_bytes: int) -> Iterator[slice]:
    """The sampled rows in blocks whose scores stay small."""
    scores = problem.batch * problem.heads * problem.kv_len * item_bytes
    step = max(1, BLOCK_BYTES // scores)
    for start in range(0, len(rows), step):
        yield slice(start, min(start + step, len(rows)))


def few_rows(problem: Problem, rows: Tensor) -> Tensor:
    """The rows that the plain forms are tried on: all, or a spread of them where rows are long."""
    scores_per_row = problem.batch * problem.heads * problem.kv_len
    count = min(len(rows), max(8, PLAIN_SCORES // scores_per_row))
    early = torch.arange(min(EARLY, count), device=rows.device)
    spread = torch.linspace(len(early), len(rows) - 1, count - len(early), device=rows.device)
    return rows[torch.cat([early, spread.long()])]


def cancelling(problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None,
             want: Tensors) -> dict[str, float]:  # fmt: skip
    """Which tensors are zero in truth, and from terms of what size.

    A row that sees one key has a weight of exactly one, so nothing flows into its scores; a
    relative error would divide by the rounding of the oracle.
    """
    q, k, v = (float(x.double().norm(dim=-1).max()) for x in inputs)
    out = float(dout[:, :, rows].double().norm(dim=-1).max()) if dout is not None else 0.0
    many = math.sqrt(len(rows) * problem.group)
    through = problem.scale * out * v
    sizes = {"forward": v, "dq": through * k, "dk": through * q * many, "dv": out * many}
    return {
        name: sizes[name]
        for name, tensor in want.items()
        if float(tensor.abs().max()) <= ZERO_SHARE * sizes[name]
    }
