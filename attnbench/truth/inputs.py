"""The inputs of a problem: made from a seed, or read from a file.

Made on the CPU in float32 and then cast and moved, so that every device sees the same values.

    normal      independent, standard
    peaky       logits in the hundreds: the softmax is saturated, nearly every row picks one key
    outliers    a few channels of the keys and values twenty times the rest, as in trained models
    equal_keys  keys equal in runs of 64, as in repeated tokens; queries and values differ
    captured:FILE.npz   arrays q, k, v of the problem's shape
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


def make(problem: Problem, seed: int) -> Inputs:
    """The inputs of this problem; the same seed gives the same values everywhere."""
    if problem.inputs.startswith("captured:"):
        return _captured(problem)
    generator = torch.Generator().manual_seed(seed)
    b, h, c = problem.batch, problem.heads, problem.kv_heads

    def normal(heads: int, length: int, width: int) -> Tensor:
        shape = (b, heads, length, width)
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

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


def cast(x: Tensor, problem: Problem) -> Tensor:
    """In the problem's dtype, on its device, contiguous."""
    return x.to(problem.device, getattr(torch, problem.dtype)).contiguous()


def _loud(width: int, generator: torch.Generator) -> Tensor:
    """Which channels are loud: one in thirty-two, at least one."""
    return torch.randperm(width, generator=generator)[: max(1, width // 32)]


def _captured(problem: Problem) -> Inputs:
    import numpy as np

    with np.load(captured_file(problem.inputs)) as arrays:
        return Inputs(*(cast(torch.from_numpy(arrays[name]), problem) for name in "qkv"))


def captured_file(inputs: str) -> Path:
    """The file that ``captured:FILE.npz`` names."""
    return Path(inputs.removeprefix("captured:"))
