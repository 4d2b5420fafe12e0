"""Gradients that are wrong, behind outputs that are right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.truth.planted.core import afterwards, honest
from impls.heads import Attend
from impls.problem import Problem


class _Scaled(torch.autograd.Function):
    """The identity, with its gradient scaled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def build_scaled(problem: Problem, deed: bool = True) -> Attend:
    """The gradient of the keys is one per cent too large."""
    inner, factor = honest(problem), 1.01 if deed else 1.0
    return lambda q, k, v: inner(q, _Scaled.apply(k, factor), v)  # type: ignore[no-untyped-call]


def build_detached_keys(problem: Problem, deed: bool = True) -> Attend:
    """No gradient reaches the keys."""
    inner = honest(problem)
    return lambda q, k, v: inner(q, k.detach() if deed else k, v)


def build_detached(problem: Problem, deed: bool = True) -> Attend:
    """No gradient reaches anything."""
    return afterwards(problem, lambda out: out.detach() if deed else out)
