"""Eight heads and one: whether they give the same tensor, why they seem to, how they learn."""

from __future__ import annotations

from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, ClaimSource

QUESTION = ClaimSource(
    "a question on multi-head and single-head attention, with code",
    "not named",
    "question-and-answer page, read as text",
    "the question and its code",
)
_CODE = "attnbench.features.claims.measured"
_SETTING = (
    "Width 512, heads of 64 or one of 512, 2 sequences of 10 tokens, uniform in [0, 1), no output "
    "projection"
)


def _differ(name: str, letter: str) -> ClaimPoint:
    says = f"Gaussian weights: the gradients of W_{letter} are apart, relative"
    return ClaimPoint(f"{name} {letter}", says, ClaimRule.AT_LEAST, 0.01, ours=True)


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
                ClaimRule.AT_LEAST,
                1.0,
            ),
            ClaimPoint(
                "gaussian equal", "weights N(0, 1): the share of draws", ClaimRule.AT_LEAST, 1.0
            ),
            ClaimPoint(
                "begun equal", "weights N(0, 1/512): the share of draws", ClaimRule.AT_LEAST, 1.0
            ),
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
            ClaimPoint(
                "share",
                "uniform weights: the share of draws that are equal",
                ClaimRule.WITHIN,
                0.5,
                0.2,
                ours=True,
            ),
            ClaimPoint(
                "uniform entropy",
                "uniform weights: entropy of the one head",
                ClaimRule.AT_MOST,
                0.01,
                ours=True,
            ),
            ClaimPoint(
                "same key",
                "of the draws that are equal: those in which all pick one key",
                ClaimRule.AT_LEAST,
                0.95,
                ours=True,
            ),
            ClaimPoint(
                "another key",
                "of the others: those in which one does not",
                ClaimRule.AT_LEAST,
                0.95,
                ours=True,
            ),
            ClaimPoint(
                "gaussian equal",
                "weights N(0, 1): the share of draws that are equal",
                ClaimRule.AT_MOST,
                0.0,
                ours=True,
            ),
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
            ClaimPoint(
                "own head",
                "a head's columns, among eight and alone: gradients apart, relative",
                ClaimRule.AT_MOST,
                1e-10,
                ours=True,
            ),
            ClaimPoint(
                "uniform q size",
                "uniform weights: the size of the gradient of W_q",
                ClaimRule.AT_MOST,
                1e-10,
                ours=True,
            ),
            ClaimPoint(
                "uniform k size",
                "uniform weights: the size of the gradient of W_k",
                ClaimRule.AT_MOST,
                1e-10,
                ours=True,
            ),
        ),
        f"{_CODE}.head_gradients:measure",
    ),
]
