"""How published tables of rates become points: what all rows about GPUs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, ClaimSource, Needs

TOLERANCE = 0.1
"""Of a published rate: clocks, drivers and versions differ."""
_HOW = "attnbench.features.claims.measured.gpu_rates:measure"
_RULES = (
    "FLOPs by the source's convention: 4 b h n^2 d forward, half of it under a causal mask, 5/2 of "
    "that backward, 7/2 both. Our times are of cold caches and of the clocks as they stand, so 10 "
    "% either way is allowed; that is ours"
)


def rate(
    variant: str,
    published: float,
    *,
    dtype: str,
    batch: int,
    heads: int,
    tokens: int,
    head_dim: int,
    causal: bool,
    phase: str = "forward",
    kv_heads: int | None = None,
) -> ClaimPoint:
    """One figure in TFLOP/s."""
    mask = "causal" if causal else "none"
    problem: dict[str, Any] = {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "q_len": tokens,
        "kv_len": tokens,
        "head_dim": head_dim,
        "v_head_dim": head_dim,
        "dtype": dtype,
        "mask": mask,
        "phase": phase,
        "device": "cuda",
    }
    name = f"{mask} {phase} b{batch} h{heads} n{tokens} d{head_dim}"
    says = f"{variant}, {mask}, {phase}, batch {batch}, {tokens:,} tokens, heads of {head_dim}"
    return ClaimPoint(
        name,
        says,
        ClaimRule.NEAR,
        published,
        TOLERANCE,
        "TFLOP/s",
        cell={"variant": variant, "problem": problem},
    )


def of_kernel(
    name: str,
    statement: str,
    source: ClaimSource,
    setting: str,
    gpu: str,
    variant: str,
    points: Sequence[ClaimPoint],
    *,
    minutes: float = 2.0,
) -> Claim:
    """A claim about the rates of one row of the table on one kind of GPU."""
    needs = Needs(gpu=gpu, requires=("torch>=2.9",), variants=(variant,))
    return Claim(
        name,
        statement,
        source,
        f"{setting}. {_RULES}.",
        tuple(points),
        _HOW,
        needs,
        minutes=minutes,
        timed=True,
    )
