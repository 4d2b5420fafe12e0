"""What a variant's output should be: its definition in float64, and what the same plain form makes
of it in the problem's own dtype. The second error is the yardstick for the first.

For exact softmax the definition is the oracle. It serves every variant of a problem, so it is
computed once. For the others the definition is their own, differentiated by autograd; so it is for
layers, whose weights are differentiated too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.core.record import Error
from attnbench.gate.inputs import Ends, Inputs, cast, turned, weights_of
from attnbench.gate.oracle import (
    Plain,
    as_rows,
    compare,
    exact,
    recomputed,
    sample_rows,
    softmax_define,
    worse,
)
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


def differentiated(
    problem: Problem, inputs: Ends, rows: Tensor, dout: Tensor | None, define: Defines
) -> Tensors:
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


def _applied(
    define: Defines, inputs: Ends, leaves: Sequence[Tensor], rows: Tensor, weights: Tensors
) -> Tensor:
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


def cancelling(
    problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None, want: Tensors
) -> dict[str, float]:
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


ROWS = 256
"""How many rows of queries are judged; all of them where there are fewer."""


ENOUGH_ROWS, MOST_DRAWS = 256, 16
WHOLE_SCORES = 1 << 28
"""Scores up to which every row is looked at, if not as closely as the sampled ones."""


@dataclass(frozen=True)
class Reference:
    """What should come out for some rows, and how near the plain form in the same dtype gets."""

    rows: Tensor
    dout: Tensor | None
    """The upstream gradient, full size, zero outside the rows."""
    want: Tensors
    """``forward`` and, with gradients, ``dq``, ``dk``, ``dv``, in float64. dq over the rows."""
    plain: dict[str, Error]
    cancels: dict[str, float]
    """Of those that are zero in truth, the size of the terms that cancel."""
    tried: int
    """How many rows, over the batch and the heads, the plain form is tried on, at the most."""


@dataclass(frozen=True)
class Judged:
    """A problem with its inputs and what exact softmax makes of them."""

    problem: Problem
    inputs: Ends
    softmax: Reference
    """Of a layer only what its variants share: which rows, under which upstream gradient."""
    mean: Tensor | None
    """What ``mean_v`` makes of the rows, in float64: the zero of skill. None of a layer."""
    entropy: float | None
    dout: Tensor | None
    """An upstream gradient with no zeros, for what is timed: zeros could be skipped."""
    whole: Tensors | None
    """The plain form of every row under that gradient, where it is affordable."""


def judge(problem: Problem, inputs: Ends, seed: int) -> Judged:
    """Everything about a problem that its variants share."""
    if isinstance(inputs, Inputs):
        return _judge_core(problem, inputs, seed)
    rows = sample_rows(problem.q_len, ROWS, seed).to(problem.device)
    dout = _upstream(problem, rows, seed) if problem.gradients else None
    dense = _dense_upstream(problem, seed) if problem.gradients else None
    shared = Reference(rows, dout, want={}, plain={}, cancels={}, tried=0)
    return Judged(problem, inputs, shared, None, None, dense, None)


def _judge_core(problem: Problem, inputs: Inputs, seed: int) -> Judged:
    rows = sample_rows(problem.q_len, ROWS, seed).to(problem.device)
    dout = _upstream(problem, rows, seed) if problem.gradients else None
    softmax, entropy = of_rows(problem, inputs, rows, dout, seed)
    mean = exact(problem, *inputs, rows, uniform=True).out
    dense = _dense_upstream(problem, seed) if problem.gradients else None
    return Judged(problem, inputs, softmax, mean, entropy, dense, _whole(problem, inputs, dense))


def of_rows(
    problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None, seed: int
) -> tuple[Reference, float]:
    """What softmax makes of some rows, and the mean entropy there; ``dout`` is zero elsewhere."""
    want, entropy = _exact(problem, inputs, rows, dout)
    few = few_rows(problem, rows)
    want_few = want if len(few) == len(rows) else _exact(problem, inputs, few, dout)[0]
    plain = _plain_errors(problem, inputs, few, dout, want_few)
    draws = _draws(problem, few)
    generator = torch.Generator().manual_seed(seed + 4)
    for _ in range(draws - 1):  # the same queries with their channels mixed: other scores of a kind
        mixed = torch.randperm(problem.head_dim, generator=generator).to(problem.device)
        other = inputs._replace(q=inputs.q[..., mixed].contiguous())
        wanted = _exact(problem, other, few, dout)[0]
        errors = _plain_errors(problem, other, few, dout, wanted)
        plain = {name: worse(plain[name], errors[name]) for name in want}
    cancels = cancelling(problem, inputs, rows, dout, want)
    tried = problem.batch * problem.heads * len(few) * draws
    return Reference(rows, dout, want, plain, cancels, tried), entropy


def _exact(
    problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None
) -> tuple[Tensors, float]:
    truth = exact(problem, *inputs, rows, None if dout is None else dout[:, :, rows])
    given = {"forward": truth.out, "dq": truth.dq, "dk": truth.dk, "dv": truth.dv}
    return {name: x for name, x in given.items() if x is not None}, truth.entropy


def _plain_errors(
    problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None, want: Tensors
) -> dict[str, Error]:
    """The worse of the two textbook forms, measure by measure."""
    kept = differentiated(problem, inputs, rows, dout, softmax_define(problem))
    plain = {name: compare(kept.pop(name), want[name]) for name in want}
    again = _recomputed(problem, inputs, rows, dout)
    return {name: worse(plain[name], compare(again.pop(name), want[name])) for name in want}


def _draws(problem: Problem, rows: Tensor) -> int:
    """How often the plain forms are tried: again where a few rows alone may be lucky."""
    return min(MOST_DRAWS, math.ceil(ENOUGH_ROWS / (problem.batch * problem.heads * len(rows))))


def _upstream(problem: Problem, rows: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    shape = problem.output_shape
    sampled = (*shape[:2], len(rows), shape[3])
    some = torch.randn(sampled, generator=generator, dtype=torch.float32)
    dout = cast(torch.zeros(1), problem).expand(shape).clone()
    dout[:, :, rows] = cast(some, problem)
    return dout


def _dense_upstream(problem: Problem, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 3)
    return cast(
        torch.randn(problem.output_shape, generator=generator, dtype=torch.float32), problem
    )


def _whole(problem: Problem, inputs: Inputs, dout: Tensor | None) -> Tensors | None:
    """Every row by the plain form, in float32 at the least; None where it would take too long."""
    if problem.batch * problem.heads * problem.q_len * problem.kv_len > WHOLE_SCORES:
        return None
    wide = torch.float64 if problem.dtype == "float64" else torch.float32
    every = torch.arange(problem.q_len, device=inputs.q.device)
    wider = Inputs(*(x.to(wide) for x in inputs))
    return differentiated(problem, wider, every, dout, softmax_define(problem))


def _recomputed(problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None) -> Tensors:
    """The same from :func:`attnbench.gate.oracle.recomputed`."""
    by_row: dict[str, list[Tensor]] = {"forward": [], "dq": []}
    sums = {
        name: torch.zeros_like(x, dtype=torch.float64)
        for name, x in (("dk", inputs.k), ("dv", inputs.v))
    }
    for block in row_blocks(problem, rows, max(4, inputs.q.element_size())):
        some = rows[block]
        upstream = None if dout is None else dout[:, :, some]
        for name, part in recomputed(problem, *inputs, some, upstream).items():
            if name in sums:
                sums[name] += part
            else:
                by_row[name].append(part)
    return sums | {name: torch.cat(parts, 2) for name, parts in by_row.items() if parts}


REDRAWN_SCORES = 1 << 20
"""Scores up to which a variant's own definition is tried on other inputs of the kind too."""
DEFINED_SCORES = 1 << 20
"""Scores up to which a variant's own definition is asked for every row, gradients too."""
IN_FLOAT64 = 2.0**-29
"""The spacing of float64 over that of float32."""


