"""Rates on an H100, as the FlashAttention-3 paper's figure 5 has them: forward, float16."""

from __future__ import annotations

from collections.abc import Iterator

from attnbench.features.claims.claim import ClaimPoint, ClaimSource
from attnbench.features.claims.rows.rates import of_kernel, rate

FIGURE = ClaimSource(
    "FlashAttention-3, figure 5",
    "Shah, Bikshandi, Zhang, Thakkar, Ramani and Dao",
    "arXiv:2407.08608; assets/flash3_fp16_fwd.png of github.com/Dao-AILab/flash-attention, "
    "0251105a",
    "the numbers over the bars; of heads of 128 without a mask, cuDNN's at 512 and 1,024 tokens "
    "are partly covered and were read with a transcription",
)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
NONE = 0
"""Where the figure has no number: out of memory, or covered."""
PANELS = {  # head_dim, causal: by method
    (64, False): {
        "matmul": (52, 63, 67, 72, 73, NONE), "sdpa.flash": (282, 306, 318, 321, 322, 324),
        "sdpa.cudnn": (335, 373, 395, 408, 412, 413),
        "flash_attn3": (333, 392, 460, 476, 496, 497),
    },
    (64, True): {
        "matmul": (16, 18, 18, 18, 18, NONE), "sdpa.flash": (180, 229, 262, 284, 295, 299),
        "sdpa.cudnn": (225, 288, 334, 363, 379, 388),
        "flash_attn3": (197, 265, 371, 420, 460, 473),
    },
    (128, False): {
        "matmul": (74, 100, 119, 133, 139, NONE), "sdpa.flash": (309, 350, 362, 368, 370, 370),
        "sdpa.cudnn": (497, 574, 617, 609, 600, 595),
        "flash_attn3": (467, 565, 625, 638, 646, 648),
    },
    (128, True): {
        "matmul": (26, 31, 34, 35, 35, NONE), "sdpa.flash": (191, 260, 298, 319, 333, 335),
        "sdpa.cudnn": (315, 410, 484, 518, 529, 539),
        "flash_attn3": (292, 423, 521, 579, 602, 616),
    },
    (256, False): {
        "sdpa.flash": (275, 313, 321, 323, 324, 326), "sdpa.cudnn": (470, 546, 580, 581, 580, 581),
        "flash_attn3": (482, NONE, 707, 736, 746, 756),
    },
    (256, True): {
        "sdpa.flash": (208, 251, 278, 293, 297, 298), "sdpa.cudnn": (308, 391, 450, 483, 497, 509),
        "flash_attn3": (286, 427, 537, 612, 628, 642),
    },
}  # fmt: skip
SETTING = "float16, forward, batch times tokens 16,384, heads times their width 2,048"


def _points(variant: str) -> Iterator[ClaimPoint]:
    for (head_dim, causal), methods in PANELS.items():
        for tokens, published in zip(LENGTHS, methods.get(variant, ()), strict=False):
            if published:
                yield rate(
                    variant,
                    published,
                    dtype="float16",
                    batch=16384 // tokens,
                    heads=2048 // head_dim,
                    tokens=tokens,
                    head_dim=head_dim,
                    causal=causal,
                )


ROWS = [
    of_kernel(
        "h100-standard",
        "Standard attention in PyTorch, forward on an H100: 16 to 139 TFLOP/s.",
        FIGURE,
        f"{SETTING}; the table's row matmul",
        "H100",
        "matmul",
        tuple(_points("matmul")),
    ),
    of_kernel(
        "h100-flash2",
        "FlashAttention-2, forward on an H100: 180 to 370 TFLOP/s.",
        FIGURE,
        f"{SETTING}; PyTorch's flash backend, whose kernels are of that version",
        "H100",
        "sdpa.flash",
        tuple(_points("sdpa.flash")),
        minutes=3.0,
    ),
    of_kernel(
        "h100-cudnn",
        "cuDNN, forward on an H100: 225 to 617 TFLOP/s.",
        FIGURE,
        f"{SETTING}; through PyTorch's cuDNN backend",
        "H100",
        "sdpa.cudnn",
        tuple(_points("sdpa.cudnn")),
        minutes=3.0,
    ),
    of_kernel(
        "h100-flash3",
        "FlashAttention-3, forward on an H100: 197 to 756 TFLOP/s.",
        FIGURE,
        SETTING,
        "H100",
        "flash_attn3",
        tuple(_points("flash_attn3")),
        minutes=3.0,
    ),
]
