"""torch's own modules: nn.MultiheadAttention, and nn.TransformerEncoderLayer for blocks.

    q, k, v = rows of W_in x + b_in      out = W_o softmax(q k^T d^-1/2 + mask) v + b_o
    a block: as :mod:`impls.layers.block` writes it, pre-norm or post-norm

A module in evaluation, with no gradient and no mask of numbers, takes one fused operator instead
of its parts: the inference fast path, ``_native_multi_head_attention`` or
``_transformer_encoder_layer_fwd``. With ``fastpath=true`` that operator runs or the problem is
refused (gradients, an odd number of heads, added numbers, cross-attention, switched off in torch).
Without, the module stands in training mode, with no dropout, which is what keeps it off that path;
nothing global is touched. ``need_weights=true`` has nn.MultiheadAttention make the matrix of
weights and average it over heads, as it does by default; false lets it call
scaled_dot_product_attention. Neither module keeps a cache, so there is no decoding, nor are there
grouped heads. A row that may see nothing is refused where the module makes NaN of it.

Cost: 8 n E^2 FLOPs for the projections, 4 n m E for the attention, in a block 4 ff n E^2 more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from impls.layers.common import NORM_EPS
from impls.layers.operators import operators
from impls.layers.plain import LayerDefine, attention_of_rows, block_of_rows
from impls.layers.weights import Weights, draw_weights, refuse_block_options
from impls.problem import Problem
from impls.score_mask import blind_rows
from impls.spec import Unsupported

MHA_FAST, BLOCK_FAST = "_native_multi_head_attention", "_transformer_encoder_layer_fwd"


def _attention_shapes(width: int) -> dict[str, tuple[int, ...]]:
    return {"in_proj_weight": (3 * width, width), "in_proj_bias": (3 * width,),
            "out_proj.weight": (width, width), "out_proj.bias": (width,)}  # fmt: skip


def _block_shapes(width: int, ff: int) -> dict[str, tuple[int, ...]]:
    shapes = {f"self_attn.{name}": shape for name, shape in _attention_shapes(width).items()}
    return {
        **shapes, "linear1.weight": (ff * width, width), "linear1.bias": (ff * width,),
        "linear2.weight": (width, ff * width), "linear2.bias": (width,), "norm1.weight": (width,),
        "norm1.bias": (width,), "norm2.weight": (width,), "norm2.bias": (width,),
    }  # fmt: skip


def _ours(theirs: Weights) -> Weights:
    """torch's weights under the names that the definitions know."""
    weights: Weights = {}
    for name, weight in theirs.items():
        short = name.removeprefix("self_attn.").replace("linear", "ff").replace("out_proj", "out")
        if short == "in_proj_bias":
            parts = zip("qkv", weight.chunk(3), strict=True)
            weights |= {f"{letter}_bias": part for letter, part in parts}
        else:
            weights[short.replace("in_proj", "in").replace(".", "_")] = weight
    return weights


def _masks(problem: Problem, fastpath: bool) -> dict[str, Any]:
    """``attn_mask``, ``key_padding_mask`` and ``is_causal``: true hides, numbers are added.

    The modules turn booleans into numbers at every call, so they get numbers at once, but on the
    fast path, which takes booleans alone.
    """
    mask, shape = problem.mask, problem.shape
    if mask.plain:
        return {}
    visible = torch.from_numpy(mask.visible(shape)).to(problem.device)
    added = mask.bias(shape)
    if mask.kinds == ("padding",):
        hidden = ~visible[:, 0, 0].expand(shape.batch, -1)
        return {"key_padding_mask": hidden if fastpath else _numbers(hidden, problem)}
    where = ~visible if fastpath else _numbers(~visible, problem)
    if added is not None:
        bias = torch.from_numpy(added).to(problem.device, getattr(torch, problem.dtype))
        where = bias.masked_fill(~visible, -torch.inf)
    one = where.shape[:2] == (1, 1)
    full = where[0, 0] if one else where.expand(shape.batch, shape.heads, -1, -1).flatten(0, 1)
    return {"attn_mask": full.contiguous(), "is_causal": mask.is_causal(shape)}


