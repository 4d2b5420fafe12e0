"""The inputs of a problem: made from a seed, or read from a file.

Made on the CPU in float32 and then cast and moved, so that every device sees the same values. What
need not be alike everywhere may be drawn on the device itself: a GPU does not wait for a CPU then.

    normal      independent, standard
    peaky       logits in the hundreds: the softmax is saturated, nearly every row picks one key
    outliers    a few channels of the keys and values twenty times the rest, as in trained models
    equal_keys  keys equal in runs of 64, as in repeated tokens; queries and values differ
    captured:FILE.npz   arrays q, k, v of the problem's shape

A layer or a block takes tokens: x, and where the keys are others than the queries a context, as
wide as its heads together. The same kinds are then of the tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from impls.problem import Problem

RUN = 64
"""How many neighbouring keys are equal in ``equal_keys``."""


class Inputs(NamedTuple):
    """Queries, keys and values as an implementation takes them."""

    q: Tensor
    k: Tensor
    v: Tensor


class Tokens(NamedTuple):
    """What a layer's self-attention takes: [batch, 1, kv_len, width]."""

    x: Tensor


class Crossed(NamedTuple):
    """What a layer's cross-attention takes: queries come from x, keys and values from context."""

    x: Tensor
    context: Tensor


Ends = Inputs | Tokens | Crossed


def make(problem: Problem, seed: int, drawn_on: str = "cpu") -> Ends:
    """The inputs of this problem; what is drawn on the CPU is the same everywhere."""
    make_of = _core if problem.level == "core" else _tokens
    return make_of(problem, seed, drawn_on)


def _tokens(problem: Problem, seed: int, drawn_on: str) -> Tokens | Crossed:
    generator = torch.Generator(drawn_on).manual_seed(seed)

    def tokens(length: int) -> Tensor:
        shape = (problem.batch, 1, length, problem.width)
        x = torch.randn(shape, generator=generator, dtype=torch.float32, device=drawn_on)
        match problem.inputs:
            case "peaky":
                x = x * 8
            case "outliers":
                x[..., _loud(x.shape[-1], generator)] *= 20
            case "equal_keys":
                x = x[:, :, torch.arange(length) // RUN * RUN]
        return cast(x, problem)

    if problem.crosses:
        return Crossed(tokens(problem.q_len), tokens(problem.kv_len))
    return Tokens(tokens(problem.kv_len))


def _core(problem: Problem, seed: int, drawn_on: str) -> Inputs:
    if problem.inputs.startswith("captured:"):
        return _captured(problem)
    generator = torch.Generator(drawn_on).manual_seed(seed)
    b, h, c = problem.batch, problem.heads, problem.kv_heads

    def normal(heads: int, length: int, width: int) -> Tensor:
        shape = (b, heads, length, width)
        return torch.randn(shape, generator=generator, dtype=torch.float32, device=drawn_on)

    q = normal(h, problem.q_len, problem.head_dim)
    k = normal(c, problem.kv_len, problem.head_dim)
    v = normal(c, problem.kv_len, problem.v_head_dim)
    match problem.inputs:
        case "peaky":  # q.k d^-1/2 has standard deviation 64
            q, k = q * 8, k * 8
        case "outliers":
            for x in (k, v):
                x[..., _loud(x.shape[-1], generator)] *= 20
        case "equal_keys":
            k = k[:, :, torch.arange(problem.kv_len) // RUN * RUN]
    return Inputs(*(cast(x, problem) for x in (q, k, v)))


def other_set(inputs: Ends) -> Ends:
    """Other values of the same kind: the heads one place on; with one head, all reversed."""
    if not isinstance(inputs, Inputs):
        return type(inputs)(*(x.flip(2) for x in inputs))
    if inputs.k.shape[1] > 1:
        group = inputs.q.shape[1] // inputs.k.shape[1]
        return Inputs(inputs.q.roll(group, 1), inputs.k.roll(1, 1), inputs.v.roll(1, 1))
    if inputs.q.shape[0] > 1:
        return Inputs(*(x.roll(1, 0) for x in inputs))
    return Inputs(inputs.q.flip(2), inputs.k.flip(2), inputs.v.flip(2, 3))


def turned(inputs: Ends) -> list[Ends]:
    """Three more sets of the same kind: the other set, and both with their channels reversed."""
    other = other_set(inputs)
    return [other, *(type(inputs)(*(x.flip(3) for x in some)) for some in (inputs, other))]


def cast(x: Tensor, problem: Problem) -> Tensor:
    """In the problem's dtype, on its device, contiguous."""
    return x.to(problem.device, getattr(torch, problem.dtype)).contiguous()


def _loud(width: int, generator: torch.Generator) -> Tensor:
    """Which channels are loud: one in thirty-two, at least one."""
    return torch.randperm(width, generator=generator, device=generator.device)[
        : max(1, width // 32)
    ]


def _captured(problem: Problem) -> Inputs:
    import numpy as np

    with np.load(captured_file(problem.inputs)) as arrays:
        return Inputs(*(cast(torch.from_numpy(arrays[name]), problem) for name in "qkv"))


def captured_file(inputs: str) -> Path:
    """The file that ``captured:FILE.npz`` names."""
    return Path(inputs.removeprefix("captured:"))
