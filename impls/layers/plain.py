"""Shared by the layers' definitions: softmax, attention and a block, every step written out.

Legend in :mod:`impls.layers.common`; r rows asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from impls.heads import Define
from impls.layers.common import NORM_EPS
from impls.layers.weights import Weights
from impls.loading import load_function
from impls.problem import Problem
from impls.score_mask import added_to, masked_softmax, visible_pairs
from impls.spec import Variant


def core_define(core: Variant, problem: Problem) -> Define:
    """The core's definition; plain softmax where it computes exactly that."""
    inside = problem.with_(level="core")
    if core.definition is None:
        return softmax_define(inside, inside.scale)
    define: Define = load_function(core.definition)(inside, **core.chosen)
    return define


def softmax_define(problem: Problem, scale: float) -> Define:
    """Softmax attention of some rows as one would write it; its backward as :class:`_Again`."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        group = q_bhnd.shape[1] // k_bcmd.shape[1]
        k_bhmd, v_bhme = (x.repeat_interleave(group, 1) for x in (k_bcmd, v_bcme))
        q_bhrd = q_bhnd[:, :, rows]
        if q_bhnd.dtype == torch.float32:
            added = added_to(q_bhnd.new_zeros(()), problem, rows)
            hidden = ~visible_pairs(problem, rows)
            again: Callable[..., Tensor] = _Again.apply
            return again(q_bhrd, k_bhmd, v_bhme, added, hidden, scale)
        return masked_softmax(q_bhrd @ k_bhmd.mT * scale, problem, rows) @ v_bhme

    return define


class _Again(torch.autograd.Function):
    """Softmax attention whose backward computes the weights again, as every fused kernel does.

    It keeps the log of each row's sum, and subtracts it from scores that are added up in another
    order: near a score of 200 both round by 1.5e-5 in float32, so the weights are off by as much.
    In float64 that is nothing; in half precisions rounded weights, kept, are the worse form. A
    definition that kept its weights would be a yardstick no fused kernel could meet.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, added: Tensor, hidden: Tensor,
                scale: float) -> Tensor:  # fmt: skip
        scores = (q @ k.mT * scale + added).masked_fill(hidden, -torch.inf)
        scores = scores.masked_fill(hidden.all(-1, keepdim=True), 0.0)
        out = scores.softmax(-1).masked_fill(hidden, 0.0) @ v
        ctx.save_for_backward(q, k, v, added, hidden, scores.logsumexp(-1, keepdim=True), out)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, added, hidden, log_sum, out = ctx.saved_tensors
        dout = upstream[0]
        even, odd = (q[..., i::2] @ k[..., i::2].mT for i in (0, 1))
        scores = (even + odd) * ctx.scale + added
        weights = (scores - log_sum).masked_fill(hidden, -torch.inf).exp()
        into = weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True)) * ctx.scale
        return into @ k, into.mT @ q, weights.mT @ dout, None, None, None


def attention_of_rows(problem: Problem, core: Variant | None) -> Callable[..., Tensor]:
    """``(x, y, rows, weights)``: three projections one by one, the core's definition, a fourth."""
    inside = problem.with_(level="core")
    define = core_define(core, problem) if core else softmax_define(inside, problem.scale)
    d, width, keys = problem.head_dim, problem.width, problem.kv_heads * problem.head_dim

    def of_rows(x: Tensor, y: Tensor, rows: Tensor, weights: Weights) -> Tensor:
        matrices = weights["in_weight"].split((width, keys, keys))
        heads = []
        for name, tokens, matrix in zip("qkv", (x, y, y), matrices, strict=True):
            flat = tokens @ matrix.T
            if f"{name}_bias" in weights:
                flat = flat + weights[f"{name}_bias"]
            heads.append(flat.reshape(*flat.shape[:2], -1, d).transpose(1, 2))
        q, k, v = heads
        out = define(q, k, v, rows).transpose(1, 2).flatten(2) @ weights["out_weight"].T
        return out + weights["out_bias"] if "out_bias" in weights else out

    return of_rows


def block_of_rows(problem: Problem, core: Variant | None, norm: str,
                  activation: str) -> Callable[..., Tensor]:  # fmt: skip
    """The same of a transformer block, every step of it written out."""
    attention = attention_of_rows(problem, core)

    def normed(x: Tensor, weights: Weights, name: str) -> Tensor:
        away = x - x.mean(-1, keepdim=True)
        size = (away.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
        return away / size * weights[f"{name}_weight"] + weights[f"{name}_bias"]

    def feed_forward(x: Tensor, weights: Weights) -> Tensor:
        inner = x @ weights["ff1_weight"].T + weights["ff1_bias"]
        gelu = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        inner = inner.clamp(min=0) if activation == "relu" else gelu
        return inner @ weights["ff2_weight"].T + weights["ff2_bias"]

    def of_rows(x: Tensor, y: Tensor, rows: Tensor, weights: Weights) -> Tensor:
        if norm == "pre":
            inside = (normed(x, weights, "norm1"), normed(y, weights, "norm1"))
            x = x[:, rows] + attention(*inside, rows, weights)
            return x + feed_forward(normed(x, weights, "norm2"), weights)
        x = normed(x[:, rows] + attention(x, y, rows, weights), weights, "norm1")
        return normed(x + feed_forward(x, weights), weights, "norm2")

    return of_rows


class LayerDefine:
    """A definition by ``of_rows(x, y, rows, weights)``: queries come from x, keys from y."""

    def __init__(self, problem: Problem, weights: Weights, of_rows: Callable[..., Tensor]) -> None:
        self.problem, self.weights, self.of_rows = problem, weights, of_rows

    def __call__(self, x: Tensor, *rest: Any) -> Tensor:
        """``(x, rows, weights)``, or ``(x, context, rows, weights)``."""
        *context, rows, weights = rest
        new = x if context else x[:, self.problem.kv_len - self.problem.q_len :]
        return self.of_rows(new, context[0] if context else x, rows, weights)
