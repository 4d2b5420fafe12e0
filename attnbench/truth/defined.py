"""The reference of a variant that has a definition of its own: another operator, or a layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.record import Error
from attnbench.truth.differentiate import (
    ZERO_SHARE,
    Defines,
    Tensors,
    cancelling,
    differentiated,
    few_rows,
)
from attnbench.truth.errors import compare
from attnbench.truth.inputs import Ends, Inputs, turned
from attnbench.truth.reference import Reference
from attnbench.truth.yardstick import Plain
from impls.problem import Problem

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


def _own_errors(problem: Problem, inputs: Ends, rows: Tensor, dout: Tensor | None,
                define: Defines, want: Tensors) -> dict[str, Error]:  # fmt: skip
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
        return replace(error, relative=0.0, max=0.0, worst_row=0.0)
    relative, largest, worst = (m * IN_FLOAT64 for m in measures if m is not None)
    return replace(error, relative=relative, max=largest, worst_row=worst)


def _cancels_in_layer(want: Tensors) -> dict[str, float]:
    """The same of a layer: a key's bias gets no gradient, since no softmax changes by it."""
    size = max(float(tensor.abs().max()) for tensor in want.values())
    return {n: size for n, x in want.items() if float(x.abs().max()) <= ZERO_SHARE * size}


def whole_by(problem: Problem, inputs: Ends, dout: Tensor | None,
             define: Defines) -> Tensors | None:  # fmt: skip
    """Every row of a definition under a gradient into all of them, in float64.

    None where it would take too long.
    """
    if problem.batch * problem.heads * problem.q_len * problem.kv_len > DEFINED_SCORES:
        return None
    every = torch.arange(problem.q_len, device=inputs[0].device)
    return differentiated(problem, _wide(inputs), every, dout, define)


def _wide(inputs: Ends) -> Ends:
    return type(inputs)(*(x.double() for x in inputs))
