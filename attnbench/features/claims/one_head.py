"""Eight heads of 64 and one head of 512, the projections being the same: equal? why? do they learn?

Weights are drawn uniform in [0, 1) as the question has them, Gaussian, and Gaussian as networks
begin. Tokens are uniform. What the softmax did is looked at too: its entropy, and which key each
head picks. Of the gradients, those of eight heads are held against those of one, and the columns of
each head among eight against a layer of these columns alone. Legend: b batch, h heads, n queries,
d width of a head, E width.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from attnbench.features.claims.biases import entropy
from attnbench.features.claims.claim import (
    AT_LEAST,
    AT_MOST,
    WITHIN,
    Cells,
    Claim,
    ClaimFigure,
    ClaimFindings,
    ClaimPoint,
    ClaimRequest,
    ClaimRule,
    ClaimSource,
    ClaimTable,
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

QUESTION = ClaimSource(
    "a question on multi-head and single-head attention, with code",
    "not named",
    "question-and-answer page, read as text",
    "the question and its code",
)
_SETTING = (
    "Width 512, heads of 64 or one of 512, 2 sequences of 10 tokens, uniform in [0, 1), no output "
    "projection"
)


def _ours(
    name: str, says: str, rule: ClaimRule, limit: float, tolerance: float = 0.0
) -> ClaimPoint:
    return ClaimPoint(name, says, rule, limit, tolerance, ours=True)


ROWS = [
    Claim(
        "one-head",
        "Multi-head attention with 8 heads of 64 gives the same tensor as one head of 512, the "
        "same projections being applied.",
        QUESTION,
        f"{_SETTING}; 400 draws, 50 of Gaussian weights; equal is to the last bit, as the code "
        "asks. The source shows one draw with weights uniform in [0, 1), which came out equal; a "
        "claim about all weights is refuted by one draw.",
        (
            ClaimPoint(
                "uniform equal",
                "uniform weights: the share of draws in which they are equal",
                AT_LEAST,
                1.0,
            ),
            ClaimPoint("gaussian equal", "weights N(0, 1): the share of draws", AT_LEAST, 1.0),
            ClaimPoint("begun equal", "weights N(0, 1/512): the share of draws", AT_LEAST, 1.0),
        ),
        f"{__name__}:measure_equality",
    ),
    Claim(
        "one-head-saturated",
        "That the code prints True is luck: with uniform weights the softmax is saturated, and in "
        "about half of the draws every head picks the same key.",
        QUESTION,
        f"{_SETTING}; 400 draws, 50 of Gaussian weights. The explanation is ours, and so are the "
        "limits: the code's print is reproduced in half of the draws, give or take 0.2; the "
        "entropy is nought (as a share of that of uniform weights); they are equal where all heads "
        "give all weight to one key, and only there, but for rounding in one draw of twenty at the "
        "most. Gaussian weights saturate the softmax too, but their heads pick other keys.",
        (
            _ours("share", "uniform weights: the share of draws that are equal", WITHIN, 0.5, 0.2),
            _ours("uniform entropy", "uniform weights: entropy of the one head", AT_MOST, 0.01),
            _ours(
                "same key",
                "of the draws that are equal: those in which all pick one key",
                AT_LEAST,
                0.95,
            ),
            _ours("another key", "of the others: those in which one does not", AT_LEAST, 0.95),
            _ours(
                "gaussian equal", "weights N(0, 1): the share of draws that are equal", AT_MOST, 0.0
            ),
        ),
        f"{__name__}:measure_equality",
    ),
    Claim(
        "one-head-gradients",
        "One head and several differ in the separate optimisation of the heads.",
        QUESTION,
        f"{_SETTING}; float64, 21 draws, the same upstream gradient. The limits are ours. Weights "
        "N(0, 1/512): gradients are apart by a hundredth at the least, and those of a head's "
        "columns among eight are those of a layer of these columns alone. Uniform weights: nothing "
        "flows into queries and keys.",
        (
            *(
                _ours(
                    f"begun {letter}",
                    f"Gaussian weights: the gradients of W_{letter} are apart, relative",
                    AT_LEAST,
                    0.01,
                )
                for letter in "qkv"
            ),
            _ours(
                "own head",
                "a head's columns, among eight and alone: gradients apart, relative",
                AT_MOST,
                1e-10,
            ),
            *(
                _ours(
                    f"uniform {letter} size",
                    f"uniform weights: the size of the gradient of W_{letter}",
                    AT_MOST,
                    1e-10,
                )
                for letter in "qk"
            ),
        ),
        f"{__name__}:measure_gradients",
    ),
]


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


class Draw(NamedTuple):
    """What one draw of weights and tokens gave."""

    equal: bool
    """To the last bit."""
    one_key: bool
    """Every head, the one head among them, gives all its weight to the same key."""
    apart: float
    """The norm of the difference over that of one head's output."""
    entropy: float
    """Of the one head, as a share of that of uniform weights."""
    entropy_of_heads: float