def defined(problem: Problem, inputs: Ends, softmax: Reference, define: Defines) -> Reference:
    """The reference of a variant that has a definition of its own."""
    rows, dout, few = softmax.rows, softmax.dout, few_rows(problem, softmax.rows)
    wide = _wide(inputs)
    want = differentiated(problem, wide, rows, dout, define)
    want_few = want
    if len(few) < len(rows):
        want_few = differentiated(problem, wide, few, dout, define)
    rows_seen = problem.batch * problem.heads * len(few)
    plain = _own_errors(problem, inputs, few, dout, define, want_few)
    others = turned(inputs) if rows_seen * problem.kv_len <= REDRAWN_SCORES else []

    def of_others() -> Iterator[dict[str, Error]]:  # where a few rows alone may be lucky
        for other in others:
            wanted = differentiated(problem, _wide(other), few, dout, define)
            yield _own_errors(problem, other, few, dout, define, wanted)

    if isinstance(inputs, Inputs):
        cancels = cancelling(problem, inputs, rows, dout, want)
    else:
        cancels = _cancels_in_layer(want)
    tried = rows_seen * (1 + len(others))
    return Reference(rows, dout, want, Plain(plain, of_others), cancels, tried)


def _own_errors(
    problem: Problem,
    inputs: Ends,
    rows: Tensor,
    dout: Tensor | None,
    define: Defines,
    want: Tensors,
) -> dict[str, Error]:
    """What a definition makes of itself in the problem's dtype.

    In float64 that would be nothing at all, however many terms cancel; so there it is what float32
    makes of it, in proportion to the spacings.
    """
    if problem.dtype != "float64":
        got = differentiated(problem, inputs, rows, dout, define)
        return {name: compare(got[name], want[name]) for name in want}
    narrow = type(inputs)(*(x.float() for x in inputs))
    got = differentiated(problem, narrow, rows, dout, define)
    return {name: _scaled(compare(got[name], want[name])) for name in want}


def _scaled(error: Error) -> Error:
    """An error of float32 as float64 would make it; none where it is not a number."""
    measures = (error.relative, error.max, error.worst_row)
    if not all(m is not None and math.isfinite(m) for m in measures):
        return error.with_(relative=0.0, max=0.0, worst_row=0.0)
    relative, largest, worst = (m * IN_FLOAT64 for m in measures if m is not None)
    return error.with_(relative=relative, max=largest, worst_row=worst)


def _cancels_in_layer(want: Tensors) -> dict[str, float]:
    """The same of a layer: a key's bias gets no gradient, since no softmax changes by it."""
    size = max(float(tensor.abs().max()) for tensor in want.values())
    return {n: size for n, x in want.items() if float(x.abs().max()) <= ZERO_SHARE * size}


def whole_by(
    problem: Problem, inputs: Ends, dout: Tensor | None, define: Defines
) -> Tensors | None:
    """Every row of a definition under a gradient into all of them, in float64.

    None where it would take too long.
    """
    if problem.batch * problem.heads * problem.q_len * problem.kv_len > DEFINED_SCORES:
        return None
    every = torch.arange(problem.q_len, device=inputs[0].device)
    return differentiated(problem, _wide(inputs), every, dout, define)


def _wide(inputs: Ends) -> Ends:
    return type(inputs)(*(x.double() for x in inputs))
