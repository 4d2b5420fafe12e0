"""How much error is allowed: as much as the plain form makes in the same dtype, times a little.

No tolerance is set by hand for a dtype, a length or a kind of input. The plain form, computed in
the problem's own dtype on the problem's own inputs, shows what its arithmetic costs there; an
honest implementation stays near it or below. The factors were read off the honest table: see
DESIGN.md, "Budgets".
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from attnbench.record import Error
from attnbench.truth.findings import Wrong, place

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}

RELATIVE_FACTOR = 4.0
WORST_ROW_FACTOR = 8.0
FLOOR_EPSILONS = {"float64": 64.0, "float32": 4.0, "bfloat16": 1.0, "float16": 1.0}
"""Allowed in any case, in units of the dtype's spacing at one. More in float64, since nothing wider
judges it: there the definition may agree with itself to the last bit."""
CEILING = 0.5
"""Never allowed of the output, however badly the plain form does: half of it is missing. Gradients
have no such limit: where the weights are saturated or the keys equal, the true one is near zero."""


def with_ratio(error: Error, plain: Error) -> Error:
    """The error with its ratio to that of the plain form; None where that is not a number."""
    if not plain.relative or error.relative is None:
        return error
    return replace(error, ratio=error.relative / plain.relative)


def allowed(name: str, plain: float | None, factor: float, dtype: str) -> float:
    """The budget that goes with what the plain form makes."""
    budget = max(factor * (plain or 0.0), FLOOR_EPSILONS[dtype] * EPSILON[dtype])
    return min(budget, CEILING) if name == "forward" else budget


def check(name: str, error: Error, plain: Error, dtype: str, rows: Tensor | None) -> None:
    """Raise :class:`Wrong` where the error is beyond the budget. ``rows``: what rows stand for."""
    tests = (
        ("relative error", error.relative, plain.relative, RELATIVE_FACTOR),
        ("error of the worst row", error.worst_row, plain.worst_row, WORST_ROW_FACTOR),
    )
    for what, got, base, factor in tests:
        budget = allowed(name, base, factor, dtype)
        if got is None or not got <= budget:
            at = list(error.worst_at or (0, 0, 0))
            if rows is not None:
                at[2] = int(rows[at[2]])
            said = "not finite" if got is None else f"{got:.2g}"
            raise Wrong(
                f"the {what} of {name} is {said}, above the {budget:.2g} allowed (the plain form "
                f"in {dtype} makes {base or 0.0:.2g}); worst at {place(*at)}"
            )
