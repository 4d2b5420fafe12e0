"""How far one tensor is from another, in float64, a slice at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench.record import Error

SLICE_NUMBERS = 1 << 24


def compare(got: Tensor, want: Tensor) -> Error:
    """The error of ``got``, [batch, heads, rows, width], against the float64 ``want``."""
    batch, heads, rows, _ = want.shape
    got_xrw, want_xrw = got.flatten(0, 1), want.flatten(0, 1)
    step = max(1, SLICE_NUMBERS // max(1, want_xrw[0].numel()))
    squares = torch.zeros(4, dtype=torch.float64)  # of: difference, reference, got; their product
    largest, worst, worst_at = 0.0, -1.0, 0
    for start in range(0, len(want_xrw), step):
        a, b = got_xrw[start : start + step].double(), want_xrw[start : start + step]
        difference = a - b
        by_row = difference.square().sum(-1)
        parts = (by_row.sum(), b.square().sum(), a.square().sum(), (a * b).sum())
        squares += torch.stack(parts).cpu()
        largest = max(largest, _finite(difference.abs().max()))
        top = by_row.flatten().argmax()
        if (height := _finite(by_row.flatten()[top])) > worst:
            worst, worst_at = height, start * rows + int(top)
    error2, want2, got2, product = (float(s) for s in squares)
    mean_row = math.sqrt(want2 / (batch * heads * rows)) if want2 else 0.0
    head, row = divmod(worst_at, rows)
    return Error(
        relative=_over(math.sqrt(error2), math.sqrt(want2)),
        max=largest,
        worst_row=_over(math.sqrt(worst), mean_row),
        cosine=_over(product, math.sqrt(got2 * want2)),
        worst_at=[head // heads, head % heads, row],
    )


def as_rows(tensor: Tensor) -> Tensor:
    """A weight's gradient in four dimensions, as errors are measured in; others as they are."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    return tensor


def _finite(value: Tensor) -> float:
    number = float(value)
    return math.inf if math.isnan(number) else number


def _over(part: float, whole: float) -> float:
    """A share that says 0 where nothing was wanted and nothing came."""
    if whole:
        return part / whole
    return 0.0 if part == 0 else math.inf


def worse(a: Error, b: Error) -> Error:
    """The larger of each measure."""
    high = [
        max(_or_inf(getattr(a, n)), _or_inf(getattr(b, n)))
        for n in ("relative", "max", "worst_row")
    ]
    return Error(
        relative=high[0],
        max=high[1],
        worst_row=high[2],
        cosine=min(a.cosine or 0.0, b.cosine or 0.0),
    )


def _or_inf(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value
