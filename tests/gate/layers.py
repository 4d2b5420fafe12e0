"""Layers and decoders put before the gate."""

import torch

from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.masks import Mask
from impls.problem import Problem

LAYER = {
    "batch": 2, "heads": 2, "kv_heads": 2, "q_len": 19, "kv_len": 19, "head_dim": 8,
    "v_head_dim": 8, "level": "layer", "mask": Mask.parse("causal"),
}  # fmt: skip


def problem_of(**changes):
    return Problem(**{**LAYER, **changes})


def weights_of(problem):
    """One key's bias, which no softmax feels, and three projections."""
    generator = torch.Generator().manual_seed(5)
    e = problem.width
    made = {name: torch.randn(e, e, generator=generator) / e**0.5 for name in ("q", "k", "v")}
    made["k_bias"] = torch.randn(e, generator=generator)
    dtype = getattr(torch, problem.dtype)
    return {n: w.to(dtype).requires_grad_() for n, w in made.items()}


def layer(problem, q_bne, source_bme, weights, rows=None):
    """Softmax attention over projected tokens, written once, plainly."""
    rows = torch.arange(problem.q_len) if rows is None else rows

    def heads(x):
        return x.unflatten(-1, (problem.heads, problem.head_dim)).transpose(1, 2)

    q = heads(q_bne @ weights["q"])
    k, v = heads(source_bme @ weights["k"] + weights["k_bias"]), heads(source_bme @ weights["v"])
    seen = torch.from_numpy(problem.mask.visible(problem.shape))[:, :, rows]
    scores = (q[:, :, rows] @ k.mT * problem.scale).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Defined:
    """The layer as a definition."""

    def __init__(self, problem):
        self.problem, self.weights = problem, weights_of(problem)

    def __call__(self, x, *rest):
        *context, rows, weights = rest
        return layer(self.problem, x, context[0] if context else x, weights, rows)


def verdict(attend, problem, define=None):
    judged = judge(problem, make(problem, 0), 0)
    return gate(judged, attend, define or Defined(problem), 0)
