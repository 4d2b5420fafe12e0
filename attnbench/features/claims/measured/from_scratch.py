"""Is multi-head attention written from scratch, as einsums, what torch's layer computes?

Legend: b clouds, s and t points, h heads, i channels of a head, E width.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.spread import middle

CLOUDS, POINTS, WIDTH, HEADS = 8, 80, 12, 2
DRAWS = 21


def measure(asked: ClaimRequest) -> ClaimFindings:
    """The relative norm of the difference, in both dtypes."""
    figures: dict[str, ClaimFigure] = {}
    rows: list[list[str | float | None]] = []
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        draws = [_apart(asked.seed + n, dtype) for n in range(DRAWS)]
        figures[name] = middle(draws)
        rows.append([name, figures[name].value, min(draws), max(draws)])
    columns = ["dtype", "median", "least", "most"]
    return ClaimFindings(figures, (), [ClaimTable(f"relative norms, {DRAWS} draws", columns, rows)])


@torch.no_grad()
def _apart(seed: int, dtype: torch.dtype) -> float:
    torch.manual_seed(seed)  # the layer draws its own weights
    x = torch.randn(CLOUDS, POINTS, WIDTH, dtype=dtype)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, bias=False, dtype=dtype)
    of_torch = theirs(x, x, x)[0]
    q, k, v = theirs.in_proj_weight.chunk(3)
    ours = by_einsum(x, q, k, v, theirs.out_proj.weight, HEADS)
    return float((of_torch - ours).norm() / ours.norm())


def by_einsum(
    x_bsE: Tensor, q_w: Tensor, k_w: Tensor, v_w: Tensor, out_w: Tensor, heads: int
) -> Tensor:
    """Projections, powers of the scores over their sums, and the heads' own parts of the output."""
    d = x_bsE.shape[-1] // heads
    q_bshi, k_bshi, v_bshi = (
        torch.einsum("bsE,hiE->bshi", x_bsE, w.unflatten(0, (heads, d))) for w in (q_w, k_w, v_w)
    )
    powers_bhst = torch.exp(torch.einsum("bshi,bthi->bhst", q_bshi, k_bshi) / sqrt(d))
    weights_bhst = powers_bhst / torch.einsum("bhst->bhs", powers_bhst)[..., None]
    z_bshi = torch.einsum("bhst,bthi->bshi", weights_bhst, v_bshi)
    return torch.einsum("bshi,Ehi->bsE", z_bshi, out_w.unflatten(1, (heads, d)))
