"""Attention of Llama 3.1's shapes on an H200, as NVIDIA's cudnn-frontend publishes it."""

from __future__ import annotations

from collections.abc import Iterator

from attnbench.features.claims.claim import ClaimPoint, ClaimSource
from attnbench.features.claims.rows.rates import of_kernel, rate

TABLE = ClaimSource(
    "llama3.1_20260928_130009.csv",
    "NVIDIA",
    "github.com/NVIDIA/cudnn-frontend, benchmark/attention_training/results/llama3.1/h200/",
    "the table, of cuDNN 9.27 and FlashAttention-4",
)
FIGURES = (  # tokens, phase; causal cuDNN, causal FA4, full cuDNN, full FA4
    (2048, "forward", 534, 522, 660, 671),
    (4096, "forward", 616, 619, 687, 734),
    (8192, "forward", 655, 675, 701, 756),
    (16384, "forward", 633, 702, 640, 686),
    (32768, "forward", 619, 638, 622, 679),
    (8192, "backward", 526, 629, 562, 656),
    (16384, "backward", 539, 606, 549, 621),
)
SETTING = "bfloat16, batch 2, 64 heads of 128 on 8 of keys and values"


def _points(variant: str, column: int) -> Iterator[ClaimPoint]:
    for tokens, phase, *rates in FIGURES:
        for causal, published in ((True, rates[column]), (False, rates[column + 2])):
            yield rate(
                variant,
                published,
                dtype="bfloat16",
                batch=2,
                heads=64,
                kv_heads=8,
                tokens=tokens,
                head_dim=128,
                causal=causal,
                phase=phase,
            )


ROWS = [
    of_kernel(
        "h200-llama-cudnn",
        "cuDNN on Llama 3.1's shapes, on an H200: 526 to 701 TFLOP/s.",
        TABLE,
        f"{SETTING}; through PyTorch's cuDNN backend",
        "H200",
        "sdpa.cudnn",
        tuple(_points("sdpa.cudnn", 0)),
    ),
    of_kernel(
        "h200-llama-fa4",
        "FlashAttention-4 on Llama 3.1's shapes, on an H200: 522 to 756 TFLOP/s.",
        TABLE,
        SETTING,
        "H200",
        "flash_attn4",
        tuple(_points("flash_attn4", 1)),
    ),
]
