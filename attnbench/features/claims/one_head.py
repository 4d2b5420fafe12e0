"""Eight heads of 64 and one head of 512, the projections being the same: equal, and why?

Weights are drawn uniform in [0, 1) as the question has them, Gaussian, and Gaussian as networks
begin. The softmax is looked at too: its entropy, and which key each head picks.
Legend: b batch, h heads, n queries, d width of a head, E width.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor

from attnbench.features.claims.biases import apart
from attnbench.features.claims.claim import (
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    ClaimTable,
    medians_of,
)

BATCH, TOKENS, WIDTH, HEADS = 2, 10, 512, 8
DRAWS = {"uniform": 400, "gaussian": 50, "begun": 50}
NORMAL = 1.96


def draw(seed: int, kind: str) -> tuple[Tensor, list[Tensor]]:
    """Tokens, and the weights of queries, keys and values."""
    chance = torch.Generator().manual_seed(seed)
    random = torch.rand if kind == "uniform" else torch.randn
    scale = sqrt(WIDTH) if kind == "begun" else 1.0
    weights = [random(WIDTH, WIDTH, generator=chance) / scale for _ in range(3)]
    return torch.rand(BATCH, TOKENS, WIDTH, generator=chance), weights


def attend(x_bnE: Tensor, weights: list[Tensor], heads: int) -> tuple[Tensor, Tensor]:
    """The tensor before an output projection, and the attention [b, h, n, n]."""
    b, n, _ = x_bnE.shape
    q_bhnd, k_bhnd, v_bhnd = ((x_bnE @ w).view(b, n, heads, -1).transpose(1, 2) for w in weights)
    scores_bhnn = q_bhnd @ k_bhnd.mT / sqrt(q_bhnd.shape[-1])
    p_bhnn = scores_bhnn.softmax(-1)
    return (p_bhnn @ v_bhnd).transpose(1, 2).reshape(b, n, -1), p_bhnn


def entropy(weights: Tensor) -> float:
    """The mean entropy of the rows, as a share of that of uniform weights."""
    p = weights.double()
    each = -torch.special.xlogy(p, p).sum(-1)
    return float(each.mean() / torch.log(torch.tensor(float(p.shape[-1]))))


def measure_equality(request: ClaimRequest) -> ClaimFindings:
    """The share of draws in which the two are equal to the last bit, and which keys heads pick."""
    draws = {
        kind: [_equality(request.seed + n, kind) for n in range(count)]
        for kind, count in DRAWS.items()
    }
    findings = medians_of({f"{kind} {{}}": some for kind, some in draws.items()})
    shares = {f"{kind} equal": _share(some, "equal") for kind, some in draws.items()}
    equal = [draw for draw in draws["uniform"] if draw["equal"]]
    others = [draw for draw in draws["uniform"] if not draw["equal"]]
    shares["share"] = wilson(len(equal), len(draws["uniform"]))
    shares["same key"], shares["another key"] = _share(equal, "one key"), _share(others, "keys")
    rows = [[name, figure.value] for name, figure in shares.items()]
    tables = [ClaimTable("shares of draws", ["figure", "share"], rows), *findings.tables]
    return ClaimFindings({**findings.figures, **shares}, (), tables)


def _equality(seed: int, kind: str) -> dict[str, float]:
    """Are the two equal, and do all heads give all weight to one key, or to several?"""
    x, weights = draw(seed, kind)
    one, p_one = attend(x, weights, 1)
    many, p_many = attend(x, weights, HEADS)
    all_weight = bool((p_one.amax(-1) == 1).all() and (p_many.amax(-1) == 1).all())
    one_key = all_weight and bool((p_many.argmax(-1) == p_one.argmax(-1)).all())
    picks = {"one key": float(one_key), "keys": float(not one_key)}
    entropies = {"entropy": entropy(p_one), "entropy of heads": entropy(p_many)}
    return {"equal": float((one == many).all()), "apart": apart(many, one), **picks, **entropies}


def _share(draws: Sequence[dict[str, float]], name: str) -> ClaimFigure:
    if not draws:
        return ClaimFigure(None, why="no such draw")
    return ClaimFigure(sum(draw[name] for draw in draws) / len(draws))


def wilson(count: int, of: int) -> ClaimFigure:
    """A share of some draws, with Wilson's 95 % interval."""
    p, z = count / of, NORMAL**2 / of
    centre = (p + z / 2) / (1 + z)
    half = NORMAL * sqrt(p * (1 - p) / of + z / (4 * of)) / (1 + z)
    return ClaimFigure(p, max(0.0, centre - half), min(1.0, centre + half))
