"""The attention map that a variant makes: with V the identity, its output is its weights.

A variant that wants values as wide as its keys gets the identity a few columns at a time.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from attnbench.measure.team.made import attend_of
from impls.problem import Problem
from impls.spec import Variant


def attention_map(
    variant: Variant, problem: Problem, vectors: list[list[float]]
) -> list[list[Any]]:
    """Weights [words, words] of self-attention over word vectors, without projections."""
    x = torch.tensor(vectors, dtype=getattr(torch, problem.dtype))
    x_bhnd = x[None, None].to(problem.device)
    words, width = x.shape
    attend = attend_of(variant, problem)
    columns = []
    with torch.no_grad():
        for start in range(0, words, width):
            v = torch.zeros(1, 1, words, width, dtype=x.dtype, device=problem.device)
            stop = min(start + width, words)
            v[0, 0, start:stop, : stop - start] = torch.eye(stop - start, dtype=x.dtype)
            columns.append(attend(x_bhnd, x_bhnd, v)[0, 0, :, : stop - start])
    weights = torch.cat(columns, 1).double()
    return [[w if isfinite(w) else None for w in row] for row in weights.tolist()]
