"""Outputs that are off: in a head, at a length, in a row, in precision."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.truth.planted.core import afterwards, honest
from impls.heads import Attend
from impls.problem import Problem

LONG = 64
"""The length beyond which one of them is wrong."""


def build_one_head(problem: Problem, deed: bool = True) -> Attend:
    """One head is a thousandth too large."""

    def change(out: Tensor) -> Tensor:
        factor = torch.ones(problem.heads, 1, 1)
        factor[-1] += 1e-3 * deed
        return out * factor

    return afterwards(problem, change)


def build_odd_lengths(problem: Problem, deed: bool = True) -> Attend:
    """Two per cent too large where the number of keys is odd."""
    factor = 1.02 if deed and problem.kv_len % 2 else 1.0
    return afterwards(problem, lambda out: out * factor)


def build_past_a_length(problem: Problem, deed: bool = True) -> Attend:
    """Rows past a length are two per cent too large."""

    def change(out: Tensor) -> Tensor:
        factor = torch.ones(problem.q_len, 1)
        factor[LONG:] += 0.02 * deed
        return out * factor

    return afterwards(problem, change)


def build_nan(problem: Problem, deed: bool = True) -> Attend:
    """One row of one head is not a number, where the inputs are of ordinary size."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v).clone()
        if deed and bool(q.detach().abs().max() > 1):
            out[0, 0, 5] = torch.nan
        return out

    return attend


def build_half_inside(problem: Problem, deed: bool = True) -> Attend:
    """Float32 at the ends, half precision inside."""
    inner, inside = honest(problem), torch.bfloat16 if deed else torch.float32
    return lambda q, k, v: inner(q.to(inside), k.to(inside), v.to(inside)).to(q.dtype)


def build_zeros(problem: Problem, deed: bool = True) -> Attend:
    """Nothing but zeros."""
    return afterwards(problem, lambda out: out * (0.0 if deed else 1.0))
