"""Attention written from scratch, by einsum and in NumPy, against what torch's modules compute.

Norms are of the whole difference, as the source prints them. Legend: b batch, s, t and n tokens,
h heads, i channels of a head, E width.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.features.claims.claim import DATA
from impls import table
from impls.loading import load_function
from impls.problem import Problem

CLOUDS, POINTS, CLOUD_WIDTH, CLOUD_HEADS = 8, 80, 12, 2
TOKENS, WIDTH, INNER, HEADS, BATCH = 100, 64, 128, 4, 10
PRINTED: Mapping[str, Any] = tomllib.loads(DATA.read_text())["words"]
"""Three words of four numbers, with the output and the weights that a notebook prints."""
VECTORS = (11, 50)
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


def draw_einsum(seed: int, dtype: str) -> dict[str, float]:
    """The relative norm of the difference."""
    torch.manual_seed(seed)  # torch's modules draw their own weights
    kind = getattr(torch, dtype)
    x = torch.randn(CLOUDS, POINTS, CLOUD_WIDTH, dtype=kind)
    theirs = nn.MultiheadAttention(
        CLOUD_WIDTH, CLOUD_HEADS, bias=False, batch_first=True, dtype=kind
    )
    with torch.no_grad():
        q, k, v = theirs.in_proj_weight.chunk(3)
        ours = by_einsum(x, q, k, v, theirs.out_proj.weight, CLOUD_HEADS)
        return {"output": float((theirs(x, x, x)[0] - ours).norm() / ours.norm())}


def _causal(dtype: str) -> Tensor:
    return torch.full((TOKENS, TOKENS), -torch.inf, dtype=getattr(torch, dtype)).triu(1)


def draw_one(seed: int, dtype: str, batch: int = 1, heads: int = 1) -> dict[str, float]:
    """The norms of the differences: one head, one sequence."""
    torch.manual_seed(seed)
    kind, mask = getattr(torch, dtype), _causal(dtype)
    x = torch.randn(batch, TOKENS, WIDTH, dtype=kind)
    theirs = nn.MultiheadAttention(WIDTH, heads, bias=False, batch_first=True, dtype=kind)
    with torch.no_grad():
        out, weights = theirs(x, x, x, attn_mask=mask)
        in_w, out_w = theirs.in_proj_weight.numpy(), theirs.out_proj.weight.numpy()
    ours, each = attention(x.numpy(), in_w, out_w, mask.numpy(), heads)
    return {
        "weights": float(np.linalg.norm(each.mean(1) - weights.numpy())),
        "output": float(np.linalg.norm(ours - out.numpy())),
    }


def draw_heads(seed: int, dtype: str) -> dict[str, float]:
    """Four heads."""
    return draw_one(seed, dtype, heads=HEADS)


def draw_batched(seed: int, dtype: str) -> dict[str, float]:
    """One head, ten sequences; and that one matrix needs no batched product."""
    chance = np.random.default_rng(seed)
    b, c = chance.standard_normal((10, 3, 5, 4)), chance.standard_normal((4, 3))
    stacked = (b.reshape(-1, 4) @ c).reshape(10, 3, 5, 3)
    return {**draw_one(seed, dtype, BATCH), "stacked": float(abs((b @ c - stacked).sum()))}


def draw_block(seed: int, dtype: str) -> dict[str, float]:
    """A whole transformer block, as it is begun, and with norms whose scales have moved."""
    torch.manual_seed(seed)
    kind, mask = getattr(torch, dtype), _causal(dtype)
    x_bnE = torch.randn(1, TOKENS, WIDTH, dtype=kind)
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, dropout=0.0, batch_first=True, dtype=kind
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


def _plain(x_bnE: Array) -> tuple[Array, Array]:
    """Self-attention without projections: softmax(x x^T d^-1/2) x, and its weights."""
    eye = np.eye(x_bnE.shape[-1])
    out, weights = attention(x_bnE, np.tile(eye, (3, 1)), eye, np.zeros(()), 1)
    return out[0], weights[0, 0]


def draw_small(seed: int, dtype: str) -> dict[str, float]:
    """Three words of four numbers: the formula, and the row ``matmul`` of the table, as printed."""
    x_nE = np.array(PRINTED["input"], dtype)
    out, weights = _plain(x_nE[None])
    n, width = x_nE.shape
    problem = Problem(heads=1, kv_heads=1, q_len=n, kv_len=n, head_dim=width, v_head_dim=width)
    row = table().find("matmul")
    tensor = torch.tensor(PRINTED["input"])[None, None]
    of_row = load_function(row.build)(problem, **row.chosen)(tensor, tensor, tensor)[0, 0].numpy()
    return {
        "weights": _off(weights, "weights"),
        "output": _off(out, "output"),
        "row": _off(of_row, "output"),
    }


def _off(ours: Array, name: str) -> float:
    """The largest difference from what is printed."""
    return float(np.abs(ours - np.array(PRINTED[name])).max())


def draw_identity(seed: int, dtype: str) -> dict[str, float]:
    """torch's layer with identity projections against the print and the formula, and as it begins
    against the formula.
    """
    torch.manual_seed(seed)
    out, weights = by_torch(np.array(PRINTED["input"]), dtype)
    x_nE = torch.randn(VECTORS, dtype=torch.float64).numpy()
    truth, ours, begun = _plain(x_nE[None]), by_torch(x_nE, dtype), by_torch(x_nE, dtype, False)
    return {
        "weights": _off(weights, "weights"),
        "output": _off(out, "output"),
        "formula": max(_apart(a, b) for a, b in zip(ours, truth, strict=True)),
        "begun": _apart(begun[1], truth[1]),
    }


def by_torch(x_nE: Array, dtype: str, identity: bool = True) -> tuple[Array, Array]:
    """nn.MultiheadAttention with one head; its projections the identity, or as it begins."""
    kind, width = getattr(torch, dtype), x_nE.shape[-1]
    module = nn.MultiheadAttention(width, 1, bias=False, batch_first=True, dtype=kind)
    tensor = torch.from_numpy(x_nE).to(kind)[None]
    with torch.no_grad():
        if identity:
            module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
            module.out_proj.weight.copy_(torch.eye(width))
        out, weights = module(tensor, tensor, tensor)
    return out[0].double().numpy(), weights[0].double().numpy()


def _apart(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
