"""Does multi-head attention without a key bias do what torch's layer does, forward and backward?

torch's layer is carried over by ``impls.layers.attention.from_torch(module, key_bias=False)``. Both
get the same inputs and the same upstream gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.key_bias import OTHER_WIDTHS, SCALES, layer
from attnbench.features.claims.measured.spread import middle
from impls.layers.attention import from_torch, torch_parameters

DRAWS = 11
FORWARD = "forward"


def measure(asked: ClaimRequest) -> ClaimFindings:
    """The output and the gradient of each parameter by its name, in both dtypes."""
    figures: dict[str, ClaimFigure] = {}
    tables = []
    for kind, widths in (("", {}), (" kdim", OTHER_WIDTHS)):
        rows: dict[str, list[str | float | None]] = {}
        for word, dtype in (("", torch.float32), (" float64", torch.float64)):
            draws = [_differences(asked.seed + n, dtype, widths) for n in range(DRAWS)]
            for name in draws[0]:
                absolute, relative = (middle([d[name][i] for d in draws]) for i in range(2))
                rows.setdefault(name, [name]).extend([absolute.value, relative.value])
                if name == FORWARD:
                    figures[FORWARD + word + kind] = absolute if not word else relative
            worst = [max(r for name, (_, r) in d.items() if name != FORWARD) for d in draws]
            figures["backward" + word + kind] = middle(worst)
        columns = [
            "of",
            "float32: largest difference",
            "relative",
            "float64: largest difference",
            "relative",
        ]
        title = (
            f"without a key bias against torch{', other widths of keys and values' * bool(kind)}"
        )
        tables.append(
            ClaimTable(f"{title}: medians of {DRAWS} draws", columns, list(rows.values()))
        )
    return ClaimFindings(figures, (), tables)


def _differences(
    seed: int, dtype: torch.dtype, widths: dict[str, int]
) -> dict[str, tuple[float, float]]:
    """By name, the largest difference and the relative one: the output, then gradients."""
    theirs, inputs, chance = layer(seed, dtype, SCALES[0], widths)
    ours = from_torch(theirs, key_bias=False)
    out, of_torch = ours(*inputs), theirs(*inputs)[0]
    towards = torch.randn(out.shape, generator=chance, dtype=torch.float64).to(dtype)
    for each in (out, of_torch):
        (each * towards).sum().backward()
    found = {FORWARD: _apart(out, of_torch)}
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    named = torch_parameters(ours, gradients)
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        found[name] = _apart(parameter.grad, named[name])
    return found


def _apart(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The largest difference, and the norm of the difference over that of the second."""
    a, b = a.detach().double(), b.detach().double()
    norm = float(b.norm())
    return float((a - b).abs().max()), float((a - b).norm()) / (norm or 1.0)