def _compare(seed: int, kind: str) -> Draw:
    import torch

    x, weights, _ = draw(seed, kind)
    with torch.no_grad():
        one, p_one = attend(x, weights, 1)
        many, p_many = attend(x, weights, HEADS)
    all_weight = bool((p_one.amax(-1) == 1).all() and (p_many.amax(-1) == 1).all())
    one_key = all_weight and bool((p_many.argmax(-1) == p_one.argmax(-1)).all())
    apart = float((one - many).norm() / one.norm())
    return Draw(bool((one == many).all()), one_key, apart, entropy(p_one), entropy(p_many))


def measure_equality(request: ClaimRequest) -> ClaimFindings:
    """How often the two are equal, and why."""
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    draws = {
        kind: [_compare(request.seed + n, kind) for n in range(count)]
        for kind, count in DRAWS.items()
    }
    for kind, some in draws.items():
        equal, one_key = sum(d.equal for d in some), sum(d.one_key for d in some)
        apart, one_head, heads = (
            ClaimFigure.median(values) for values in list(zip(*some, strict=True))[2:]
        )
        figures[f"{kind} equal"] = ClaimFigure(equal / len(some))
        figures[f"{kind} entropy"] = one_head
        medians = [apart.value, one_head.value, heads.value]
        rows.append([KINDS[kind], len(some), equal, one_key, *medians])
    uniform = draws["uniform"]
    equal_draws = [d for d in uniform if d.equal]
    figures["share"] = wilson(len(equal_draws), len(uniform))
    figures["same key"] = _share([d.one_key for d in equal_draws])
    figures["another key"] = _share([not d.one_key for d in uniform if not d.equal])
    columns = ["weights", "draws", "equal", "one key", "apart, relative"]
    columns += ["entropy, one head", "entropy, 8 heads"]
    return ClaimFindings(figures, (), [ClaimTable("how many are equal", columns, rows)])


def _share(some: list[bool]) -> ClaimFigure:
    """The share that is true."""
    if not some:
        return ClaimFigure(None, why="there was no such draw")
    return ClaimFigure(sum(some) / len(some))


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
        one_head = [_gradients(seed, kind, 1) for seed in seeds]
        many = [_gradients(seed, kind, HEADS) for seed in seeds]
        for n, name in enumerate("qkv"):
            pairs = [(a[n], b[n]) for a, b in zip(many, one_head, strict=True)]
            figures[f"{kind} {name}"] = ClaimFigure.median([_apart(a, b) for a, b in pairs])
            sizes = [
                ClaimFigure.median([float(each[n].norm()) for each in some]).value or 0.0
                for some in (one_head, many)
            ]
            figures[f"{kind} {name} size"] = ClaimFigure(max(sizes))
            rows.append([KINDS[kind], name, *sizes, figures[f"{kind} {name}"].value])
    figures["own head"] = ClaimFigure.median([_worst_head(seed) for seed in seeds])
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
    worst = 0.0
    for start in range(0, WIDTH, OF_A_HEAD):
        columns = slice(start, start + OF_A_HEAD)
        alone = _gradients(seed, "begun", 1, columns)
        worst = max(worst, *(_apart(a[:, columns], b) for a, b in zip(among, alone, strict=True)))
    return worst


def _apart(a: Tensor, b: Tensor) -> float:
    """The norm of the difference over that of the second; of two that are zero, zero."""
    norm = float(b.norm())
    return float((a - b).norm()) / norm if norm else float(a.norm())
