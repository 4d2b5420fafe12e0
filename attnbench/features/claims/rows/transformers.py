"""Attention and a transformer block in NumPy."""

from __future__ import annotations

from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, ClaimSource

NOTEBOOK = ClaimSource(
    "Implementing Transformers",
    "not named in the text",
    "teaching notebook, read as text",
    "all cells, with outputs",
)
_CODE = "attnbench.features.claims.measured.numpy_layers"
_RULES = (
    "additive causal mask, 100 tokens of 64; torch's own weights; median of 11 draws. Written anew "
    "from the formulas. Rounding depends on the draw and on NumPy's products, so three times "
    "theirs is allowed; the limits in float64 are ours"
)


def _norm(name: str, says: str, published: float) -> tuple[ClaimPoint, ClaimPoint]:
    return (
        ClaimPoint(
            name, f"norm of the difference of {says}, float32", ClaimRule.AT_MOST, published, 2.0
        ),
        ClaimPoint(f"{name} float64", "the same in float64", ClaimRule.AT_MOST, 1e-12, ours=True),
    )


ROWS = [
    Claim(
        "numpy-attention",
        "Self-attention in NumPy with an additive causal mask is what nn.MultiheadAttention "
        "computes with one head: output and weights.",
        NOTEBOOK,
        f"One head, one sequence; {_RULES}.",
        (
            *_norm("weights", "the weights", 1.3273820113806287e-07),
            *_norm("output", "the output", 1.5681836747124059e-06),
        ),
        f"{_CODE}:measure_one",
    ),
    Claim(
        "numpy-batched",
        "The same code does batches, since NumPy's product of more than two dimensions is a "
        "batched one; a product with one matrix needs none.",
        NOTEBOOK,
        f"One head, ten sequences; {_RULES}.",
        (
            *_norm("weights", "the weights", 3.964657201289755e-07),
            *_norm("output", "the output", 4.451171760666422e-06),
            ClaimPoint(
                "stacked",
                "all samples stacked, times one matrix: the sum of the differences; "
                "theirs was -2.4e-16",
                ClaimRule.WITHIN,
                0.0,
                1e-13,
                ours=True,
            ),
        ),
        f"{_CODE}:measure_batched",
    ),
    Claim(
        "numpy-heads",
        "Multi-head attention in NumPy is what nn.MultiheadAttention computes, whose weights are "
        "averaged over the heads.",
        NOTEBOOK,
        f"Four heads, one sequence; {_RULES}.",
        (
            *_norm("output", "the output", 1.7129907183519769e-06),
            *_norm("weights", "the weights, ours averaged over heads", 1.0309395741485273e-07),
        ),
        f"{_CODE}:measure_heads",
    ),
    Claim(
        "numpy-block",
        "A whole transformer block in NumPy, without scales and shifts of its norms, is what "
        "nn.TransformerEncoderLayer computes, and only as that is begun.",
        NOTEBOOK,
        f"Four heads, inner width 128, post-norm, relu, biases of the linear layers at nought; "
        f"{_RULES}. With the scales of the second norm drawn within a quarter of one it must be "
        "off: by how much at the least is ours.",
        (
            *_norm("block", "the output", 7.5203398621773295e-06),
            ClaimPoint(
                "moved",
                "norm of the difference once a norm's scales have moved",
                ClaimRule.AT_LEAST,
                1.0,
                ours=True,
            ),
        ),
        f"{_CODE}:measure_block",
    ),
]
