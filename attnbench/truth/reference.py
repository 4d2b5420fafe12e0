"""What a variant's output should be: its definition in float64, and what the same plain form makes
of it in the problem's own dtype. The second error is the yardstick for the first.

For exact softmax the definition is the oracle. It serves every variant of a problem, so it is
computed once. For the others the definition is their own, differentiated by autograd; so it is for
layers, whose weights are differentiated too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.record import Error
from attnbench.truth.differentiate import Tensors, cancelling, differentiated, few_rows, row_blocks
from attnbench.truth.errors import compare, worse
from attnbench.truth.inputs import Ends, Inputs, cast
from attnbench.truth.oracle import exact, sample_rows
from attnbench.truth.plain import recomputed, softmax_define
from impls.problem import Problem

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


def of_rows(problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None,
            seed: int) -> tuple[Reference, float]:  # fmt: skip
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


def _exact(problem: Problem, inputs: Inputs, rows: Tensor,
           dout: Tensor | None) -> tuple[Tensors, float]:  # fmt: skip
    truth = exact(problem, *inputs, rows, None if dout is None else dout[:, :, rows])
    given = {"forward": truth.out, "dq": truth.dq, "dk": truth.dk, "dv": truth.dv}
    return {name: x for name, x in given.items() if x is not None}, truth.entropy


def _plain_errors(problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None,
                  want: Tensors) -> dict[str, Error]:  # fmt: skip
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
    """The same from :func:`attnbench.truth.plain.recomputed`."""
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
