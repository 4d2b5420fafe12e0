"""The tensors of a call in memory that the worker and all its ranks see.

One anonymous file holds them, end to end; it has no name in any folder, so it is gone when the last
process that maps it is.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from impls.problem import Problem

ALIGNED = 64
"""Bytes: where a tensor may begin."""


def _shapes(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    b, h, c = problem.batch, problem.heads, problem.kv_heads
    q = (b, h, problem.q_len, problem.head_dim)
    k = (b, c, problem.kv_len, problem.head_dim)
    v = (b, c, problem.kv_len, problem.v_head_dim)
    out = problem.output_shape
    shapes = {"q": q, "k": k, "v": v, "out": out}
    return {**shapes, "dout": out, "dq": q, "dk": k, "dv": v} if problem.gradients else shapes


class Pages:
    """Inputs and results of one problem by name, wherever they are mapped."""

    def __init__(self, problem: Problem, file: int | None = None) -> None:
        """``file``: the descriptor of pages that somebody has made; without it, new ones."""
        dtype, shapes = getattr(torch, problem.dtype), _shapes(problem)
        at, offsets = 0, {}
        for name, shape in shapes.items():
            offsets[name] = at
            size = math.prod(shape) * problem.item_bytes
            at += -(-size // ALIGNED) * ALIGNED
        self.file = os.memfd_create("attnbench-pages") if file is None else file
        if file is None:
            os.ftruncate(self.file, at)
        memory = mmap.mmap(self.file, at)
        self._tensors = {
            name: torch.frombuffer(
                memory, dtype=dtype, count=math.prod(shape), offset=offsets[name]
            ).view(shape)
            for name, shape in shapes.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def close_file(self) -> None:
        """Nobody else is to map them; what is mapped stays."""
        os.close(self.file)
