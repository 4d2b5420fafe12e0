"""Multi-head attention written from scratch."""

from __future__ import annotations

from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, ClaimSource

NOTEBOOK = ClaimSource(
    "Multi-head Attention from Scratch",
    "Zaccharie Ramzi and Gabriel Peyré",
    "notebook, read as text; the authors' pages are zaccharieramzi.fr and gpeyre.com",
    "all cells, with outputs",
)

ROWS = [
    Claim(
        "einsum-from-scratch",
        "A multi-head self-attention written from scratch by einsums gives the same output as "
        "torch's implementation.",
        NOTEBOOK,
        "8 clouds of 80 points in 12 dimensions, 2 heads, no biases; nn.MultiheadAttention's own "
        "weights; median of 21 draws. Written anew from the formulas. Rounding depends on the draw "
        "and the processor, so twice theirs is allowed; the limit in float64 is ours.",
        (
            ClaimPoint(
                "float32",
                "norm of the difference over the output's",
                ClaimRule.AT_MOST,
                1.9810291e-07,
                1.0,
            ),
            ClaimPoint("float64", "the same in float64", ClaimRule.AT_MOST, 1e-14, ours=True),
        ),
        "attnbench.features.claims.measured.from_scratch:measure",
    ),
]
