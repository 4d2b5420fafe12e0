"""How the gradients of eight heads and of one head differ, the projections being the same.

The upstream gradient is the same for both. Of eight heads, the gradient of the columns that make
one head is held against that of a layer made of these columns alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.one_head import HEADS, SAID, WIDTH, drawn, heads_of
from attnbench.features.claims.measured.spread import middle

DRAWS = 21
WEIGHTS = ("q", "k", "v")
OF_A_HEAD = WIDTH // HEADS


def measure(asked: ClaimRequest) -> ClaimFindings:
    """Of each projection's weights: how far the gradients are apart."""
    figures: dict[str, ClaimFigure] = {}
    rows: list[list[str | float | None]] = []
    for kind in ("begun", "uniform"):
        for n, name in enumerate(WEIGHTS):
            both = [_gradients(asked.seed + i, kind)[n] for i in range(DRAWS)]
            apart = middle([_apart(many, one) for one, many in both])
            sizes = [
                middle([float(g.norm()) for g in some]).value for some in zip(*both, strict=True)
            ]
            figures[f"{kind} {name}"] = apart
            figures[f"{kind} {name} size"] = ClaimFigure(max(sizes, key=lambda x: x or 0.0))
            rows.append([SAID[kind], name, *sizes, apart.value])
    figures["own head"] = middle([_own(asked.seed + i) for i in range(DRAWS)])
    columns = ["weights", "gradient of", "size, one head", "size, 8 heads", "apart, relative"]
    return ClaimFindings(
        figures, (), [ClaimTable(f"medians of {DRAWS} draws, float64", columns, rows)]
    )


def _gradients(seed: int, kind: str, heads: tuple[int, ...] = (1, HEADS)) -> list[list[Tensor]]:
    """By weight: its gradient with each number of heads."""
    x, weights, chance = drawn(seed, kind)
    towards = torch.randn(*x.shape[:2], WIDTH, generator=chance, dtype=torch.float64)
    found = []
    for many in heads:
        leaves = [w.double().requires_grad_() for w in weights]
        out, _ = heads_of(x.double(), leaves, many)
        found.append(torch.autograd.grad((out * towards).sum(), leaves))
    return [list(some) for some in zip(*found, strict=True)]


def _own(seed: int) -> float:
    """The worst head: its columns' gradients among eight against those of its columns alone."""
    x, weights, chance = drawn(seed, "begun")
    x = x.double()
    towards = torch.randn(*x.shape[:2], WIDTH, generator=chance, dtype=torch.float64)
    among = [g for (g,) in _gradients(seed, "begun", (HEADS,))]
    worst = 0.0
    for start in range(0, WIDTH, OF_A_HEAD):
        columns = slice(start, start + OF_A_HEAD)
        leaves = [w[:, columns].double().requires_grad_() for w in weights]
        out, _ = heads_of(x, leaves, 1)
        alone = torch.autograd.grad((out * towards[..., columns]).sum(), leaves)
        pairs = zip(among, alone, strict=True)
        worst = max(worst, *(_apart(a[:, columns], b) for a, b in pairs))
    return worst


def _apart(a: Tensor, b: Tensor) -> float:
    """The norm of the difference over that of the second; of two that are nought, nought."""
    norm = float(b.norm())
    return float((a - b).norm()) / norm if norm else float(a.norm())
