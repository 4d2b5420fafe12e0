"""How much error is allowed: a small multiple of what the plain form makes in the same dtype.

No tolerance is set by hand for a dtype, a length or a kind of input. The plain form, computed in
the problem's own dtype on the problem's own inputs, shows what the arithmetic costs there; an
honest implementation stays near it or below. The factors come from measuring the honest table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from attnbench.core.record import Error
from attnbench.gate.findings import Wrong, place
from attnbench.gate.oracle import Errors, compare
from attnbench.gate.reference import Reference
from impls.operators import OUTPUTS

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}

RELATIVE_FACTOR = 4.0
WORST_ROW_FACTOR = 8.0
FEW_ROWS = 2.0
"""The yardstick is a sample too: the factors grow by this over the root of the number of rows."""
FLOOR_EPSILONS = {"float64": 64.0, "float32": 4.0, "bfloat16": 1.0, "float16": 1.0}
"""Allowed in any case, in units of the dtype's spacing at one. More in float64, since nothing wider
judges it: there the definition may agree with itself to the last bit."""
ZERO_EPSILONS = 16.0
"""Allowed where the true gradient is zero, in spacings of what cancels there."""
UNSAMPLED_FACTOR = 16.0
"""For rows that are compared with the plain form alone, which has an error of its own."""
CEILING = 0.5
"""The most relative error ever allowed of the output, however large the plain form's. Gradients
have no such limit: where the weights are saturated the true one is near zero."""


def with_ratio(error: Error, plain: Error) -> Error:
    """The error with its ratio to that of the plain form; None where that is not a number."""
    if not plain.relative or error.relative is None:
        return error
    return error.with_(ratio=error.relative / plain.relative)


def allowed(plain: float | None, factor: float, dtype: str, rows: int) -> float:
    """The budget, from the plain form's error over so many rows.

    Where the plain form is not a number only the dtype's own spacing counts.
    """
    if plain is None or math.isnan(plain):
        plain = 0.0
    floor = FLOOR_EPSILONS[dtype] * EPSILON[dtype] * factor / RELATIVE_FACTOR
    return max(factor * (1.0 + FEW_ROWS / math.sqrt(rows)) * plain, floor)


class Yardstick(NamedTuple):
    """What an error is compared with."""

    plain: Error
    """The plain form's own."""
    rows: int
    """How many rows it was taken over."""
    cancels: float | None = None
    """Where the true tensor is zero: the size of the terms that cancel. Else None."""


def check_all(
    errors: Errors,
    reference: Reference,
    dtype: str,
    loosened: Callable[[Error], Error] = lambda plain: plain,
) -> None:
    """Raise :class:`Wrong` where the error of output or gradients is beyond its budget.

    What is allowed in any case needs no yardstick, which may be dear.
    """
    for name, error in errors.items():
        if name not in reference.cancels and _in_any_case(error, dtype):
            continue
        tried = min(reference.tried, reference.numbers(name))
        yardstick = Yardstick(loosened(reference.plain[name]), tried, reference.cancels.get(name))
        rows = reference.rows if name in ("forward", "dq", *OUTPUTS) else None
        check(name, error, yardstick, dtype, rows)


def _in_any_case(error: Error, dtype: str) -> bool:
    parts = (error.relative, RELATIVE_FACTOR), (error.worst_row, WORST_ROW_FACTOR)
    return all(got is not None and got <= allowed(0.0, f, dtype, 1) for got, f in parts)


def check(name: str, error: Error, yardstick: Yardstick, dtype: str, rows: Tensor | None) -> None:
    """Raise :class:`Wrong` where the error is beyond the budget. ``rows``: what rows stand for."""
    plain = yardstick.plain
    if yardstick.cancels is not None:
        most = ZERO_EPSILONS * EPSILON[dtype] * yardstick.cancels
        if error.max is None or not error.max <= most:
            text = _text(error.max)
            raise Wrong(f"{name} is {text} where it is zero in truth, above the {most:.2g} allowed")
        return
    tests = (
        ("relative error", error.relative, plain.relative, RELATIVE_FACTOR),
        ("error of the worst row", error.worst_row, plain.worst_row, WORST_ROW_FACTOR),
    )
    for what, got, base, factor in tests:
        budget = allowed(base, factor, dtype, yardstick.rows)
        if name == "forward" and factor == RELATIVE_FACTOR:
            budget = min(budget, CEILING)
        if got is None or not got <= budget:
            at = list(error.worst_at or (0, 0, 0))
            if rows is not None:
                at[2] = int(rows[at[2]])
            raise Wrong(
                f"the {what} of {name} is {_text(got)}, above the {budget:.2g} allowed (the plain "
                f"form in {dtype} makes {base or 0.0:.2g}); worst at {place(*at)}"
            )


def check_unsampled(
    name: str, got: Tensor, whole: Tensor, plain: Error, dtype: str, looser: float = 1.0
) -> None:
    """Raise :class:`Wrong` where a row differs from the plain form by more than both may."""
    error = compare(got, whole.double())
    least = FLOOR_EPSILONS[dtype] * EPSILON[dtype]
    budget = UNSAMPLED_FACTOR * looser * max(plain.worst_row or 0.0, least)
    if error.worst_row is None or not error.worst_row <= budget:
        raise Wrong(
            f"a row of {name} that is not among the sampled is off the plain form by "
            f"{_text(error.worst_row)}, above {budget:.2g}: {place(*(error.worst_at or (0, 0, 0)))}"
        )


def _text(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2g}"
