"""Attention written from scratch, by einsum and in NumPy, against what torch's modules compute.

Norms are of the whole difference, as the source prints them. Legend: b batch, s, t and n tokens,
h heads, i channels of a head, E width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, medians_of

CLOUDS, POINTS, CLOUD_WIDTH, CLOUD_HEADS, CLOUD_DRAWS = 8, 80, 12, 2, 21
TOKENS, WIDTH, INNER, HEADS, BATCH, DRAWS = 100, 64, 128, 4, 10, 11
Array = np.ndarray[Any, Any]


def by_einsum(
    x_bsE: Tensor, q_w: Tensor, k_w: Tensor, v_w: Tensor, out_w: Tensor, heads: int
) -> Tensor:
    """Projections, powers of the scores over their sums, and the heads' own parts of the output."""
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


def _against_torch(
    request: ClaimRequest, count: int, differences: Callable[[torch.dtype], dict[str, float]]
) -> ClaimFindings:
    """The median of each difference in both dtypes."""
    draws: dict[str, list[dict[str, float]]] = {"{}": [], "{} float64": []}
    for n in range(count):
        for key, dtype in zip(draws, (torch.float32, torch.float64), strict=True):
            torch.manual_seed(request.seed + n)  # torch's modules draw their own weights
            draws[key].append(differences(dtype))
    return medians_of(draws)


def measure_einsum(request: ClaimRequest) -> ClaimFindings:
    """The relative norm of the difference, in both dtypes."""

    def differences(dtype: torch.dtype) -> dict[str, float]:
        x = torch.randn(CLOUDS, POINTS, CLOUD_WIDTH, dtype=dtype)
        theirs = nn.MultiheadAttention(
            CLOUD_WIDTH, CLOUD_HEADS, bias=False, batch_first=True, dtype=dtype
        )
        with torch.no_grad():
            q, k, v = theirs.in_proj_weight.chunk(3)
            ours = by_einsum(x, q, k, v, theirs.out_proj.weight, CLOUD_HEADS)
            return {"output": float((theirs(x, x, x)[0] - ours).norm() / ours.norm())}

    return _against_torch(request, CLOUD_DRAWS, differences)


def _causal(dtype: torch.dtype) -> Tensor:
    return torch.full((TOKENS, TOKENS), -torch.inf, dtype=dtype).triu(1)


def _layer(dtype: torch.dtype, batch: int = 1, heads: int = 1) -> dict[str, float]:
    x, mask = torch.randn(batch, TOKENS, WIDTH, dtype=dtype), _causal(dtype)
    theirs = nn.MultiheadAttention(WIDTH, heads, bias=False, batch_first=True, dtype=dtype)
    with torch.no_grad():
        out, weights = theirs(x, x, x, attn_mask=mask)
        in_w, out_w = theirs.in_proj_weight.numpy(), theirs.out_proj.weight.numpy()
    ours, each = attention(x.numpy(), in_w, out_w, mask.numpy(), heads)
    return {
        "weights": float(np.linalg.norm(each.mean(1) - weights.numpy())),
        "output": float(np.linalg.norm(ours - out.numpy())),
    }


def measure_one(request: ClaimRequest) -> ClaimFindings:
    """One head, one sequence."""
    return _against_torch(request, DRAWS, _layer)


def measure_heads(request: ClaimRequest) -> ClaimFindings:
    """Four heads."""
    return _against_torch(request, DRAWS, partial(_layer, heads=HEADS))


def measure_batched(request: ClaimRequest) -> ClaimFindings:
    """One head, ten sequences; and that one matrix needs no batched product."""
    findings = _against_torch(request, DRAWS, partial(_layer, batch=BATCH))
    chance = np.random.default_rng(request.seed)
    b, c = chance.standard_normal((10, 3, 5, 4)), chance.standard_normal((4, 3))
    stacked = (b.reshape(-1, 4) @ c).reshape(10, 3, 5, 3)
    off = ClaimFigure(float(abs((b @ c - stacked).sum())))
    return ClaimFindings({**findings.figures, "stacked": off}, (), findings.tables)


def measure_block(request: ClaimRequest) -> ClaimFindings:
    """A whole transformer block, as it is begun, and with norms whose scales have moved."""

    def differences(dtype: torch.dtype) -> dict[str, float]:
        x_bnE, mask = torch.randn(1, TOKENS, WIDTH, dtype=dtype), _causal(dtype)
        theirs = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=0.0, batch_first=True, dtype=dtype
        )
        with torch.no_grad():
            for linear in (theirs.linear1, theirs.linear2):
                linear.bias.zero_()
            inner, eps, x = theirs.self_attn, theirs.norm1.eps, x_bnE.numpy()
            in_w, out_w = inner.in_proj_weight.numpy(), inner.out_proj.weight.numpy()
            z = norm(x + attention(x, in_w, out_w, mask.numpy(), HEADS)[0], eps)
            one, two = theirs.linear1.weight.numpy(), theirs.linear2.weight.numpy()
            ours = norm(z + np.maximum(z @ one.T, 0) @ two.T, eps)
            block = float(np.linalg.norm(ours - theirs(x_bnE, mask).numpy()))
            theirs.norm2.weight.uniform_(0.75, 1.25)
            moved = float(np.linalg.norm(ours - theirs(x_bnE, mask).numpy()))
        return {"block": block, "moved": moved}

    return _against_torch(request, DRAWS, differences)
