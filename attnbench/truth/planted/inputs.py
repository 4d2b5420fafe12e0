"""Inputs that are written to, and put back before anybody looks."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.truth.planted.core import beforehand, honest
from impls.heads import Attend
from impls.problem import Problem


def _there_and_back(values: Tensor) -> None:
    values.neg_()
    values.neg_()


def build_in_place(problem: Problem, deed: bool = True) -> Attend:
    """Turns the queries' signs round in place, and back."""

    def turn(q: Tensor, *_: Tensor) -> None:
        with torch.no_grad():
            _there_and_back(q if deed else q.clone())

    return beforehand(problem, turn)


def build_through_data(problem: Problem, deed: bool = True) -> Attend:
    """The same of the keys, by a door that counts no versions."""

    def turn(q: Tensor, k: Tensor, v: Tensor) -> None:
        _there_and_back(k.data if deed else k.data.clone())

    return beforehand(problem, turn)


def build_left_changed(problem: Problem, deed: bool = True) -> Attend:
    """Leaves its values half as large again."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v)
        (v if deed else v.clone()).data.mul_(1.5)
        return out

    return attend
