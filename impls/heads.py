"""Heads in groups: how query heads meet the key/value head that serves them.

Legend: b batch, c key/value heads, g query heads to each of them, h = c g query heads,
n queries, m keys, d head_dim, e v_head_dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from impls.problem import Problem

Attend = Callable[..., Tensor]
"""``attend(q, k, v) -> out``, further inputs by name; (out, lse) where a problem asks."""
Define = Callable[..., Tensor]
"""``define(q, k, v, rows) -> out`` of those rows, in whatever dtype comes."""


def wide(problem: Problem) -> torch.dtype:
    """The dtype of sums: the problem's, or float32 where that is narrower."""
    return torch.float64 if problem.dtype == "float64" else torch.float32


def widened(x: Tensor) -> Tensor:
    """In float32 at the least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def grouped(x_bhnd: Tensor, problem: Problem) -> Tensor:
    """The query heads of one key/value head laid end to end as rows: [b, c, g n, d], no copy."""
    if problem.group == 1:
        return x_bhnd
    return x_bhnd.reshape(problem.batch, problem.kv_heads, -1, x_bhnd.shape[-1])


def ungrouped(x_bcre: Tensor, problem: Problem) -> Tensor:
    """Back from :func:`grouped`: [b, h, n, e]."""
    if problem.group == 1:
        return x_bcre
    return x_bcre.reshape(problem.batch, problem.heads, -1, x_bcre.shape[-1])


def to_query_heads(x_bcmd: Tensor, problem: Problem) -> Tensor:
    """Every key/value head repeated for each query head that it serves: [b, h, m, d]."""
    return x_bcmd if problem.group == 1 else x_bcmd.repeat_interleave(problem.group, 1)


class Noted:
    """An attend, and what it says of what ran."""

    def __init__(self, attend: Attend, note: str) -> None:
        self.attend, self.text = attend, note

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """The output: [b, h, n, e]."""
        return self.attend(q_bhnd, k_bcmd, v_bcme)

    def note(self) -> str:
        """The note on how it runs."""
        return self.text
