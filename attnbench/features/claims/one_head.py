"""Eight heads of 64 and one head of 512, the projections being the same: are they equal?

Weights are drawn uniform in [0, 1) as the question has them, Gaussian, and Gaussian as networks
begin. With uniform weights the softmax is saturated, so that the two may agree by luck.
Legend: b batch, h heads, n queries, d width of a head, E width.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable

BATCH, TOKENS, WIDTH, HEADS = 2, 10, 512, 8
DRAWS = {"uniform": 400, "gaussian": 50, "begun": 50}


def draw(seed: int, kind: str) -> tuple[Tensor, list[Tensor]]:
    """Tokens, and the weights of queries, keys and values."""
    chance = torch.Generator().manual_seed(seed)
    random = torch.rand if kind == "uniform" else torch.randn
    scale = sqrt(WIDTH) if kind == "begun" else 1.0
    weights = [random(WIDTH, WIDTH, generator=chance) / scale for _ in range(3)]
    return torch.rand(BATCH, TOKENS, WIDTH, generator=chance), weights


def attend(x_bnE: Tensor, weights: list[Tensor], heads: int) -> Tensor:
    """The tensor before an output projection."""
    b, n, _ = x_bnE.shape
    q_bhnd, k_bhnd, v_bhnd = ((x_bnE @ w).view(b, n, heads, -1).transpose(1, 2) for w in weights)
    scores_bhnn = q_bhnd @ k_bhnd.mT / sqrt(q_bhnd.shape[-1])
    return (scores_bhnn.softmax(-1) @ v_bhnd).transpose(1, 2).reshape(b, n, -1)


def measure_equality(request: ClaimRequest) -> ClaimFindings:
    """The share of draws in which the two are equal to the last bit."""
    shares = {}
    for kind, count in DRAWS.items():
        draws = (draw(request.seed + n, kind) for n in range(count))
        equal = [bool((attend(*each, 1) == attend(*each, HEADS)).all()) for each in draws]
        shares[f"{kind} equal"] = sum(equal) / count
    figures = {name: ClaimFigure(share) for name, share in shares.items()}
    table = ClaimTable("shares of draws", ["figure", "share"], [*shares.items()])
    return ClaimFindings(figures, (), [table])
