"""Eight heads of 64 and one head of 512, the projections being the same: equal? why? do they learn?

Weights are drawn uniform in [0, 1) as the question has them, Gaussian, and Gaussian as networks
begin. The softmax is looked at too: its entropy, and which key each head picks. The gradients of
eight heads are held against those of one, and each head's against a layer of its columns alone.
Legend: b batch, h heads, n queries, d width of a head, E width.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from attnbench.features.claims.biases import apart, entropy
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, medians

BATCH, TOKENS, WIDTH, HEADS = 2, 10, 512, 8
DRAWS = {"uniform": 400, "gaussian": 50, "begun": 50}
GRADIENT_DRAWS = 21
KINDS = {"uniform": "uniform in [0, 1)", "gaussian": "N(0, 1)", "begun": f"N(0, 1/{WIDTH})"}
NORMAL = 1.96


def draw(seed: int, kind: str) -> tuple[Tensor, list[Tensor], torch.Generator]:
    """Tokens, and the weights of queries, keys and values."""
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


def measure_equality(request: ClaimRequest) -> ClaimFindings:
    """How often the two are equal to the last bit, and why: does every head pick one key?"""
    figures: dict[str, ClaimFigure] = {}
    rows = list[Any]()
    for kind, count in DRAWS.items():
        draws = []
        for n in range(count):
            x, weights, _ = draw(request.seed + n, kind)
            one, p_one = attend(x, weights, 1)
            many, p_many = attend(x, weights, HEADS)
            all_weight = bool((p_one.amax(-1) == 1).all() and (p_many.amax(-1) == 1).all())
            one_key = all_weight and bool((p_many.argmax(-1) == p_one.argmax(-1)).all())
            found = {"equal": float((one == many).all()), "one key": float(one_key)}
            found |= {"apart": apart(many, one), "entropy": entropy(p_one)}
            draws.append({**found, "entropy of heads": entropy(p_many)})
        equal = [d["one key"] for d in draws if d["equal"]]
        middles = medians(draws)
        figures[f"{kind} equal"] = _share(equal, draws)
        figures[f"{kind} entropy"] = middles["entropy"]
        names = ("apart", "entropy", "entropy of heads")
        cells = [len(equal), int(sum(d["one key"] for d in draws))]
        rows.append([KINDS[kind], count, *cells, *(middles[name].value for name in names)])
        if kind == "uniform":
            others = [d["one key"] for d in draws if not d["equal"]]
            figures["share"] = wilson(len(equal), count)
            figures["same key"] = _share([x for x in equal if x], equal)
            figures["another key"] = _share([x for x in others if not x], others)
    columns = ["weights", "draws", "equal", "one key", "apart, relative"]
    columns += ["entropy, one head", "entropy, 8 heads"]
    return ClaimFindings.of(figures, "how many are equal", columns, rows)


def _share(some: Sequence[object], of: Sequence[object]) -> ClaimFigure:
    return ClaimFigure(len(some) / len(of)) if of else ClaimFigure(None, why="no such draw")


def wilson(count: int, of: int) -> ClaimFigure:
    """A share of some draws, with Wilson's 95 % interval."""
    p, z = count / of, NORMAL**2 / of
    centre = (p + z / 2) / (1 + z)
    half = NORMAL * sqrt(p * (1 - p) / of + z / (4 * of)) / (1 + z)
    return ClaimFigure(p, max(0.0, centre - half), min(1.0, centre + half))


def measure_gradients(request: ClaimRequest) -> ClaimFindings:
    """How far the gradients are apart; and, of the worst head, from those of its columns alone."""
    figures: dict[str, ClaimFigure] = {}
    rows = list[Any]()
    seeds = range(request.seed, request.seed + GRADIENT_DRAWS)
    own = []
    for kind in ("begun", "uniform"):
        draws = []
        for seed in seeds:
            one, many = _gradients(seed, kind, 1), _gradients(seed, kind, HEADS)
            found: dict[str, float] = {}
            for name, a, b in zip("qkv", one, many, strict=True):
                found |= {name: apart(b, a), f"{name} 1": float(a.norm())}
                found[f"{name} 8"] = float(b.norm())
            draws.append(found)
            if kind == "begun":
                worst = 0.0
                for part in torch.arange(WIDTH).chunk(HEADS):
                    alone = _gradients(seed, kind, 1, part)
                    both = zip(many, alone, strict=True)
                    worst = max(worst, *(apart(a[:, part], b) for a, b in both))
                own.append({"own head": worst})
        middles = medians(draws)
        for name in "qkv":
            sizes = [middles[f"{name} {heads}"].value or 0.0 for heads in (1, 8)]
            figures[f"{kind} {name}"] = middles[name]
            figures[f"{kind} {name} size"] = ClaimFigure(max(sizes))
            rows.append([KINDS[kind], name, *sizes, middles[name].value])
    columns = ["weights", "gradient of", "size, one head", "size, 8 heads", "apart, relative"]
    title = f"medians of {GRADIENT_DRAWS} draws, float64"
    return ClaimFindings.of(figures | medians(own), title, columns, rows)


def _gradients(seed: int, kind: str, heads: int, columns: Tensor | None = None) -> list[Tensor]:
    """The gradient of each weight, or of a layer that has some of its columns alone."""
    x, weights, chance = draw(seed, kind)
    towards = torch.randn(*x.shape[:2], WIDTH, generator=chance, dtype=torch.float64)
    if columns is not None:
        weights, towards = [w[:, columns] for w in weights], towards[..., columns]
    leaves = [w.double().requires_grad_() for w in weights]
    out, _ = attend(x.double(), leaves, heads)
    return list(torch.autograd.grad((out * towards).sum(), leaves))
