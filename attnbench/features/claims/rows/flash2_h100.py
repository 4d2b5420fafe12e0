"""Rates on an H100, forward and backward, as FlashAttention-2's repository has them."""

from __future__ import annotations

from collections.abc import Iterator

from attnbench.features.claims.claim import ClaimPoint, ClaimSource
from attnbench.features.claims.rows.rates import of_kernel, rate

FIGURE = ClaimSource(
    "FlashAttention-2 on an H100",
    "Dao",
    "arXiv:2307.08691; assets/flash2_h100_fwd_bwd_benchmark.png of "
    "github.com/Dao-AILab/flash-attention, 0251105a",
    "the numbers over the bars",
)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
PANELS = {  # head_dim, causal: PyTorch, which has no memory for the last; FlashAttention-2
    (64, False): ((62, 72, 81, 86, 87), (215, 254, 274, 288, 294, 296)),
    (128, False): ((93, 120, 145, 160, 167), (248, 294, 320, 326, 335, 338)),
    (64, True): ((26, 29, 31, 32, 32), (141, 192, 232, 257, 273, 284)),
    (128, True): ((40, 50, 57, 61, 63), (163, 221, 265, 294, 308, 328)),
}
SETTING = (
    "float16, forward and backward, batch times tokens 16,384, heads times their width 2,048; the "
    "figure does not say the dtype, the benchmark beside it takes float16"
)


def _points(variant: str, column: int) -> Iterator[ClaimPoint]:
    for (head_dim, causal), methods in PANELS.items():
        for tokens, published in zip(LENGTHS, methods[column], strict=False):
            yield rate(
                variant,
                published,
                dtype="float16",
                batch=16384 // tokens,
                heads=2048 // head_dim,
                tokens=tokens,
                head_dim=head_dim,
                causal=causal,
                phase="train",
            )


ROWS = [
    of_kernel(
        "h100-standard-train",
        "Standard attention in PyTorch, forward and backward on an H100: 26 to 167 TFLOP/s.",
        FIGURE,
        f"{SETTING}; the table's row matmul",
        "H100",
        "matmul",
        tuple(_points("matmul", 0)),
    ),
    of_kernel(
        "h100-flash2-train",
        "FlashAttention-2, forward and backward on an H100: 141 to 338 TFLOP/s.",
        FIGURE,
        f"{SETTING}; PyTorch's flash backend, whose kernels are of that version",
        "H100",
        "sdpa.flash",
        tuple(_points("sdpa.flash", 1)),
    ),
]
