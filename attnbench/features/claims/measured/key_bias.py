"""Does the bias of the keys change the output of nn.MultiheadAttention, and does it learn?

All parameters are drawn anew: a random number times uniform ones. Then one bias is drawn twice, the
rest standing still, and the outputs are compared. In float64 what is mere rounding in float32 is
smaller by half a billion.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.spread import middle

WIDTH, HEADS, BATCH, KEYS, QUERIES = 12, 4, 64, 100, 80
OTHER_WIDTHS = {"kdim": 17, "vdim": 19}
SCALES = (10.0, 0.1)
"""Of parameters: the source's, and one at which the softmax is far from saturated."""
DRAWS = 21
BIASES = ("query", "key", "value")
DTYPES = {"": torch.float32, " float64": torch.float64}


def measure(asked: ClaimRequest) -> ClaimFindings:
    """Of each bias: by how much the output moves; of the keys', its gradient too."""
    figures: dict[str, ClaimFigure] = {}
    rows: list[list[str | float | None]] = []
    seeds = range(asked.seed, asked.seed + DRAWS)
    for word, dtype in DTYPES.items():
        moved = _by_bias([_moved(seed, dtype, SCALES[0], OTHER_WIDTHS) for seed in seeds])
        figures |= {f"{bias}{word} kdim": each for bias, each in moved.items()}
        for scale in SCALES:
            moved = _by_bias([_moved(seed, dtype, scale, {}) for seed in seeds])
            learnt = [_gradients(seed, dtype, scale) for seed in seeds]
            rows.append(
                [
                    f"{scale:g}",
                    word.strip() or "float32",
                    *(each.value for each in moved.values()),
                    *(middle(some).value for some in zip(*learnt, strict=True)),
                ]
            )
            place = "" if scale == SCALES[0] else " calm"
            figures |= {f"{bias}{word}{place}": each for bias, each in moved.items()}
            figures[f"gradient{word} at {scale:g}"] = middle(
                [key / max(query, value) for query, key, value, _ in learnt]
            )
    figures["rounding"] = _over(figures["key"], figures["key float64"])
    columns = [
        "scale",
        "dtype",
        *(f"{bias}: output moves" for bias in BIASES),
        *(f"{bias}: gradient" for bias in BIASES),
        "entropy",
    ]
    note = (
        "entropy is that of the attention, averaged over heads, as a share of uniform weights': "
        "near 0 the softmax is saturated"
    )
    return ClaimFindings(figures, [note], [ClaimTable(f"medians of {DRAWS} draws", columns, rows)])


def _by_bias(moved: list[list[float]]) -> dict[str, ClaimFigure]:
    """By bias, the median of some draws."""
    return dict(zip(BIASES, map(middle, zip(*moved, strict=True)), strict=True))


def _over(a: ClaimFigure, b: ClaimFigure) -> ClaimFigure:
    assert a.value is not None and b.value is not None
    return ClaimFigure(a.value / max(b.value, 1e-300))


def randomised(parameters: list[Tensor], scale: float, chance: torch.Generator) -> None:
    """Each becomes a random number times uniform ones."""
    for x in parameters:
        drawn = torch.rand(x.shape, generator=chance, dtype=torch.float64)
        x.data.copy_(scale * torch.rand(1, generator=chance, dtype=torch.float64) * drawn)


def layer(
    seed: int, dtype: torch.dtype, scale: float, widths: dict[str, int]
) -> tuple[nn.MultiheadAttention, list[Tensor], torch.Generator]:
    """torch's own with drawn parameters, and inputs: queries, keys, values."""
    chance = torch.Generator().manual_seed(seed)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=dtype, **widths)
    randomised(list(module.parameters()), scale, chance)
    shapes = [(QUERIES, WIDTH), (KEYS, module.kdim), (KEYS, module.vdim)]
    inputs = [
        torch.rand(BATCH, *shape, generator=chance, dtype=torch.float64).to(dtype)
        for shape in shapes
    ]
    return module, inputs, chance


@torch.no_grad()
def _moved(seed: int, dtype: torch.dtype, scale: float, widths: dict[str, int]) -> list[float]:
    """The largest change of the output as each bias in turn is drawn twice."""
    module, inputs, chance = layer(seed, dtype, scale, widths)
    moved = []
    for bias in module.in_proj_bias.data.chunk(3):
        randomised([bias], scale, chance)
        before = module(*inputs)[0]
        randomised([bias], scale, chance)
        moved.append(float((module(*inputs)[0] - before).abs().max()))
    return moved


def _gradients(seed: int, dtype: torch.dtype, scale: float) -> list[float]:
    """The largest gradient in each bias, and the entropy of the attention."""
    module, inputs, chance = layer(seed, dtype, scale, {})
    out, weights = module(*inputs)
    towards = torch.randn(out.shape, generator=chance, dtype=torch.float64).to(dtype)
    (out * towards).sum().backward()
    assert module.in_proj_bias.grad is not None
    largest = [float(g.abs().max()) for g in module.in_proj_bias.grad.chunk(3)]
    return [*largest, entropy(weights)]


def entropy(weights: Tensor) -> float:
    """Mean over the rows, as a share of that of uniform weights."""
    p = weights.detach().double()
    each = -torch.special.xlogy(p, p).sum(-1)
    return float(each.mean() / torch.log(torch.tensor(float(p.shape[-1]))))
