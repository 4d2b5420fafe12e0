"""Do eight heads of 64 and one head of 512 give the same tensor, the projections being the same?

Weights are drawn uniform in [0, 1) as the question has them, Gaussian, and Gaussian as networks are
begun with. Tokens are uniform. What the softmax did is looked at beside it: its entropy, and which
key each head picks. Legend: b batch, h heads, n queries, d width of a head, E width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.key_bias import entropy
from attnbench.features.claims.measured.spread import middle, share

BATCH, TOKENS, WIDTH, HEADS = 2, 10, 512, 8
DRAWS = {"uniform": 400, "gaussian": 50, "begun": 50}
KINDS: dict[str, Callable[[torch.Generator], Tensor]] = {
    "uniform": lambda chance: torch.rand(WIDTH, WIDTH, generator=chance),
    "gaussian": lambda chance: torch.randn(WIDTH, WIDTH, generator=chance),
    "begun": lambda chance: torch.randn(WIDTH, WIDTH, generator=chance) / sqrt(WIDTH),
}
SAID = {
    "uniform": "uniform in [0, 1)",
    "gaussian": "N(0, 1)",
    "begun": f"N(0, 1/{WIDTH})",
}


@dataclass(frozen=True)
class Draw:
    """One draw of weights and tokens."""

    equal: bool
    """To the last bit."""
    apart: float
    """Norm of the difference over that of one head's output."""
    one_key: bool
    """Every head, and the one head too, gives all its weight to the same key."""
    entropy: float
    """Of the one head, as a share of that of uniform weights."""
    entropy_of_heads: float


def measure(asked: ClaimRequest) -> ClaimFindings:
    """How often they are equal, and why."""
    draws = {kind: [_draw(asked.seed + n, kind) for n in range(DRAWS[kind])] for kind in KINDS}
    figures: dict[str, ClaimFigure] = {}
    for kind, some in draws.items():
        figures[f"{kind} equal"] = ClaimFigure(sum(d.equal for d in some) / len(some))
        figures[f"{kind} entropy"] = middle([d.entropy for d in some])
    uniform = draws["uniform"]
    equal = [d for d in uniform if d.equal]
    other = [d for d in uniform if not d.equal]
    figures["share"] = share(len(equal), len(uniform))
    figures["same key"] = _all([d.one_key for d in equal])
    figures["another key"] = _all([not d.one_key for d in other])
    rows: list[list[str | float | None]] = [
        [
            SAID[kind],
            len(some),
            sum(d.equal for d in some),
            sum(d.one_key for d in some),
            *(
                middle(values).value
                for values in (
                    [d.apart for d in some],
                    [d.entropy for d in some],
                    [d.entropy_of_heads for d in some],
                )
            ),
        ]
        for kind, some in draws.items()
    ]
    columns = [
        "weights",
        "draws",
        "equal",
        "one key",
        "apart, relative",
        "entropy, one head",
        "entropy, 8 heads",
    ]
    return ClaimFindings(figures, (), [ClaimTable("how many are equal", columns, rows)])


def _all(some: list[bool]) -> ClaimFigure:
    """The share of which it is so, where there are any."""
    return (
        ClaimFigure(sum(some) / len(some))
        if some
        else ClaimFigure(None, why="there was no such draw")
    )


def heads_of(x_bnE: Tensor, weights: list[Tensor], heads: int) -> tuple[Tensor, Tensor]:
    """The tensor before an output projection, and the attention [b, h, n, n]."""
    b, n, _ = x_bnE.shape
    q_bhnd, k_bhnd, v_bhnd = ((x_bnE @ w).view(b, n, heads, -1).transpose(1, 2) for w in weights)
    scores_bhnn = q_bhnd @ k_bhnd.mT / sqrt(q_bhnd.shape[-1])
    p_bhnn = scores_bhnn.softmax(-1)
    return (p_bhnn @ v_bhnd).transpose(1, 2).reshape(b, n, -1), p_bhnn


def drawn(seed: int, kind: str) -> tuple[Tensor, list[Tensor], torch.Generator]:
    """Tokens, and the weights of queries, keys and values."""
    chance = torch.Generator().manual_seed(seed)
    weights = [KINDS[kind](chance) for _ in range(3)]
    return torch.rand(BATCH, TOKENS, WIDTH, generator=chance), weights, chance


@torch.no_grad()
def _draw(seed: int, kind: str) -> Draw:
    x, weights, _ = drawn(seed, kind)
    one, p_one = heads_of(x, weights, 1)
    many, p_many = heads_of(x, weights, HEADS)
    all_weight = bool((p_one.amax(-1) == 1).all() and (p_many.amax(-1) == 1).all())
    one_key = all_weight and bool((p_many.argmax(-1) == p_one.argmax(-1)).all())
    apart = float((one - many).norm() / one.norm())
    return Draw(bool((one == many).all()), apart, one_key, entropy(p_one), entropy(p_many))
