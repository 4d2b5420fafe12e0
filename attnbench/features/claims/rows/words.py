"""Self-attention of word vectors, without projections."""

from __future__ import annotations

from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, ClaimSource, Needs

NOTEBOOK = ClaimSource(
    "The Attention mechanism and its implementation in PyTorch",
    "Pierre Nugues",
    "notebook, read as text",
    "all cells, with outputs",
)
_CODE = "attnbench.features.claims.measured.words"
TWO, FOUR = 0.00501, 0.000051
"""Half of the last digit of what is printed with two and with four digits behind the point."""


def _off(name: str, says: str, tolerance: float, *, ours: bool = False) -> ClaimPoint:
    return ClaimPoint(name, says, ClaimRule.WITHIN, 0.0, tolerance, ours=ours)


ROWS = [
    Claim(
        "words-small",
        "Self-attention without projections, softmax(X X^T / sqrt(d)) X, gives the matrices that "
        "are printed for three words of four numbers.",
        NOTEBOOK,
        "The formula in float64, and the table's row matmul; the largest difference from what is "
        "printed, which has four digits.",
        (
            _off("weights", "the weights, by the formula", FOUR),
            _off("output", "the output, by the formula", FOUR),
            _off("row", "the output, by the row matmul", FOUR),
        ),
        f"{_CODE}:measure_small",
    ),
    Claim(
        "words-identity",
        "With identity matrices for its projections nn.MultiheadAttention is plain self-attention; "
        "as it begins, it is not.",
        NOTEBOOK,
        "The three words of four numbers, against what is printed; and both sentences, as word "
        "vectors of the file given or else hashed ones, against the formula. How close in float32 "
        "and float64, and how far with torch's first weights, is ours.",
        (
            _off("weights", "three words: the weights", FOUR),
            _off("output", "three words: the output", FOUR),
            _off(
                "float32", "both sentences, float32: output and weights, relative", 1e-5, ours=True
            ),
            _off("float64", "both sentences, float64", 1e-13, ours=True),
            ClaimPoint(
                "begun",
                "both sentences, torch's first weights: weights apart, relative",
                ClaimRule.AT_LEAST,
                0.01,
                ours=True,
            ),
        ),
        f"{_CODE}:measure_identity",
    ),
    Claim(
        "words-tables",
        "The tables printed for both sentences are self-attention of the same word vectors: 55 % "
        "of 'ship' looks at itself and 13 % at 'crew'.",
        NOTEBOOK,
        "No vectors are needed: the printed vector of 'ship', its weights and the cosines give the "
        "products of 'ship' with every word, the vectors' lengths, and so all scores of the first "
        "sentence. Its table is computed from these and held against the printed one; half of its "
        "last digit and as much for the digits that the cosines lack is allowed, and that is ours. "
        "'ship' times its printed new vectors is held against the sum of the products. In the "
        "notebook's function for cosines the norms are always those of the first sentence; no "
        "figure that is printed depends on it.",
        (
            _off("table", "first sentence: the whole table", 0.01, ours=True),
            _off(
                "output odyssey",
                "first sentence: 'ship' times its new vector, relative",
                1e-3,
                ours=True,
            ),
            _off("output amazon", "second sentence: the same", 1e-3, ours=True),
            _off(
                "by cosines", "first sentence: the same with cosines for weights", 1e-3, ours=True
            ),
        ),
        f"{_CODE}:measure_tables",
    ),
    Claim(
        "words-glove",
        "Self-attention of GloVe vectors gives the printed cosines, attention tables and new "
        "vectors of 'ship' in both sentences.",
        NOTEBOOK,
        "glove.6B.50d, given with --embeddings; the largest difference from what is printed with "
        "two or four digits.",
        (
            _off("vector", "the vector of 'ship'", FOUR),
            _off("cosines", "first sentence: all cosines", TWO),
            _off("by cosines", "'ship' by cosines; printed with five digits in all", 5.1e-4),
            _off("table odyssey", "first sentence: the attention table", TWO),
            _off("weights odyssey", "first sentence: the row of 'ship'", FOUR),
            _off("output odyssey", "first sentence: the new vector of 'ship'", FOUR),
            _off("table amazon", "second sentence: the attention table", TWO),
            _off("weights amazon", "second sentence: the row of 'ship'", FOUR),
            _off("output amazon", "second sentence: the new vector of 'ship'", FOUR),
        ),
        f"{_CODE}:measure_glove",
        Needs(embeddings=True),
    ),
]
