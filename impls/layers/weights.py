"""The weights of layers and blocks, made once from a seed.

Legend in :mod:`impls.layers.common`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from impls.problem import Problem
from impls.spec import Unsupported

Weights = dict[str, Tensor]


def draw_weights(shapes: Mapping[str, tuple[int, ...]], problem: Problem, seed: int = 0) -> Weights:
    """Weights drawn from a seed, the same everywhere, rounded to the problem's dtype.

    All are uniform. Matrices lie within sqrt(6 / (rows + columns)), the rows counted over all
    their heads (Xavier's); biases within 1 / sqrt(width), so that one left out shows; scales of a
    norm within 1/4 of one.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        values = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") * 2 - 1
        if name.endswith("bias"):
            values = values / math.sqrt(problem.width)
        elif len(shape) > 1:
            values = values * math.sqrt(6 / (math.prod(shape[:-1]) + shape[-1]))
        else:
            values = 1 + values / 4
        weights[name] = values.to(problem.device, getattr(torch, problem.dtype))
    return weights


def attention_shapes(problem: Problem, *, bias: bool, key_bias: bool) -> dict[str, tuple[int, ...]]:
    """The weights of projections around a core."""
    width, keys = problem.width, problem.kv_heads * problem.head_dim
    shapes: dict[str, tuple[int, ...]] = {"in_weight": (width + 2 * keys, width)}
    if bias:
        shapes["q_bias"] = (width,)
        if key_bias:
            shapes["k_bias"] = (keys,)
        shapes |= {"v_bias": (keys,), "out_bias": (width,)}
    return {**shapes, "out_weight": (width, width)}


def block_shapes(problem: Problem, ff: int) -> dict[str, tuple[int, ...]]:
    """The weights of a block: attention, two norms, a feed-forward part ``ff`` times as wide."""
    width, inner = problem.width, ff * problem.width
    return {
        **attention_shapes(problem, bias=True, key_bias=True),
        "norm1_weight": (width,), "norm1_bias": (width,), "ff1_weight": (inner, width),
        "ff1_bias": (inner,), "ff2_weight": (width, inner), "ff2_bias": (width,),
        "norm2_weight": (width,), "norm2_bias": (width,),
    }  # fmt: skip


def refuse_block_options(norm: str, activation: str, ff: int) -> None:
    """Raise Unsupported for what a block's options may not be."""
    for name, value, valid in (("norm", norm, ("pre", "post")),
                               ("activation", activation, ("relu", "gelu"))):  # fmt: skip
        if value not in valid:
            raise Unsupported(f"{name}={value!r} is not one of {', '.join(valid)}")
    if ff < 1:
        raise Unsupported(f"ff={ff} must be 1 or more: the inner width as a multiple of the outer")
