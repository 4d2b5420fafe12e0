"""Eight heads and one: whether they give the same tensor, why they seem to, how they learn."""

from attnbench.claims.claim import Claim, Point, Rule, Source

QUESTION = Source(
    "a question on multi-head and single-head attention, with code", "not named",
    "question-and-answer page, read as text", "the question and its code",
)  # fmt: skip
_CODE = "attnbench.claims.measured"
_SETTING = (
    "Width 512, heads of 64 or one of 512, 2 sequences of 10 tokens, uniform in [0, 1), no output "
    "projection"
)


def _differ(name: str, letter: str) -> Point:
    says = f"Gaussian weights: the gradients of W_{letter} are apart, relative"
    return Point(f"{name} {letter}", says, Rule.AT_LEAST, 0.01, ours=True)


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
            Point("uniform equal", "uniform weights: the share of draws in which they are equal",
                  Rule.AT_LEAST, 1.0),
            Point("gaussian equal", "weights N(0, 1): the share of draws", Rule.AT_LEAST, 1.0),
            Point("begun equal", "weights N(0, 1/512): the share of draws", Rule.AT_LEAST, 1.0),
        ),
        f"{_CODE}.one_head:measure",
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
            Point("share", "uniform weights: the share of draws that are equal", Rule.WITHIN, 0.5,
                  0.2, ours=True),
            Point("uniform entropy", "uniform weights: entropy of the one head", Rule.AT_MOST, 0.01,
                  ours=True),
            Point("same key", "of the draws that are equal: those in which all pick one key",
                  Rule.AT_LEAST, 0.95, ours=True),
            Point("another key", "of the others: those in which one does not", Rule.AT_LEAST,
                  0.95, ours=True),
            Point("gaussian equal", "weights N(0, 1): the share of draws that are equal",
                  Rule.AT_MOST, 0.0, ours=True),
        ),
        f"{_CODE}.one_head:measure",
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
            *(_differ("begun", letter) for letter in "qkv"),
            Point("own head", "a head's columns, among eight and alone: gradients apart, relative",
                  Rule.AT_MOST, 1e-10, ours=True),
            Point("uniform q size", "uniform weights: the size of the gradient of W_q",
                  Rule.AT_MOST, 1e-10, ours=True),
            Point("uniform k size", "uniform weights: the size of the gradient of W_k",
                  Rule.AT_MOST, 1e-10, ours=True),
        ),
        f"{_CODE}.head_gradients:measure",
    ),
]  # fmt: skip
