"""A transformer block around any core: attention and feed-forward, each with a norm and a way past.

    pre     x <- x + attention(norm_1 x)       x <- x + ff(norm_2 x)
    post    x <- norm_1(x + attention(x))      x <- norm_2(x + ff(x))
    ff(x) = W_2 f(W_1 x + b_1) + b_2           f: relu, or gelu by the error function

``attention`` is projections with biases around ``core``, any row of level core. Post-norm is
arXiv:1706.03762, pre-norm arXiv:2002.04745. There is no dropout. ``ff`` is the inner width of the
feed-forward part as a multiple of the width. Decoding keeps what the attention keeps.

Cost: 8 n E^2 FLOPs for the projections without grouped heads, 4 ff n E^2 for the feed-forward part,
and the core's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.layers.common import NORM_EPS, Memory, around, core_attend, ends, refuse_context
from impls.layers.plain import LayerDefine, block_of_rows
from impls.layers.weights import Weights, block_shapes, draw_weights, refuse_block_options
from impls.problem import Problem
from impls.spec import Variant


class Block:
    """``attend`` of a block."""

    def __init__(self, problem: Problem, weights: Weights, core: Variant, norm: str,
                 activation: str) -> None:  # fmt: skip
        self.problem, self.weights, self.pre = problem, weights, norm == "pre"
        self.attention = around(problem, weights, core_attend(core, problem))
        # torch's layer norm on the CPU adds up the gradients of its scale and shift in the dtype
        # of the tokens: in bfloat16 4 % off at 1024 of them
        self.widens = problem.device == "cpu" and problem.item_bytes == 2 and problem.gradients
        self.activation = F.relu if activation == "relu" else F.gelu

    def __call__(self, x_bme: Tensor) -> Tensor:
        """Tokens to tokens."""
        new, _ = ends(self.problem, x_bme, None)
        return self._rest(new + self.attention(self._first(x_bme)))

    def note(self) -> str:
        """The core's own note."""
        return self.attention.note()

    def remember(self, x_bme: Tensor) -> Memory:
        """The memory of all tokens but the new ones."""
        with torch.no_grad():
            return self.attention.remember(self._first(x_bme))

    def step(self, x_bne: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The new tokens, which are the last of all."""
        with torch.no_grad():
            attended, memory = self.attention.step(self._first(x_bne), memory)
            return self._rest(x_bne + attended), memory

    def _first(self, x: Tensor) -> Tensor:
        return self._norm(x, "norm1") if self.pre else x

    def _rest(self, x: Tensor) -> Tensor:
        if self.pre:
            return x + self._feed_forward(self._norm(x, "norm2"))
        x = self._norm(x, "norm1")
        return self._norm(x + self._feed_forward(x), "norm2")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift = self.weights[f"{name}_weight"], self.weights[f"{name}_bias"]
        if self.widens:
            wide = F.layer_norm(x.float(), scale.shape, scale.float(), shift.float(), NORM_EPS)
            return wide.to(x.dtype)
        return F.layer_norm(x, scale.shape, scale, shift, NORM_EPS)

    def _feed_forward(self, x: Tensor) -> Tensor:
        w = self.weights
        inner = self.activation(F.linear(x, w["ff1_weight"], w["ff1_bias"]))
        return F.linear(inner, w["ff2_weight"], w["ff2_bias"])


def build(problem: Problem, core: Variant, norm: str, activation: str, ff: int) -> Block:
    """Legend in :mod:`impls.layers.common`."""
    refuse_block_options(norm, activation, ff)
    refuse_context(problem)
    return Block(problem, draw_weights(block_shapes(problem, ff), problem), core, norm, activation)


def definition(problem: Problem, core: Variant, norm: str, activation: str, ff: int) -> LayerDefine:
    """Every step written out, around the core's definition."""
    weights = draw_weights(block_shapes(problem, max(ff, 1)), problem)
    return LayerDefine(problem, weights, block_of_rows(problem, core, norm, activation))
