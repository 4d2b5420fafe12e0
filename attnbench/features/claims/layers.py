"""Attention written from scratch, by einsum and in NumPy, against what torch's modules compute.

In NumPy masks are added: zero where a query may see, minus infinity where not; norms are of the
whole difference, as the source prints them. Legend: b batch, s, t and n tokens, h heads, i channels
of a head, E width.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.features.claims.claim import (
    AT_LEAST,
    AT_MOST,
    WITHIN,
    Cells,
    Claim,
    ClaimFigure,
    ClaimFindings,
    ClaimPoint,
    ClaimRequest,
    ClaimSource,
    ClaimTable,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CLOUDS, POINTS, CLOUD_WIDTH, CLOUD_HEADS, CLOUD_DRAWS = 8, 80, 12, 2, 21
TOKENS, WIDTH, INNER, HEADS, BATCH, DRAWS = 100, 64, 128, 4, 10, 11
Array = np.ndarray[Any, Any]

EINSUM_NOTEBOOK = ClaimSource(
    "Multi-head Attention from Scratch",
    "Zaccharie Ramzi and Gabriel Peyré",
    "notebook, read as text; the authors' pages are zaccharieramzi.fr and gpeyre.com",
    "all cells, with outputs",
)
NUMPY_NOTEBOOK = ClaimSource(
    "Implementing Transformers",
    "not named in the text",
    "teaching notebook, read as text",
    "all cells, with outputs",
)
_RULES = (
    "additive causal mask, 100 tokens of 64; torch's own weights; median of 11 draws. Written anew "
    "from the formulas. Rounding depends on the draw and on NumPy's products, so three times "
    "theirs is allowed; the limits in float64 are ours"
)


def _norm(name: str, says: str, published: float) -> tuple[ClaimPoint, ClaimPoint]:
    says = f"norm of the difference of {says}, float32"
    return (
        ClaimPoint(name, says, AT_MOST, published, 2.0),
        ClaimPoint(f"{name} float64", "the same in float64", AT_MOST, 1e-12, ours=True),
    )


ROWS = [
    Claim(
        "einsum-from-scratch",
        "A multi-head self-attention written from scratch by einsums gives the same output as "
        "torch's implementation.",
        EINSUM_NOTEBOOK,
        "8 clouds of 80 points in 12 dimensions, 2 heads, no biases; nn.MultiheadAttention's own "
        "weights; median of 21 draws. Written anew from the formulas. Rounding depends on the draw "
        "and the processor, so twice theirs is allowed; the limit in float64 is ours.",
        (
            ClaimPoint(
                "float32",
                "norm of the difference over the output's",
                AT_MOST,
                1.9810291e-07,
                1.0,
            ),
            ClaimPoint("float64", "the same in float64", AT_MOST, 1e-14, ours=True),
        ),
        f"{__name__}:measure_einsum",
    ),
    Claim(
        "numpy-attention",
        "Self-attention in NumPy with an additive causal mask is what nn.MultiheadAttention "
        "computes with one head: output and weights.",
        NUMPY_NOTEBOOK,
        f"One head, one sequence; {_RULES}.",
        (
            *_norm("weights", "the weights", 1.3273820113806287e-07),
            *_norm("output", "the output", 1.5681836747124059e-06),
        ),
        f"{__name__}:measure_one",
    ),
    Claim(
        "numpy-batched",
        "The same code does batches, since NumPy's product of more than two dimensions is a "
        "batched one; a product with one matrix needs none.",
        NUMPY_NOTEBOOK,
        f"One head, ten sequences; {_RULES}.",
        (
            *_norm("weights", "the weights", 3.964657201289755e-07),
            *_norm("output", "the output", 4.451171760666422e-06),
            ClaimPoint(
                "stacked",
                "all samples stacked, times one matrix: the sum of the differences; "
                "theirs was -2.4e-16",
                WITHIN,
                0.0,
                1e-13,
                ours=True,
            ),
        ),
        f"{__name__}:measure_batched",
    ),
    Claim(
        "numpy-heads",
        "Multi-head attention in NumPy is what nn.MultiheadAttention computes, whose weights are "
        "averaged over the heads.",
        NUMPY_NOTEBOOK,
        f"Four heads, one sequence; {_RULES}.",
        (
            *_norm("output", "the output", 1.7129907183519769e-06),
            *_norm("weights", "the weights, ours averaged over heads", 1.0309395741485273e-07),
        ),
        f"{__name__}:measure_heads",
    ),
    Claim(
        "numpy-block",
        "A whole transformer block in NumPy, without scales and shifts of its norms, is what "
        "nn.TransformerEncoderLayer computes, and only as that is begun.",
        NUMPY_NOTEBOOK,
        f"Four heads, inner width 128, post-norm, relu, biases of the linear layers at nought; "
        f"{_RULES}. With the scales of the second norm drawn within a quarter of one it must be "
        "off: by how much at the least is ours.",
        (
            *_norm("block", "the output", 7.5203398621773295e-06),
            ClaimPoint(
                "moved",
                "norm of the difference once a norm's scales have moved",
                AT_LEAST,
                1.0,
                ours=True,
            ),
        ),
        f"{__name__}:measure_block",
    ),
]


def by_einsum(
    x_bsE: Tensor, q_w: Tensor, k_w: Tensor, v_w: Tensor, out_w: Tensor, heads: int
) -> Tensor:
    """Projections, powers of the scores over their sums, and the heads' own parts of the output."""
    import torch

    d = x_bsE.shape[-1] // heads
    q_bshi, k_bshi, v_bshi = (
        torch.einsum("bsE,hiE->bshi", x_bsE, w.unflatten(0, (heads, d))) for w in (q_w, k_w, v_w)
    )
    powers_bhst = torch.exp(torch.einsum("bshi,bthi->bhst", q_bshi, k_bshi) / sqrt(d))
    weights_bhst = powers_bhst / torch.einsum("bhst->bhs", powers_bhst)[..., None]
    z_bshi = torch.einsum("bhst,bthi->bshi", weights_bhst, v_bshi)
    return torch.einsum("bshi,Ehi->bsE", z_bshi, out_w.unflatten(1, (heads, d)))


