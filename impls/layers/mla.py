"""Latent attention (DeepSeek-V2, arXiv:2405.04434): all heads' keys and values from one vector.

    c_m = W_c x_m                  the latent, of L numbers       r_m = R_m W_r x_m   of r, rotated
    k_hm = [ U_h c_m ; r_m ]       v_hm = V_h c_m                 q_hn = [ W_h x_n ; R_n W'_h x_n ]
    out_n = W_o [ softmax( q_hn . k_hm (d + r)^-1/2 + mask ) v_hm ]_h

R_m turns the pair (i, i + r/2) by m 10000^(-2i/r): only these r numbers know positions, counted
among the keys. All heads share r_m, so a decoder keeps L + r numbers of a token, not 2 h d. There
are no biases, no norm on the latent and no low rank for queries. Two forms of the same:

    materialised   keys and values of every head are written out, at every step again
    absorbed       q . U_h c = (U_h^T q) . c, so the keys are [c ; r] for all heads and what is
                   summed are latents; V_h is applied to the sums

``latent=0`` is a quarter of the width, ``rope=0`` half of head_dim, as an even number, 2 at least.

Cost: projections 2 n E (h (d + r) + L + r + E), up-projections 4 m E L materialised (4 n E L
absorbed), pairs 2 (2 d + r) (absorbed: 2 (2 L + r)) each. A step of the absorbed form needs no
up-projection of old tokens: that is its point, and L in place of d in each pair is its price.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import wide
from impls.layers.common import (
    Memory,
    by_heads,
    ends,
    refuse_context,
    refuse_more_queries,
    side_by_side,
)
from impls.layers.cost import latent_sizes
from impls.layers.plain import LayerDefine, softmax_define
from impls.layers.weights import Weights, draw_weights
from impls.problem import Problem
from impls.score_mask import grouped_mask, sdpa_arguments
from impls.spec import Unsupported

BASE = 10000.0


def _shapes(problem: Problem, latent: int, rope: int) -> dict[str, tuple[int, ...]]:
    h, d, width = problem.heads, problem.head_dim, problem.width
    return {
        "query_weight": (h * (d + rope), width), "down_weight": (latent + rope, width),
        "up_weight": (2, h, d, latent), "out_weight": (width, width),
    }  # fmt: skip


def _angles(positions: Tensor, rope: int) -> Tensor:
    """[tokens, r/2], in float64."""
    rates = BASE ** (-torch.arange(0, rope, 2, dtype=torch.float64) / rope)
    return positions.double()[:, None] * rates


class _Latent:
    """``attend`` in either form. Legend: L latent, r rope, z = L + r, u = d + r."""

    def __init__(self, problem: Problem, latent: int, rope: int, absorbed: bool) -> None:
        self.problem, self.latent, self.rope, self.absorbed = problem, latent, rope, absorbed
        self.weights = draw_weights(_shapes(problem, latent, rope), problem)
        for weight in self.weights.values():
            weight.requires_grad_()
        angles = _angles(torch.arange(problem.kv_len), rope)
        self.turns = torch.stack((angles.cos(), angles.sin())).to(problem.device, wide(problem))
        self.scale = (problem.head_dim + rope) ** -0.5
        self.mask = sdpa_arguments(problem)
        if absorbed and (mask := self.mask.get("attn_mask")) is not None:
            one = problem.with_(kv_heads=1)  # all heads' rows against one head of keys
            self.mask = {"attn_mask": grouped_mask(mask, one)}

    def __call__(self, x_bme: Tensor) -> Tensor:
        """Tokens to tokens."""
        new, _ = ends(self.problem, x_bme, None)
        return self._attended(new, self._latents(x_bme, 0))

    @torch.no_grad()
    def remember(self, x_bme: Tensor) -> Memory:
        """Latents and rotated keys of the tokens before, with room for all."""
        before = x_bme.shape[1]
        width = self.latent + self.rope
        cache = x_bme.new_empty(x_bme.shape[0], self.problem.kv_len, width)
        cache[:, :before] = self._latents(x_bme, 0)
        return Memory(cache, before)

    @torch.no_grad()
    def step(self, x_bne: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The new tokens, which are the last of all."""
        cache, before = memory
        tokens = before + x_bne.shape[1]
        cache[:, before:tokens] = self._latents(x_bne, before)
        return self._attended(x_bne, cache), Memory(cache, tokens)

    def _turned(self, x: Tensor, start: int) -> Tensor:
        """Rotated by the position of each token, [..., tokens, r]."""
        cos, sin = self.turns[:, start : start + x.shape[-2]]
        one, other = x.to(cos.dtype).chunk(2, -1)
        turned = torch.cat((one * cos - other * sin, one * sin + other * cos), -1)
        return turned.to(x.dtype)

    def _latents(self, x_bme: Tensor, start: int) -> Tensor:
        """[b, m, z]."""
        down = F.linear(x_bme, self.weights["down_weight"])
        latent, key = down.split((self.latent, self.rope), -1)
        return torch.cat((latent, self._turned(key, start)), -1)

    def _attended(self, x_bne: Tensor, latents_bmz: Tensor) -> Tensor:
        d, start = self.problem.head_dim, self.problem.kv_len - self.problem.q_len
        q_bhnu = by_heads(F.linear(x_bne, self.weights["query_weight"]), d + self.rope)
        plain, turning = q_bhnu.split((d, self.rope), -1)
        queries = plain, self._turned(turning, start)
        form = self._by_latents if self.absorbed else self._by_heads
        out_bhnd = form(*queries, latents_bmz)
        return F.linear(side_by_side(out_bhnd), self.weights["out_weight"])

    def _by_heads(self, q_bhnd: Tensor, turned_bhnr: Tensor, latents_bmz: Tensor) -> Tensor:
        h, d = self.problem.heads, self.problem.head_dim
        latent, key_bmr = latents_bmz.split((self.latent, self.rope), -1)
        up = F.linear(latent, self.weights["up_weight"].flatten(0, 2))
        k_bhmd, v_bhmd = by_heads(up, d).split(h, 1)
        k_bhmu = torch.cat((k_bhmd, key_bmr[:, None].expand(-1, h, -1, -1)), -1)
        # values as wide as keys, the rest zero: torch has fused kernels for equal widths alone
        v_bhmu = F.pad(v_bhmd, (0, self.rope))
        q_bhnu = torch.cat((q_bhnd, turned_bhnr), -1)
        out = F.scaled_dot_product_attention(q_bhnu, k_bhmu, v_bhmu, **self.mask, scale=self.scale)
        return out[..., :d]

    def _by_latents(self, q_bhnd: Tensor, turned_bhnr: Tensor, latents_bmz: Tensor) -> Tensor:
        up_hdL, down_hdL = self.weights["up_weight"].unbind()
        q_bhnz = torch.cat((q_bhnd @ up_hdL, turned_bhnr), -1)
        b, h, n, z = q_bhnz.shape
        keys = latents_bmz[:, None]
        if self.mask.get("is_causal"):
            keys = keys.expand(-1, h, -1, -1)
        else:
            q_bhnz = q_bhnz.reshape(b, 1, h * n, z)
        # the keys are the values too: what their last r numbers add up to is left
        out = F.scaled_dot_product_attention(q_bhnz, keys, keys, **self.mask, scale=self.scale)
        return out.view(b, h, n, z)[..., : self.latent] @ down_hdL.mT


