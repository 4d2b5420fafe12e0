"""Is attention in NumPy what torch's modules compute: one head, batches, heads, a whole block?

Masks are added: nought where a query may see, minus infinity where not. The norms are of the whole
difference, as the source prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.spread import middle

TOKENS, WIDTH, INNER = 100, 64, 128
HEADS, BATCH = 4, 10
DRAWS = 11
DTYPES = {"": torch.float32, " float64": torch.float64}
Array = np.ndarray[Any, Any]


def softmax(scores: Array) -> Array:
    """Over the last axis."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares: Array = powers / powers.sum(-1, keepdims=True)
    return shares


def attention(
    x_bnE: Array, in_w: Array, out_w: Array, mask: Array, heads: int
) -> tuple[Array, Array]:
    """The output, and the weights of each head. ``in_w`` [3E, E] and ``out_w`` are torch's."""
    b, n, width = x_bnE.shape
    q, k, v = ((x_bnE @ w.T).reshape(b, n, heads, -1).swapaxes(1, 2) for w in np.split(in_w, 3))
    scale = np.sqrt(np.asarray(width // heads, x_bnE.dtype))
    weights = softmax(q @ k.swapaxes(-1, -2) / scale + mask)
    return (weights @ v).swapaxes(1, 2).reshape(b, n, width) @ out_w.T, weights


def block(
    x_bnE: Array,
    in_w: Array,
    out_w: Array,
    ff1: Array,
    ff2: Array,
    mask: Array,
    heads: int,
    eps: float,
) -> Array:
    """Attention, then a feed-forward part with relu: each with a way past, and a norm after."""
    z = norm(x_bnE + attention(x_bnE, in_w, out_w, mask, heads)[0], eps)
    return norm(z + np.maximum(z @ ff1.T, 0) @ ff2.T, eps)


def norm(z: Array, eps: float) -> Array:
    """Of each token: mean nought, variance one; nothing that is learnt."""
    centred: Array = z - z.mean(-1, keepdims=True)
    return centred / np.sqrt(z.var(-1, keepdims=True) + np.asarray(eps, z.dtype))


def measure_one(asked: ClaimRequest) -> ClaimFindings:
    """One head, one sequence."""
    return _said(asked, lambda seed, dtype: _layer(seed, dtype, batch=1, heads=1))


def measure_batched(asked: ClaimRequest) -> ClaimFindings:
    """One head, ten sequences; and that one matrix needs no batched product."""
    found = _said(asked, lambda seed, dtype: _layer(seed, dtype, batch=BATCH, heads=1))
    chance = np.random.default_rng(asked.seed)
    b, c = chance.standard_normal((10, 3, 5, 4)), chance.standard_normal((4, 3))
    stacked = (b.reshape(-1, 4) @ c).reshape(10, 3, 5, 3)
    figures = {**found.figures, "stacked": ClaimFigure(float(abs((b @ c - stacked).sum())))}
    return ClaimFindings(figures, found.notes, found.tables)


def measure_heads(asked: ClaimRequest) -> ClaimFindings:
    """Four heads; torch gives weights averaged over them."""
    return _said(asked, lambda seed, dtype: _layer(seed, dtype, batch=1, heads=HEADS))


def measure_block(asked: ClaimRequest) -> ClaimFindings:
    """A whole transformer block, as it is begun, and with norms whose scales have moved."""
    return _said(asked, _block)


def _said(
    asked: ClaimRequest, apart: Callable[[int, torch.dtype], dict[str, float]]
) -> ClaimFindings:
    figures: dict[str, ClaimFigure] = {}
    rows: list[list[str | float | None]] = []
    for word, dtype in DTYPES.items():
        draws = [apart(asked.seed + n, dtype) for n in range(DRAWS)]
        for name in draws[0]:
            values = [each[name] for each in draws]
            figures[name + word] = middle(values)
            rows.append(
                [
                    name,
                    word.strip() or "float32",
                    figures[name + word].value,
                    min(values),
                    max(values),
                ]
            )
    columns = ["norm of the difference of", "dtype", "median", "least", "most"]
    return ClaimFindings(figures, (), [ClaimTable(f"{DRAWS} draws", columns, rows)])


def _mask(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((TOKENS, TOKENS), -torch.inf, dtype=dtype).triu(1)


@torch.no_grad()
def _layer(seed: int, dtype: torch.dtype, batch: int, heads: int) -> dict[str, float]:
    torch.manual_seed(seed)  # the module draws its own weights
    x = torch.randn(batch, TOKENS, WIDTH, dtype=dtype)
    theirs = nn.MultiheadAttention(WIDTH, heads, bias=False, batch_first=True, dtype=dtype)
    mask = _mask(dtype)
    out, weights = theirs(x, x, x, attn_mask=mask)
    ours, each = attention(
        x.numpy(),
        theirs.in_proj_weight.numpy(),
        theirs.out_proj.weight.numpy(),
        mask.numpy(),
        heads,
    )
    return {
        "weights": float(np.linalg.norm(each.mean(1) - weights.numpy())),
        "output": float(np.linalg.norm(ours - out.numpy())),
    }


@torch.no_grad()
def _block(seed: int, dtype: torch.dtype) -> dict[str, float]:
    torch.manual_seed(seed)
    x = torch.randn(1, TOKENS, WIDTH, dtype=dtype)
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, dim_feedforward=INNER, dropout=0.0, batch_first=True, dtype=dtype
    )
    for linear in (theirs.linear1, theirs.linear2):
        linear.bias.zero_()
    mask, attention_ = _mask(dtype), theirs.self_attn
    ours = block(
        x.numpy(),
        attention_.in_proj_weight.numpy(),
        attention_.out_proj.weight.numpy(),
        theirs.linear1.weight.numpy(),
        theirs.linear2.weight.numpy(),
        mask.numpy(),
        HEADS,
        theirs.norm1.eps,
    )
    found = {"block": float(np.linalg.norm(ours - theirs(x, mask).numpy()))}
    theirs.norm2.weight.uniform_(0.75, 1.25)
    return {**found, "moved": float(np.linalg.norm(ours - theirs(x, mask).numpy()))}
