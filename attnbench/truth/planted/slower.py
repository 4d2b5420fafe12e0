"""A known slow-down: attention in a hundred like slices, some of which are computed twice.

So many slices twice is so many hundredths more of the same work, whatever the machine is doing: a
wait of a fixed length would be a smaller share of a call that others hold up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impls.heads import Attend
from impls.problem import Problem

SLICES = 100


def build_slices(problem: Problem, extra: int = 0) -> Attend:
    """Attention without a mask; ``extra`` of the slices, spread evenly, are computed twice."""
    again = {i * SLICES // extra for i in range(extra)} if extra else set()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        for number, rows in enumerate(q.tensor_split(SLICES, 2)):
            for _ in range(1 + (number in again)):
                part = (rows @ k.mT * problem.scale).softmax(-1) @ v
            parts.append(part)
        return torch.cat(parts, 2)

    return attend
