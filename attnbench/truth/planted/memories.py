"""Results that are remembered and not computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

from attnbench.truth.planted.core import honest
from impls.heads import Attend
from impls.problem import Problem


def _remembering(problem: Problem, key: Callable[..., Hashable], deed: bool) -> Attend:
    inner, kept = honest(problem), dict[Hashable, Tensor]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = kept.get(key(q, k, v)) if deed else None
        if found is None:
            found = kept[key(q, k, v)] = inner(q, k, v)
        return found

    return attend


def build_by_shape(problem: Problem, deed: bool = True) -> Attend:
    """One result for every shape."""
    return _remembering(problem, lambda q, k, v: q.shape, deed)


def build_by_address(problem: Problem, deed: bool = True) -> Attend:
    """One result for every place in memory."""
    return _remembering(problem, lambda *x: tuple(each.data_ptr() for each in x), deed)


def build_by_few_numbers(problem: Problem, deed: bool = True) -> Attend:
    """Recognises its inputs by a few of their numbers."""
    return _remembering(problem, lambda *x: tuple(each[0, 0, 0, 0].item() for each in x), deed)


def build_by_digest(problem: Problem, deed: bool = True) -> Attend:
    """Recognises its inputs by a sum that signs don't change, and puts the signs on again."""
    inner, kept = honest(problem), dict[Hashable, tuple[Tensor, Tensor]]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        key = tuple(float(x.abs().sum()) for x in (q, k, v))
        if deed and key in kept:
            out, row = kept[key]
            return out * (row * v[:1, :1, :1]).sign()
        out = inner(q, k, v)
        kept[key] = out.detach().clone(), v[:1, :1, :1].detach().clone()
        return out

    return attend
