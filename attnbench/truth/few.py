"""A few rows of one call held against what they should be: cheap at a hundred thousand tokens.

The gate's references and its budgets, but that one odd row weighs more among few. Whoever is held
here has passed the gate: what is looked for is what breaks at a length, and that is no near miss.
"""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.record import Error
from attnbench.truth import budget
from attnbench.truth.defined import defined
from attnbench.truth.differentiate import Defines, Tensors
from attnbench.truth.errors import as_rows, compare
from attnbench.truth.hygiene import check_finite
from attnbench.truth.inputs import Ends, Inputs
from attnbench.truth.oracle import EDGES
from attnbench.truth.reference import Reference, of_rows
from attnbench.truth.yardstick import Errors, within
from impls.problem import Problem

LOOSER = 4.0
"""A row weighs so much more in an error over 16 rows than over the gate's 256: the first, that sees
itself alone, say, has next to no gradient, and all of its rounding.
"""
FROM_FLOAT64 = 4
"""How often float64 copies of what a definition takes may be there at once, and of its gradients
as often again."""


def secret_rows(problem: Problem, count: int) -> Tensor:
    """Rows that nobody could have known when the output was made, and the edges of all."""
    edges = {edge % problem.q_len for edge in EDGES}
    drawn = random.SystemRandom().sample(range(problem.q_len), min(count, problem.q_len))
    rest = [row for row in drawn if row not in edges][: max(0, count - len(edges))]
    return torch.tensor(sorted({*edges, *rest}), device=problem.device)


def reference(problem: Problem, inputs: Ends, rows: Tensor, dout: Tensor | None,
              define: Defines | None, seed: int) -> Reference:  # fmt: skip
    """What should come out in those rows; ``define`` where it is no exact softmax.

    ``dout`` is zero outside the rows.
    """
    if define is None:
        assert isinstance(inputs, Inputs)
        return of_rows(problem, inputs, rows, dout, seed)[0]
    shared = Reference(rows, dout, want={}, plain={}, cancels={}, tried=0)
    return defined(problem, inputs, shared, define)


def check(problem: Problem, got: Tensors, wanted: Reference) -> None:
    """Raise :class:`Wrong` where output or gradients are beyond the gate's budgets.

    ``got``: whole tensors, as a call gave them; those that it lacks are not asked for.
    """
    errors = {}
    for name, tensor in got.items():
        check_finite("the output" if name == "forward" else name, as_rows(tensor))
        some = tensor[:, :, wanted.rows] if name in ("forward", "dq") else as_rows(tensor)
        errors[name] = compare(some, wanted.want[name])

    def against(plain: Errors) -> None:
        for name, error in errors.items():
            loose = _looser(plain[name])
            yardstick = budget.Yardstick(loose, wanted.tried, wanted.cancels.get(name))
            rows = wanted.rows if name in ("forward", "dq") else None
            budget.check(name, error, yardstick, problem.dtype, rows)

    within(wanted.plain, against)


def _looser(plain: Error) -> Error:
    relative, worst = (None if x is None else LOOSER * x for x in (plain.relative, plain.worst_row))
    return replace(plain, relative=relative, worst_row=worst)


def room(problem: Problem, *, exact: bool) -> int:
    """Bytes that such a check takes at the most, roughly: float64 copies of both ends."""
    keys = problem.batch * problem.kv_heads * problem.kv_len
    queries = problem.batch * problem.heads * problem.q_len
    widths = problem.head_dim + problem.v_head_dim
    doubles = 8 * (keys + queries) * widths
    copies = 0 if exact else FROM_FLOAT64
    return doubles * max(1, copies + (FROM_FLOAT64 if problem.gradients else 0))
