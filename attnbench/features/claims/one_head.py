"""Eight heads of 64 and one head of 512, the projections being the same: equal? why? do they learn?

Weights are drawn uniform in [0, 1) as the question has them, Gaussian, and Gaussian as networks
begin. Tokens are uniform. What the softmax did is looked at too: its entropy, and which key each
head picks. Of the gradients, those of eight heads are held against those of one, and the columns of
each head among eight against a layer of these columns alone. Legend: b batch, h heads, n queries,
d width of a head, E width.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING

from attnbench.features.claims.biases import apart, entropy
from attnbench.features.claims.claim import (
    Cells,
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    ClaimTable,
    medians,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BATCH, TOKENS, WIDTH, HEADS = 2, 10, 512, 8
OF_A_HEAD = WIDTH // HEADS
DRAWS = {"uniform": 400, "gaussian": 50, "begun": 50}
GRADIENT_DRAWS = 21
KINDS = {
    "uniform": "uniform in [0, 1)",
    "gaussian": "N(0, 1)",
    "begun": f"N(0, 1/{WIDTH})",
}
NORMAL = 1.96
"""The 97.5th percentile of the normal distribution."""


def draw(seed: int, kind: str) -> tuple[Tensor, list[Tensor], torch.Generator]:
    """Tokens, and the weights of queries, keys and values."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    random = torch.rand if kind == "uniform" else torch.randn
    scale = sqrt(WIDTH) if kind == "begun" else 1.0
    weights = [random(WIDTH, WIDTH, generator=chance) / scale for _ in range(3)]
    return torch.rand(BATCH, TOKENS, WIDTH, generator=chance), weights, chance


def attend(x_bnE: Tensor, weights: list[Tensor], heads: int) -> tuple[Tensor, Tensor]:
    """The tensor before an output projection, and the attention [b, h, n, n]."""
    b, n, _ = x_bnE.shape
    q_bhnd, k_bhnd, v_bhnd = ((x_bnE @ w).view(b, n, heads, -1).transpose(1, 2) for w in weights)
    scores_bhnn = q_bhnd @ k_bhnd.mT / sqrt(q_bhnd.shape[-1])
    p_bhnn = scores_bhnn.softmax(-1)
    return (p_bhnn @ v_bhnd).transpose(1, 2).reshape(b, n, -1), p_bhnn


def _compare(seed: int, kind: str) -> dict[str, float]:
    """Of one draw: equal to the last bit? does every head, the one among them, pick one key?"""
    import torch

    x, weights, _ = draw(seed, kind)
    with torch.no_grad():
        one, p_one = attend(x, weights, 1)
        many, p_many = attend(x, weights, HEADS)
    all_weight = bool((p_one.amax(-1) == 1).all() and (p_many.amax(-1) == 1).all())
    return {
        "equal": float((one == many).all()),
        "one key": float(all_weight and (p_many.argmax(-1) == p_one.argmax(-1)).all()),
        "apart": apart(many, one),
        "entropy": entropy(p_one),
        "entropy of heads": entropy(p_many),
    }


def measure_equality(request: ClaimRequest) -> ClaimFindings:
    """How often the two are equal, and why."""
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    for kind, count in DRAWS.items():
        draws = [_compare(request.seed + n, kind) for n in range(count)]
        equal = [d["one key"] for d in draws if d["equal"]]
        found = medians(draws)
        figures |= {f"{kind} equal": _share(equal, draws), f"{kind} entropy": found["entropy"]}
        middles = [found[name].value for name in ("apart", "entropy", "entropy of heads")]
        one_key = sum(d["one key"] for d in draws)
        rows.append([KINDS[kind], count, len(equal), int(one_key), *middles])
        if kind == "uniform":
            others = [d["one key"] for d in draws if not d["equal"]]
            figures["share"] = wilson(len(equal), count)
            figures["same key"] = _share([x for x in equal if x], equal)
            figures["another key"] = _share([x for x in others if not x], others)
    columns = ["weights", "draws", "equal", "one key", "apart, relative"]
    columns += ["entropy, one head", "entropy, 8 heads"]
    return ClaimFindings(figures, (), [ClaimTable("how many are equal", columns, rows)])


def _share(some: Sequence[object], of: Sequence[object]) -> ClaimFigure:
    return ClaimFigure(len(some) / len(of)) if of else ClaimFigure(None, why="no such draw")


def wilson(count: int, of: int) -> ClaimFigure:
    """A share of some draws, with Wilson's 95 % interval."""
    p, z = count / of, NORMAL**2 / of
    centre = (p + z / 2) / (1 + z)
    half = NORMAL * sqrt(p * (1 - p) / of + z / (4 * of)) / (1 + z)
    return ClaimFigure(p, max(0.0, centre - half), min(1.0, centre + half))


def measure_gradients(request: ClaimRequest) -> ClaimFindings:
    """How far the gradients of each projection's weights are apart."""
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    seeds = range(request.seed, request.seed + GRADIENT_DRAWS)
    for kind in ("begun", "uniform"):
        both = [(_gradients(seed, kind, 1), _gradients(seed, kind, HEADS)) for seed in seeds]
        for n, name in enumerate("qkv"):
            sizes = [
                ClaimFigure.median(float(pair[k][n].norm()) for pair in both).value or 0.0
                for k in (0, 1)
            ]
            figures[f"{kind} {name}"] = ClaimFigure.median(apart(b[n], a[n]) for a, b in both)
            figures[f"{kind} {name} size"] = ClaimFigure(max(sizes))
            rows.append([KINDS[kind], name, *sizes, figures[f"{kind} {name}"].value])
    figures["own head"] = ClaimFigure.median(_worst_head(seed) for seed in seeds)
    columns = ["weights", "gradient of", "size, one head", "size, 8 heads", "apart, relative"]
    title = f"medians of {GRADIENT_DRAWS} draws, float64"
    return ClaimFindings(figures, (), [ClaimTable(title, columns, rows)])


def _gradients(seed: int, kind: str, heads: int, columns: slice = slice(None)) -> list[Tensor]:
    """The gradient of each weight, or of a layer that has some of its columns alone."""
    import torch

    x, weights, chance = draw(seed, kind)
    towards = torch.randn(*x.shape[:2], WIDTH, generator=chance, dtype=torch.float64)
    leaves = [w[:, columns].double().requires_grad_() for w in weights]
    out, _ = attend(x.double(), leaves, heads)
    return list(torch.autograd.grad((out * towards[..., columns]).sum(), leaves))


def _worst_head(seed: int) -> float:
    """The worst head: its columns' gradients among eight against those of its columns alone."""
    among = _gradients(seed, "begun", HEADS)
    heads = [slice(start, start + OF_A_HEAD) for start in range(0, WIDTH, OF_A_HEAD)]
    return max(
        apart(a[:, columns], b)
        for columns in heads
        for a, b in zip(among, _gradients(seed, "begun", 1, columns), strict=True)
    )
