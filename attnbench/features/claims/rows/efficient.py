"""What is said of attention that is meant to be efficient."""

from __future__ import annotations

from typing import Any

from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, Needs
from attnbench.features.claims.rows.transformers import NOTEBOOK

_CODE = "attnbench.features.claims.measured"
SPARSE = ("longformer", "strided", "bigbird")
LONG = 8192


def _sparse(name: str, phase: str) -> ClaimPoint:
    problem: dict[str, Any] = {
        "heads": 1,
        "kv_heads": 1,
        "q_len": LONG,
        "kv_len": LONG,
        "mask": "causal",
        "phase": phase,
    }
    cell = {"judged": name, "against": "sdpa", "problem": problem}
    says = f"{name} over sdpa at {LONG:,} tokens, {phase}"
    return ClaimPoint(
        f"{name} {phase}", says, ClaimRule.AT_MOST, 0.5, 0.0, "of the time", ours=True, cell=cell
    )


def _few(name: str, says: str) -> ClaimPoint:
    return ClaimPoint(name, says, ClaimRule.AT_MOST, 0.5, 0.0, "of seven mechanisms", ours=True)


ROWS = [
    Claim(
        "reassociated",
        "Without softmax, (K Q^T) V can be multiplied as K (Q^T V), which is O(T d^2) where the "
        "scores first are O(T^2 d): potentially much smaller.",
        NOTEBOOK,
        "One sequence, 2 heads of 64, no mask, float32: the table's linear.identity, and the same "
        "operator with all scores first. A size against its double in pairs, three times over: "
        "lengths, and widths at 2,048 tokens; powers with their 99 % intervals. An order is an "
        "upper bound: a power may be half above it, no nearer to the next, and that is ours; much "
        "smaller is a quarter of the time at 2,048 tokens, and that is ours too.",
        (
            ClaimPoint(
                "re-associated",
                "the power of the length, re-associated",
                ClaimRule.AT_MOST,
                1.5,
                ours=True,
            ),
            ClaimPoint(
                "width", "the power of the width, re-associated", ClaimRule.AT_MOST, 2.5, ours=True
            ),
            ClaimPoint(
                "scores first",
                "the power of the length, all scores first",
                ClaimRule.AT_LEAST,
                1.5,
                ours=True,
            ),
            ClaimPoint(
                "ratio",
                "re-associated over scores first at 2,048 tokens",
                ClaimRule.AT_MOST,
                0.25,
                0.0,
                "of the time",
                ours=True,
            ),
        ),
        f"{_CODE}.growth:measure",
        Needs(variants=("linear.identity",)),
        minutes=0.6,
        timed=True,
    ),
    Claim(
        "sparse-long",
        "Where a model is to see a very long history, attention that is sparse by design pays at "
        "times.",
        NOTEBOOK,
        "One sequence of 8,192 tokens, one head of 64, causal, float32; softmax on patterns "
        "against torch's own attention in pairs, forward. Useful is half of the time at the most: "
        "that threshold is ours, and says nothing of what a model learns.",
        tuple(_sparse(name, "forward") for name in SPARSE),
        f"{_CODE}.pairs:measure_ratio",
        Needs(variants=SPARSE),
        minutes=0.5,
        timed=True,
    ),
    Claim(
        "low-rank",
        "Of the mechanisms that rest on low rank or infer their sparsity, most gain little on "
        "plain attention, once real time counts and the model is to be as good.",
        NOTEBOOK,
        "linformer, nystrom, performer, rfa, skyformer, lsh and routing as the table has them, "
        "against torch's own attention; one head of 64, no mask, forward, float32. One improves at "
        "a length where it is faster by more than 5 % and keeps half or more of what softmax does "
        "beyond the mean of the values, at 1,024 tokens of normal inputs, of peaky ones or of long "
        "runs of equal keys, whichever is best for it; most don't where at most half do. These "
        "thresholds are ours, and inputs drawn at random are not a trained model's. Speed alone "
        "stands beside it and is part of no verdict; where each overtakes is searched by pairs.",
        (
            _few("512", "improve at 512 tokens"),
            _few("2048", "improve at 2,048 tokens"),
            _few("8192", "improve at 8,192 tokens"),
        ),
        f"{_CODE}.practice:measure",
        minutes=1.4,
        timed=True,
    ),
]
