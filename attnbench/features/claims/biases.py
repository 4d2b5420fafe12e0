"""The key bias of nn.MultiheadAttention: what it changes, and what is left without it.

All parameters are a random number times uniform ones. To see whether a bias matters it is drawn
twice, the rest standing still; what is mere rounding in float32 is next to nothing in float64.
Then torch's layer is carried over to ours without a key bias, with the same inputs and gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

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


def draw_biases(seed: int, dtype: str) -> dict[str, float]:
    """By how much the output moves as each bias is drawn twice, and the key's gradient over the
    others'.
    """
    figures: dict[str, float] = {}
    for place, scale, widths in SETTINGS:
        module, inputs, chance = layer(seed, dtype, scale, widths)
        biases = zip(("query", "key", "value"), module.in_proj_bias.data.chunk(3), strict=True)
        for name, bias in biases:
            outputs = []
            for _ in range(2):
                _randomise([bias], scale, chance)
                outputs.append(module(*inputs)[0].detach())
            figures[f"{name}{place}"] = float((outputs[1] - outputs[0]).abs().max())
        module, inputs, chance = layer(seed, dtype, scale, widths)
        out, _ = module(*inputs)
        (out * _upstream(out, chance)).sum().backward()
        assert module.in_proj_bias.grad is not None
        query, key, value = (float(g.abs().max()) for g in module.in_proj_bias.grad.chunk(3))
        figures[f"gradient{place}"] = key / max(query, value)
    return figures


def apart(a: Tensor, b: Tensor) -> float:
    """The norm of the difference over that of the second; of a second that is zero, the norm."""
    return float((a - b).norm()) / (float(b.norm()) or 1.0)


def draw_conversion(seed: int, dtype: str) -> dict[str, float]:
    """The difference of the output, the largest in float32; and the worst parameter's gradient,
    relative.
    """
    figures: dict[str, float] = {}
    for place, scale, widths in SETTINGS[:2]:
        theirs, inputs, chance = layer(seed, dtype, scale, widths)
        ours = attention.from_torch(theirs, key_bias=False)
        out, of_torch = ours(*inputs), theirs(*inputs)[0]
        towards = _upstream(out, chance)
        for each in (out, of_torch):
            (each * towards).sum().backward()
        gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
        by_name = attention.torch_parameters(ours, gradients)
        worst = 0.0
        for name, parameter in ours.named_parameters():
            assert parameter.grad is not None
            worst = max(worst, apart(parameter.grad.double(), by_name[name].double()))
        a, b = out.detach().double(), of_torch.detach().double()
        off = float((a - b).abs().max()) if dtype == "float32" else apart(a, b)
        figures |= {f"forward{place}": off, f"backward{place}": worst}
    return figures
