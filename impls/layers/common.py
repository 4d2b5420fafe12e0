"""Shared by the layers: projections, the core inside, and the tokens' way through it.

    q = x W_q^T + b_q,  k = y W_k^T + b_k,  v = y W_v^T + b_v,  out = heads W_o^T + b_o

y is x in self-attention, the context in cross-attention. The three matrices are the rows of one,
``in_weight``, so that self-attention is one product. Legend: b batch, n queries, m keys, h query
heads, c key/value heads, d head_dim, E width = h d, w the width of a weight's output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import Attend
from impls.layers.weights import Weights
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Unsupported, Variant

NORM_EPS = 1e-5
Heads = tuple[Tensor, Tensor, Tensor]


def in_bias(weights: Mapping[str, Tensor | None]) -> Tensor | None:
    """The biases of queries, keys and values end to end; zeros where keys have none."""
    q_bias, k_bias, v_bias = (weights.get(f"{name}_bias") for name in "qkv")
    if q_bias is None or v_bias is None:
        return None
    return torch.cat((q_bias, torch.zeros_like(v_bias) if k_bias is None else k_bias, v_bias))


def by_heads(x_bnw: Tensor, head_dim: int) -> Tensor:
    """[b, n, h d] as [b, h, n, d], no copy."""
    return x_bnw.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def side_by_side(x_bhnd: Tensor) -> Tensor:
    """[b, h, n, d] as [b, n, h d]."""
    return x_bhnd.transpose(1, 2).flatten(2)


def projected(x_bne: Tensor, y_bme: Tensor | None, weight_we: Tensor, bias_w: Tensor | None,
              head_dim: int) -> Heads:  # fmt: skip
    """Queries of x, keys and values of y, or of x too: then in one product."""
    width = x_bne.shape[-1]
    keys = (weight_we.shape[0] - width) // 2
    if y_bme is None:
        q, k, v = F.linear(x_bne, weight_we, bias_w).split((width, keys, keys), -1)
    else:
        own, of_keys = weight_we.split((width, 2 * keys))
        b, of_biases = (None, None) if bias_w is None else bias_w.split((width, 2 * keys))
        q = F.linear(x_bne, own, b)
        k, v = F.linear(y_bme, of_keys, of_biases).split(keys, -1)
    return by_heads(q, head_dim), by_heads(k, head_dim), by_heads(v, head_dim)


def core_attend(core: Variant, problem: Problem) -> Attend:
    """The core's ``attend``, on heads."""
    attend: Attend = load_function(core.build)(problem.with_(level="core"), **core.chosen)
    return attend


def ends(problem: Problem, x_bme: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The tokens of queries and of keys, where they differ: a decoder's new tokens are last."""
    if context is None and problem.phase == "decode":
        return x_bme[:, problem.kv_len - problem.q_len :], x_bme
    return x_bme, context


def refuse_more_queries(problem: Problem) -> None:
    """Raise Unsupported where a decoder's queries are not tokens among the others."""
    if problem.phase == "decode" and problem.q_len > problem.kv_len:
        raise Unsupported(
            f"decoding needs every query to be a token, but q_len={problem.q_len} is above "
            f"kv_len={problem.kv_len}"
        )


def refuse_context(problem: Problem) -> None:
    """Raise Unsupported for a context, in a layer that has no cross-attention."""
    if problem.crosses:
        raise Unsupported(
            f"it is self-attention alone: q_len={problem.q_len} must equal "
            f"kv_len={problem.kv_len} but for decoding"
        )


class Memory(NamedTuple):
    """A decoder's memory: the first ``tokens`` places of a cache, or the core's own memory.

    A step writes past the places that count, so what counts stays as it is.
    """

    state: Any
    tokens: int


class Layer:
    """``attend`` of a layer: ``project`` makes heads of tokens, ``mix`` is the core, ``join`` ends.

    Where the core has no memory of its own, decoding keeps keys and values, with room for all
    ``kv_len`` tokens.
    """

    def __init__(
        self, problem: Problem, weights: Weights, project: Callable[..., Heads], mix: Attend,
        join: Callable[[Tensor], Tensor],
    ) -> None:  # fmt: skip
        refuse_more_queries(problem)
        self.problem, self.weights = problem, weights
        self.project, self.mix, self.join = project, mix, join
        for weight in weights.values():
            weight.requires_grad_()

    def __call__(self, x_bne: Tensor, context_bme: Tensor | None = None) -> Tensor:
        """Tokens to tokens."""
        return self.join(self.mix(*self.project(*ends(self.problem, x_bne, context_bme))))

    def note(self) -> str:
        """The core's own note."""
        note = getattr(self.mix, "note", None)
        return str(note()) if callable(note) else ""

    @torch.no_grad()
    def remember(self, x_bme: Tensor) -> Memory:
        """The memory of all tokens but the new ones."""
        _, k, v = self.project(x_bme[:, :0], x_bme)
        if hasattr(self.mix, "remember"):
            return Memory(self.mix.remember(k, v), k.shape[2])
        room = [x.new_empty(*x.shape[:2], self.problem.kv_len, x.shape[3]) for x in (k, v)]
        for cache, values in zip(room, (k, v), strict=True):
            cache[:, :, : values.shape[2]] = values
        return Memory(room, k.shape[2])

    @torch.no_grad()
    def step(self, x_bne: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The new tokens, which are the last of all."""
        state, before = memory
        q, k, v = self.project(x_bne, None)
        tokens = before + k.shape[2]
        if hasattr(self.mix, "step"):
            out, state = self.mix.step(q, k, v, state)
        else:
            for cache, values in zip(state, (k, v), strict=True):
                cache[:, :, before:tokens] = values
            out = self.mix(q, state[0], state[1])
        return self.join(out), Memory(state, tokens)


def around(problem: Problem, weights: Weights, mix: Attend) -> Layer:
    """Projections around a core, from :func:`attention_shapes`."""

    def project(x_bne: Tensor, y_bme: Tensor | None) -> Heads:
        return projected(x_bne, y_bme, weights["in_weight"], in_bias(weights), problem.head_dim)

    def join(out_bhnd: Tensor) -> Tensor:
        return F.linear(side_by_side(out_bhnd), weights["out_weight"], weights.get("out_bias"))

    return Layer(problem, weights, project, mix, join)
