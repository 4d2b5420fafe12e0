"""The key bias of nn.MultiheadAttention: what it changes, what it costs, what is left without.

All parameters are a random number times uniform ones. To see whether a bias matters it is drawn
twice, the rest standing still; what is mere rounding in float32 is next to nothing in float64.
Then torch's layer is carried over to ours without a key bias, with the same inputs and gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from attnbench.features.claims.claim import (
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    medians_of,
)
from impls.layers import attention

WIDTH, HEADS, BATCH, KEYS, QUERIES = 12, 4, 64, 100, 80
OTHER_WIDTHS = {"kdim": 17, "vdim": 19}
SOURCES_SCALE, CALM = 10.0, 0.1
"""Scales of parameters: the source's, and one at which the softmax is far from saturated."""
SETTINGS: tuple[tuple[str, float, Mapping[str, int]], ...] = (
    (" kdim", SOURCES_SCALE, OTHER_WIDTHS),
    ("", SOURCES_SCALE, {}),
    (" calm", CALM, {}),
)
DRAWS, CONVERSIONS = 21, 11
BIASES = ("query", "key", "value")
DTYPES = {"": "float32", " float64": "float64"}


def layer(
    seed: int, dtype: str, scale: float, widths: Mapping[str, int]
) -> tuple[nn.MultiheadAttention, list[Tensor], torch.Generator]:
    """torch's layer with drawn parameters, and inputs: queries, keys, values."""
    kind: torch.dtype = getattr(torch, dtype)
    chance = torch.Generator().manual_seed(seed)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=kind, **widths)
    _randomise(list(module.parameters()), scale, chance)
    inputs = [
        torch.rand(BATCH, *shape, generator=chance, dtype=torch.float64).to(kind)
        for shape in ((QUERIES, WIDTH), (KEYS, module.kdim), (KEYS, module.vdim))
    ]
    return module, inputs, chance


def _randomise(parameters: Sequence[Tensor], scale: float, chance: torch.Generator) -> None:
    for x in parameters:
        uniform = torch.rand(x.shape, generator=chance, dtype=torch.float64)
        x.data.copy_(scale * torch.rand(1, generator=chance, dtype=torch.float64) * uniform)


def _upstream(out: Tensor, chance: torch.Generator) -> Tensor:
    return torch.randn(out.shape, generator=chance, dtype=torch.float64).to(out.dtype)


def entropy(weights: Tensor) -> float:
    """The mean entropy of the rows, as a share of that of uniform weights."""
    p = weights.detach().double()
    each = -torch.special.xlogy(p, p).sum(-1)
    return float(each.mean() / torch.log(torch.tensor(float(p.shape[-1]))))


def apart(a: Tensor, b: Tensor) -> float:
    """The norm of the difference over that of the second; of a second that is zero, the norm."""
    return float((a - b).norm()) / (float(b.norm()) or 1.0)


def measure_biases(request: ClaimRequest) -> ClaimFindings:
    """By how much the output moves with each bias, and the biases' gradients; entropy near 0 is a
    saturated softmax.
    """
    seeds = range(request.seed, request.seed + DRAWS)
    findings = medians_of(
        {
            f"{{}}{word}{place}": [_draw(seed, dtype, scale, widths) for seed in seeds]
            for word, dtype in DTYPES.items()
            for place, scale, widths in SETTINGS
        }
    )
    exact, rounded = (findings.figures[name].value or 0.0 for name in ("key float64", "key"))
    rounding = ClaimFigure(rounded / max(exact, 1e-300))
    return ClaimFindings({**findings.figures, "rounding": rounding}, (), findings.tables)


def _draw(seed: int, dtype: str, scale: float, widths: Mapping[str, int]) -> dict[str, float]:
    """The move of the output as each bias is drawn twice; and the gradients of the biases."""
    module, inputs, chance = layer(seed, dtype, scale, widths)
    figures = {}
    with torch.no_grad():
        for name, bias in zip(BIASES, module.in_proj_bias.data.chunk(3), strict=True):
            outputs = []
            for _ in range(2):
                _randomise([bias], scale, chance)
                outputs.append(module(*inputs)[0])
            figures[name] = float((outputs[1] - outputs[0]).abs().max())
    module, inputs, chance = layer(seed, dtype, scale, widths)
    out, weights = module(*inputs)
    (out * _upstream(out, chance)).sum().backward()
    assert module.in_proj_bias.grad is not None
    query, key, value = (float(g.abs().max()) for g in module.in_proj_bias.grad.chunk(3))
    gradients = {"gradient of query": query, "gradient of key": key, "gradient of value": value}
    share = {"gradient": key / max(query, value), "entropy": entropy(weights)}
    return {**figures, **gradients, **share}


def measure_conversion(request: ClaimRequest) -> ClaimFindings:
    """The output and the gradient of each parameter by its name, in both dtypes."""
    seeds = range(request.seed, request.seed + CONVERSIONS)
    return medians_of(
        {
            f"{{}}{word}{kind}": [_differences(seed, dtype, widths) for seed in seeds]
            for kind, widths in (("", {}), (" kdim", OTHER_WIDTHS))
            for word, dtype in DTYPES.items()
        }
    )


def _differences(seed: int, dtype: str, widths: Mapping[str, int]) -> dict[str, float]:
    """The difference of the output, the largest in float32; those of gradients, relative, by name,
    and the worst of them.
    """
    theirs, inputs, chance = layer(seed, dtype, SOURCES_SCALE, widths)
    ours = attention.from_torch(theirs, key_bias=False)
    out, of_torch = ours(*inputs), theirs(*inputs)[0]
    towards = _upstream(out, chance)
    for each in (out, of_torch):
        (each * towards).sum().backward()
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    theirs_by_name = attention.torch_parameters(ours, gradients)
    relative = {}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        relative[f"gradient of {name}"] = apart(
            parameter.grad.double(), theirs_by_name[name].double()
        )
    a, b = out.detach().double(), of_torch.detach().double()
    forward = float((a - b).abs().max()) if dtype == "float32" else apart(a, b)
    return {"forward": forward, "backward": max(relative.values()), **relative}
