"""Multi-head attention: projections around any core (Vaswani and others, arXiv:1706.03762).

    q, k, v = x W_q^T + b_q,  y W_k^T + b_k,  y W_v^T + b_v        y: x itself, or a context
    out     = [ core(q_1, k_1, v_1), …, core(q_h, k_h, v_h) ] W_o^T + b_o

In self-attention the three matrices are one product. ``core`` is any row of level core; it decides
what is computed and which masks hold. A softmax does not change when all scores of a row move
together, and q . (k_m + b_k) moves them by q . b_k: so the keys' bias changes nothing there and
gets no gradient. torch's layer has one, hence the default; ``key_bias=false`` leaves it out.
Decoding keeps keys and values, or what the core remembers.

Cost: 2 E FLOPs a token and output number of each projection, 8 n E^2 in self-attention without
grouped heads, and the core's own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from impls.layers.attention import MultiHeadAttention
from impls.layers.common import Heads, Layer, core_attend
from impls.layers.plain import LayerDefine, attention_of_rows
from impls.layers.weights import Weights, attention_shapes, draw_weights
from impls.problem import Problem
from impls.spec import Variant


def build(problem: Problem, core: Variant, key_bias: bool, bias: bool) -> Layer:
    """Legend in :mod:`impls.layers.common`."""
    with torch.device("meta"):  # its first weights are not drawn
        module = MultiHeadAttention(
            problem.width, problem.heads, problem.kv_heads, bias=bias, key_bias=key_bias
        )
    weights = draw_weights(attention_shapes(problem, bias=bias, key_bias=key_bias), problem)
    for name, values in weights.items():
        setattr(module, name, nn.Parameter(values))

    def project(x_bne: Tensor, y_bme: Tensor | None) -> Heads:
        return module.project(x_bne, y_bme, y_bme)

    own: Weights = dict(module.named_parameters())
    return Layer(problem, own, project, core_attend(core, problem), module.join)


def definition(problem: Problem, core: Variant, key_bias: bool, bias: bool) -> LayerDefine:
    """Three projections one after the other, the core's definition, and a fourth."""
    weights = draw_weights(attention_shapes(problem, bias=bias, key_bias=key_bias), problem)
    return LayerDefine(problem, weights, attention_of_rows(problem, core))
