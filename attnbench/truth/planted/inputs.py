"""Inputs that are written to, and put back before anybody looks."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.truth.planted.core import honest
from impls.heads import Attend
from impls.problem import Problem


def build_in_place(problem: Problem, deed: bool = True) -> Attend:
    """Turns the queries' signs round in place, and back."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():
            own = q if deed else q.clone()
            own.neg_()
            own.neg_()
        return inner(q, k, v)

    return attend


def build_through_data(problem: Problem, deed: bool = True) -> Attend:
    """The same of the keys, by a door that counts no versions."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = k.data if deed else k.data.clone()
        own.neg_()
        own.neg_()
        return inner(q, k, v)

    return attend


def build_left_changed(problem: Problem, deed: bool = True) -> Attend:
    """Leaves its values half as large again."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v)
        (v if deed else v.clone()).data.mul_(1.5)
        return out

    return attend
