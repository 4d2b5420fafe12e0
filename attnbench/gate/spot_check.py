"""A check of one call on a few rows that were drawn after the call: its output and gradients."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from attnbench.core.record import Error
from attnbench.gate import budget
from attnbench.gate.hygiene import check_finite
from attnbench.gate.inputs import Inputs, as_rows
from attnbench.gate.oracle import EDGES, Errors, compare, within
from attnbench.gate.reference import Defines, Reference, Tensors, defined, of_rows
from impls.problem import Problem

LOOSER = 4.0
"""How much more is allowed than by the gate, since one row weighs more among 16 than among 256: the
first, which sees itself alone, has next to no gradient but all of its rounding."""
FROM_FLOAT64 = 4
"""How many float64 copies of a definition's inputs may exist at once; as many of its gradients."""


def secret_rows(problem: Problem, count: int) -> Tensor:
    """Some rows that were not known when the output was made, and the edges."""
    edges = {edge % problem.q_len for edge in EDGES}
    numbers = random.SystemRandom().sample(range(problem.q_len), min(count, problem.q_len))
    rest = [row for row in numbers if row not in edges][: max(0, count - len(edges))]
    return torch.tensor(sorted({*edges, *rest}), device=problem.device)


def reference(
    problem: Problem,
    inputs: Inputs,
    rows: Tensor,
    dout: Tensor | None,
    define: Defines | None,
    seed: int,
) -> Reference:
    """What should come out in those rows; ``define`` where it is not exact softmax.

    ``dout`` is zero outside the rows.
    """
    if define is None:
        return of_rows(problem, inputs, rows, dout, seed)[0]
    return defined(problem, inputs, Reference(rows, dout), define)


def check(problem: Problem, got: Tensors, expected: Reference) -> None:
    """Raise :class:`Wrong` where output or gradients are beyond the budgets.

    ``got``: whole tensors, as a call returned them; only those are checked.
    """
    for name, tensor in got.items():
        check_finite("the output" if name == "forward" else name, as_rows(tensor))
    errors = {name: compare(expected.of(name, x), expected.want[name]) for name, x in got.items()}

    def looser(plain: Error) -> Error:
        relative, worst_row = (x and LOOSER * x for x in (plain.relative, plain.worst_row))
        return plain.with_(relative=relative, worst_row=worst_row)

    def against(plain: Errors) -> None:
        loose = {name: looser(plain[name]) for name in errors}
        budget.check_all(errors, loose, expected, problem.dtype)

    within(expected.plain, against)


def room(problem: Problem, *, exact: bool) -> int:
    """Bytes that such a check takes at most, roughly."""
    keys = problem.batch * problem.kv_heads * problem.kv_len
    queries = problem.batch * problem.heads * problem.q_len
    doubles = 8 * (keys + queries) * (problem.head_dim + problem.v_head_dim)
    copies = 0 if exact else FROM_FLOAT64
    return doubles * max(1, copies + (FROM_FLOAT64 if problem.gradients else 0))
