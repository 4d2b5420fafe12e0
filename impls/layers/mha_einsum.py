"""Multi-head attention written as einsum over weights by heads: no reshaping of tokens anywhere.

    q_bhnd = x_bnE W_hdE + b_hd,   k_bcmd = y_bmE W_cdE + b_cd,   v likewise
    s_bcgnm = q_bcgnd k_bcmd d^-1/2,   p = softmax(s + mask),   o_bcgnd = p_bcgnm v_bcmd
    out_bnE = o_bhnd W_hdE + b_E

The same mathematics as multi-head attention around exact softmax, under every mask, with a matrix
of scores. Decoding keeps keys and values.

Cost: 8 n E^2 FLOPs for the projections without grouped heads, and 4 n m E for the attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impls.heads import Attend, grouped
from impls.layers.common import Heads, Layer
from impls.layers.plain import LayerDefine, softmax_define
from impls.layers.weights import Weights, draw_weights
from impls.problem import Problem
from impls.score_mask import ScoreMask


def _shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    h, c, d, width = problem.heads, problem.kv_heads, problem.head_dim, problem.width
    shapes: dict[str, tuple[int, ...]] = {
        "q_weight": (h, d, width), "k_weight": (c, d, width), "v_weight": (c, d, width),
        "out_weight": (h, d, width), "q_bias": (h * d,), "k_bias": (c * d,), "v_bias": (c * d,),
        "out_bias": (width,),
    }  # fmt: skip
    return shapes


def _softmax(problem: Problem) -> Attend:
    mask = ScoreMask(problem)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor) -> Tensor:
        q_bcrd = grouped(q_bhnd, problem)
        scores = torch.einsum("bcrd,bcmd->bcrm", q_bcrd, k_bcmd).mul_(problem.scale)
        weights = mask.add_(scores).softmax(-1)
        return mask.close(torch.einsum("bcrm,bcmd->bcrd", weights, v_bcmd))

    return attend


def build(problem: Problem) -> Layer:
    """Legend in :mod:`impls.layers.common`."""
    weights = draw_weights(_shapes(problem), problem)
    d = problem.head_dim

    def heads(x_bne: Tensor, name: str) -> Tensor:
        out = torch.einsum("bnE,hdE->bhnd", x_bne, weights[f"{name}_weight"])
        return out + weights[f"{name}_bias"].view(-1, 1, d)

    def project(x_bne: Tensor, y_bme: Tensor | None) -> Heads:
        y_bme = x_bne if y_bme is None else y_bme
        return heads(x_bne, "q"), heads(y_bme, "k"), heads(y_bme, "v")

    def join(out_bhnd: Tensor) -> Tensor:
        return torch.einsum("bhnd,hdE->bnE", out_bhnd, weights["out_weight"]) + weights["out_bias"]

    return Layer(problem, weights, project, _softmax(problem), join)


def definition(problem: Problem) -> LayerDefine:
    """A head at a time: its own projections, its softmax, and its share of the output."""
    inside = softmax_define(problem.with_(level="core"), problem.scale)

    def heads(x: Tensor, weights: Weights, name: str) -> Tensor:
        matrices = weights[f"{name}_weight"].unbind()
        biases = weights[f"{name}_bias"].split(problem.head_dim)
        return torch.stack([x @ w.T + b for w, b in zip(matrices, biases, strict=True)], 1)

    def of_rows(x: Tensor, y: Tensor, rows: Tensor, weights: Weights) -> Tensor:
        q, k, v = heads(x, weights, "q"), heads(y, weights, "k"), heads(y, weights, "v")
        out = inside(q, k, v, rows)
        joined = [out[:, i] @ w for i, w in enumerate(weights["out_weight"].unbind())]
        return torch.stack(joined).sum(0) + weights["out_bias"]

    return LayerDefine(problem, draw_weights(_shapes(problem), problem), of_rows)
