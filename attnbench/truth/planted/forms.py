"""Outputs of another form than was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.truth.planted.core import afterwards, honest
from impls.heads import Attend
from impls.problem import Problem


def build_dtype(problem: Problem, deed: bool = True) -> Attend:
    """Float64 where float32 was asked for."""
    return afterwards(problem, lambda out: out.double() if deed else out)


def build_shape(problem: Problem, deed: bool = True) -> Attend:
    """Heads and rows change places."""
    return afterwards(problem, lambda out: out.transpose(1, 2) if deed else out)


def build_layout(problem: Problem, deed: bool = True) -> Attend:
    """A sparse tensor."""
    return afterwards(problem, lambda out: out.to_sparse() if deed else out)


class Lazy(Tensor):
    """A tensor that is computed when somebody looks."""

    _work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            done = [x._work() if isinstance(x, Lazy) and hasattr(x, "_work") else x for x in args]
            return func(*done, **(kwargs or {}))


def build_lazy(problem: Problem, deed: bool = True) -> Attend:
    """A promise in place of a tensor."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not deed:
            return inner(q, k, v)
        promise = torch.empty(problem.output_shape).as_subclass(Lazy)
        promise._work = lambda: inner(q, k, v)
        return promise

    return attend
