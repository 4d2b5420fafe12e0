"""What planted faults are planted in: plain attention that is right, and what else they share.

Every ``build…`` of this package takes ``deed``: without it the same code does no harm, and the
ruler has to find nothing wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from impls.dense.matmul import build as honest
from impls.heads import Attend, to_query_heads
from impls.masks import Mask
from impls.problem import Problem

__all__ = ["afterwards", "beforehand", "honest", "masked", "visible"]


def visible(problem: Problem, text: str | None = None) -> Tensor:
    """What the problem's mask, or another, lets be seen."""
    mask = problem.mask if text is None else Mask.parse(text)
    return torch.from_numpy(mask.visible(problem.shape).copy())


def masked(problem: Problem, seen: Tensor) -> Attend:
    """Softmax attention over the pairs that ``seen`` allows."""
    blind = ~seen.any(-1, keepdim=True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = to_query_heads(k, problem), to_query_heads(v, problem)
        scores = (q @ k.mT * problem.scale).masked_fill(~(seen | blind), -torch.inf)
        return (scores.softmax(-1) @ v).masked_fill(blind, 0.0)

    return attend


def beforehand(problem: Problem, deed: Callable[[Tensor, Tensor, Tensor], object]) -> Attend:
    """Something done at every call, and then the right output."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        deed(q, k, v)
        return inner(q, k, v)

    return attend


def afterwards(problem: Problem, change: Callable[[Tensor], Tensor]) -> Attend:
    """The right output, and then something done to it."""
    inner = honest(problem)
    return lambda q, k, v: change(inner(q, k, v))