def build(problem: Problem, latent: int, rope: int, absorbed: bool) -> Any:
    """Legend in :mod:`impls.layers.common`."""
    if latent < 0:
        raise Unsupported(f"latent={latent} must be 1 or more, or 0 for a quarter of the width")
    if rope < 0 or rope % 2:
        raise Unsupported(
            f"rope={rope} must be an even number, 2 or more, or 0 for half of head_dim"
        )
    refuse_context(problem)
    refuse_more_queries(problem)
    return _Latent(problem, *latent_sizes(problem, latent, rope), absorbed)


def definition(problem: Problem, latent: int, rope: int, absorbed: bool) -> LayerDefine:
    """Every head's keys and values written out, positions by matrices that rotate, softmax."""
    latent, rope = latent_sizes(problem, latent, rope)
    h, d = problem.heads, problem.head_dim
    inside = softmax_define(problem.with_(level="core"), (d + rope) ** -0.5)

    def turned(x: Tensor, start: int) -> Tensor:
        angles = _angles(torch.arange(start, start + x.shape[-2]), rope)
        cos, sin = torch.diag_embed(angles.cos()), torch.diag_embed(angles.sin())
        turn = torch.cat((torch.cat((cos, sin), -1), torch.cat((-sin, cos), -1)), -2)
        return (x.unsqueeze(-2) @ turn.to(x)).squeeze(-2)

    def of_rows(x: Tensor, y: Tensor, rows: Tensor, weights: Weights) -> Tensor:
        start = y.shape[1] - x.shape[1]
        down = y @ weights["down_weight"].T
        key = turned(down[..., latent:], 0)
        queries = (x @ weights["query_weight"].T).unflatten(-1, (h, d + rope))
        outs = []
        for i in range(h):
            k, v = (down[..., :latent] @ up[i].T for up in weights["up_weight"])
            q = torch.cat((queries[:, :, i, :d], turned(queries[:, :, i, d:], start)), -1)
            outs.append((q, torch.cat((k, key), -1), v))
        q, k, v = (torch.stack(parts, 1) for parts in zip(*outs, strict=True))
        return inside(q, k, v, rows).transpose(1, 2).flatten(2) @ weights["out_weight"].T

    return LayerDefine(problem, draw_weights(_shapes(problem, latent, rope), problem), of_rows)