def attention(
    x_bnE: Array, in_w: Array, out_w: Array, mask: Array, heads: int
) -> tuple[Array, Array]:
    """The output, and the weights of each head. ``in_w`` [3E, E] and ``out_w`` are torch's."""
    b, n, width = x_bnE.shape
    q, k, v = ((x_bnE @ w.T).reshape(b, n, heads, -1).swapaxes(1, 2) for w in np.split(in_w, 3))
    scale = np.sqrt(np.asarray(width // heads, x_bnE.dtype))
    scores = q @ k.swapaxes(-1, -2) / scale + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return (weights @ v).swapaxes(1, 2).reshape(b, n, width) @ out_w.T, weights


def norm(z: Array, eps: float) -> Array:
    """Each token with mean zero and variance one; nothing is learnt."""
    centred: Array = z - z.mean(-1, keepdims=True)
    return centred / np.sqrt(z.var(-1, keepdims=True) + np.asarray(eps, z.dtype))


def measure_einsum(request: ClaimRequest) -> ClaimFindings:
    """The relative norm of the difference, in both dtypes."""
    figures, rows = _draws(request, CLOUD_DRAWS, _einsum)
    columns = ["dtype", "median", "least", "most"]
    table = ClaimTable(f"relative norms, {CLOUD_DRAWS} draws", columns, [row[1:] for row in rows])
    return ClaimFindings({name.strip(): figure for name, figure in figures.items()}, (), [table])


def measure_one(request: ClaimRequest) -> ClaimFindings:
    """One head, one sequence."""
    return _against_torch(request, lambda seed, dtype: _layer(seed, dtype, batch=1, heads=1))


def measure_batched(request: ClaimRequest) -> ClaimFindings:
    """One head, ten sequences; and that one matrix needs no batched product."""
    found = _against_torch(request, lambda seed, dtype: _layer(seed, dtype, batch=BATCH, heads=1))
    chance = np.random.default_rng(request.seed)
    b, c = chance.standard_normal((10, 3, 5, 4)), chance.standard_normal((4, 3))
    stacked = (b.reshape(-1, 4) @ c).reshape(10, 3, 5, 3)
    figures = {**found.figures, "stacked": ClaimFigure(float(abs((b @ c - stacked).sum())))}
    return ClaimFindings(figures, found.notes, found.tables)


def measure_heads(request: ClaimRequest) -> ClaimFindings:
    """Four heads; torch gives weights averaged over them."""
    return _against_torch(request, lambda seed, dtype: _layer(seed, dtype, batch=1, heads=HEADS))


def measure_block(request: ClaimRequest) -> ClaimFindings:
    """A whole transformer block, as it is begun, and with norms whose scales have moved."""
    return _against_torch(request, _block)


Differences = Callable[[int, "torch.dtype"], dict[str, float]]
"""From a seed and a dtype, differences by name."""


def _against_torch(request: ClaimRequest, differences: Differences) -> ClaimFindings:
    figures, rows = _draws(request, DRAWS, differences)
    figures = {name.removesuffix(" float32"): figure for name, figure in figures.items()}
    columns = ["norm of the difference of", "dtype", "median", "least", "most"]
    return ClaimFindings(figures, (), [ClaimTable(f"{DRAWS} draws", columns, rows)])


def _draws(
    request: ClaimRequest, count: int, differences: Differences
) -> tuple[dict[str, ClaimFigure], list[Cells]]:
    """The median of each difference by its name and dtype; name, dtype, median, least and most."""
    import torch

    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    for dtype in ("float32", "float64"):
        draws = [differences(request.seed + n, getattr(torch, dtype)) for n in range(count)]
        for name in draws[0]:
            values = [each[name] for each in draws]
            figure = figures[f"{name} {dtype}"] = ClaimFigure.median(values)
            rows.append([name, dtype, figure.value, min(values), max(values)])
    return figures, rows


def _einsum(seed: int, dtype: torch.dtype) -> dict[str, float]:
    import torch

    torch.manual_seed(seed)  # the layer draws its own weights
    x = torch.randn(CLOUDS, POINTS, CLOUD_WIDTH, dtype=dtype)
    theirs = torch.nn.MultiheadAttention(
        CLOUD_WIDTH, CLOUD_HEADS, batch_first=True, bias=False, dtype=dtype
    )
    with torch.no_grad():
        of_torch = theirs(x, x, x)[0]
        q, k, v = theirs.in_proj_weight.chunk(3)
        ours = by_einsum(x, q, k, v, theirs.out_proj.weight, CLOUD_HEADS)
        return {"": float((of_torch - ours).norm() / ours.norm())}


def _layer(seed: int, dtype: torch.dtype, batch: int, heads: int) -> dict[str, float]:
    import torch

    torch.manual_seed(seed)  # the module draws its own weights
    x = torch.randn(batch, TOKENS, WIDTH, dtype=dtype)
    theirs = torch.nn.MultiheadAttention(WIDTH, heads, bias=False, batch_first=True, dtype=dtype)
    mask = torch.full((TOKENS, TOKENS), -torch.inf, dtype=dtype).triu(1)
    with torch.no_grad():
        out, weights = theirs(x, x, x, attn_mask=mask)
        in_w, out_w = theirs.in_proj_weight.numpy(), theirs.out_proj.weight.numpy()
    ours, each = attention(x.numpy(), in_w, out_w, mask.numpy(), heads)
    return {
        "weights": float(np.linalg.norm(each.mean(1) - weights.numpy())),
        "output": float(np.linalg.norm(ours - out.numpy())),
    }


def _block(seed: int, dtype: torch.dtype) -> dict[str, float]:
    import torch

    torch.manual_seed(seed)
    x_bnE = torch.randn(1, TOKENS, WIDTH, dtype=dtype)
    theirs = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, dim_feedforward=INNER, dropout=0.0, batch_first=True, dtype=dtype
    )
    mask = torch.full((TOKENS, TOKENS), -torch.inf, dtype=dtype).triu(1)
    with torch.no_grad():
        for linear in (theirs.linear1, theirs.linear2):
            linear.bias.zero_()
        inner, eps = theirs.self_attn, theirs.norm1.eps
        in_w, out_w = inner.in_proj_weight.numpy(), inner.out_proj.weight.numpy()
        x = x_bnE.numpy()
        z = norm(x + attention(x, in_w, out_w, mask.numpy(), HEADS)[0], eps)
        fed = np.maximum(z @ theirs.linear1.weight.numpy().T, 0) @ theirs.linear2.weight.numpy().T
        ours = norm(z + fed, eps)
        begun = float(np.linalg.norm(ours - theirs(x_bnE, mask).numpy()))
        theirs.norm2.weight.uniform_(0.75, 1.25)
        moved = float(np.linalg.norm(ours - theirs(x_bnE, mask).numpy()))
    return {"block": begun, "moved": moved}
