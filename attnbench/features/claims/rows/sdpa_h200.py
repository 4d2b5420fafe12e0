"""scaled_dot_product_attention on an H200, as NVIDIA's cudnn-frontend publishes it."""

from __future__ import annotations

from collections.abc import Iterator

from attnbench.features.claims.claim import ClaimPoint, ClaimSource
from attnbench.features.claims.rows.rates import of_kernel, rate

TABLE = ClaimSource(
    "benchmark_results.csv",
    "NVIDIA",
    "github.com/NVIDIA/cudnn-frontend, benchmark/, 505fcfeb",
    "the table and the README beside it, which names the H200 and its clocks; the table does not",
)
PHASES = ("forward", "backward", "train")
FIGURES = (  # batch, tokens, causal; flash forward, backward, both; cuDNN likewise
    (4, 4096, False, (354, 287, 304), (654, 517, 550)),
    (2, 8192, False, (355, 303, 317), (669, 530, 564)),
    (1, 16384, False, (357, 309, 321), (642, 538, 564)),
    (1, 32768, False, (349, 312, 322), (613, 536, 556)),
    (1, 65536, False, (353, 322, 330), (602, 535, 553)),
    (4, 4096, True, (314, 249, 264), (542, 444, 468)),
    (2, 8192, True, (325, 277, 290), (573, 464, 490)),
    (1, 16384, True, (325, 305, 311), (587, 498, 520)),
    (1, 65536, True, (343, 323, 329), (567, 504, 520)),
)
SETTING = (
    "bfloat16, 16 heads of 128, no dropout; the README locks clocks at 3201 and 1980 MHz and power "
    "at 700 W"
)


def _points(variant: str, column: int) -> Iterator[ClaimPoint]:
    for batch, tokens, causal, *columns in FIGURES:
        for phase, published in zip(PHASES, columns[column], strict=True):
            yield rate(
                variant,
                published,
                dtype="bfloat16",
                batch=batch,
                heads=16,
                tokens=tokens,
                head_dim=128,
                causal=causal,
                phase=phase,
            )


ROWS = [
    of_kernel(
        "h200-sdpa-flash",
        "PyTorch's attention by its flash backend on an H200: 249 to 357 TFLOP/s.",
        TABLE,
        SETTING,
        "H200",
        "sdpa.flash",
        tuple(_points("sdpa.flash", 0)),
        minutes=3.0,
    ),
    of_kernel(
        "h200-sdpa-cudnn",
        "PyTorch's attention by its cuDNN backend on an H200: 444 to 669 TFLOP/s.",
        TABLE,
        SETTING,
        "H200",
        "sdpa.cudnn",
        tuple(_points("sdpa.cudnn", 1)),
        minutes=3.0,
    ),
]