def _numbers(hidden: Tensor, problem: Problem) -> Tensor:
    dtype = getattr(torch, problem.dtype)
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _refuse(problem: Problem, fastpath: bool, makes_nan: bool) -> None:
    if makes_nan and blind_rows(problem) is not None:
        raise Unsupported(
            f"under the mask {problem.mask} some rows may see nothing, and torch's module makes "
            "NaN of them on its fast path and where it is asked for the weights"
        )
    if not fastpath:
        return
    reasons = (
        (problem.gradients, f"is for inference, not for phase {problem.phase}"),
        (problem.heads % 2, f"takes an even number of heads, not {problem.heads}"),
        (problem.q_len != problem.kv_len, "takes self-attention alone, so q_len equal to kv_len"),
        (problem.mask.bias(problem.shape) is not None, f"adds no numbers, as {problem.mask} does"),
        (not torch.backends.mha.get_fastpath_enabled(), "is switched off in torch.backends.mha"),
    )
    for wrong, why in reasons:
        if wrong:
            raise Unsupported(f"torch's fast path {why}; fastpath=false takes the other")


class _Native:
    """``attend`` of a module."""

    def __init__(self, problem: Problem, module: nn.Module, weights: Weights, fast: str,
                 call: Callable[..., Tensor]) -> None:  # fmt: skip
        module.load_state_dict(weights, assign=True)
        self.problem, self.call, self.fast = problem, call, fast
        self.weights: Weights = dict(module.named_parameters())
        for weight in self.weights.values():
            weight.requires_grad_()

    def __call__(self, *tokens: Tensor) -> Tensor:
        """Tokens to tokens."""
        return self.call(*tokens)

    def note(self) -> str:
        """Which path ran, from the operators that a call reached."""
        width, like = self.problem.width, next(iter(self.weights.values()))
        lengths = [self.problem.q_len] + [self.problem.kv_len] * self.problem.crosses
        tokens = [like.new_zeros(self.problem.batch, length, width) for length in lengths]
        with torch.set_grad_enabled(self.problem.gradients):
            ran = operators(lambda: self(*tokens))
        return f"the fast path ran ({self.fast})" if self.fast in ran else "no fast path ran"


def build(problem: Problem, need_weights: bool, fastpath: bool) -> _Native:
    """nn.MultiheadAttention."""
    _refuse(problem, fastpath, fastpath or need_weights)
    masks = _masks(problem, fastpath)
    if need_weights:
        masks["is_causal"] = False  # a hint, which that way does not take
    module = nn.MultiheadAttention(
        problem.width, problem.heads, batch_first=True, device="meta"
    ).train(not fastpath)

    def call(x_bne: Tensor, context: Tensor | None = None) -> Tensor:
        y = x_bne if context is None else context
        out: Tensor = module(x_bne, y, y, need_weights=need_weights, **masks)[0]
        return out

    weights = draw_weights(_attention_shapes(problem.width), problem)
    return _Native(problem, module, weights, MHA_FAST, call)


def definition(problem: Problem, need_weights: bool, fastpath: bool) -> LayerDefine:
    """Projections one after the other around plain softmax."""
    of_rows = attention_of_rows(problem, None)
    weights = draw_weights(_attention_shapes(problem.width), problem)
    return LayerDefine(problem, weights, lambda x, y, rows, w: of_rows(x, y, rows, _ours(w)))


def build_block(problem: Problem, norm: str, activation: str, ff: int, fastpath: bool) -> _Native:
    """nn.TransformerEncoderLayer."""
    refuse_block_options(norm, activation, ff)
    _refuse(problem, fastpath, fastpath)
    if problem.gradients and problem.device == "cpu" and problem.item_bytes == 2:
        raise Unsupported(
            f"torch's layer norm on the CPU adds up the gradients of its scale and shift in "
            f"{problem.dtype}, so that in bfloat16 they are 4 % off at 1024 tokens; float32 works"
        )
    masks = _masks(problem, fastpath)
    names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
    arguments = {names.get(name, name): value for name, value in masks.items()}
    module = nn.TransformerEncoderLayer(
        problem.width, problem.heads, ff * problem.width, dropout=0.0, activation=activation,
        layer_norm_eps=NORM_EPS, batch_first=True, norm_first=norm == "pre", device="meta",
    ).train(not fastpath)  # fmt: skip
    weights = draw_weights(_block_shapes(problem.width, ff), problem)
    return _Native(problem, module, weights, BLOCK_FAST, lambda x_bne: module(x_bne, **arguments))


def definition_block(
    problem: Problem, norm: str, activation: str, ff: int, fastpath: bool
) -> LayerDefine:
    """Every step written out, around plain softmax."""
    of_rows = block_of_rows(problem, None, norm, activation)
    weights = draw_weights(_block_shapes(problem.width, max(ff, 1)), problem)
    return LayerDefine(problem, weights, lambda x, y, rows, w: of_rows(x, y, rows, _ours(w)))
