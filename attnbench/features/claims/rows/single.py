"""Single figures of single problems, from threads of several projects."""

from __future__ import annotations

from attnbench.features.claims.claim import Claim, ClaimSource
from attnbench.features.claims.rows.rates import of_kernel, rate

_THREAD = "the thread's text"
FLASH_1438 = ClaimSource(
    "flash-attention, issue 1438",
    "the thread's authors",
    "github.com/Dao-AILab/flash-attention/issues/1438",
    _THREAD,
)
PYTORCH_142132 = ClaimSource(
    "pytorch, issue 142132",
    "the thread's authors",
    "github.com/pytorch/pytorch/issues/142132",
    f"{_THREAD}, which does not say the dtype of the figures: bfloat16 is taken",
)
TRITONBENCH_141 = ClaimSource(
    "tritonbench, issue 141",
    "the thread's authors",
    "github.com/pytorch-labs/tritonbench/issues/141",
    _THREAD,
)
ONNX_21629 = ClaimSource(
    "onnxruntime, pull request 21629",
    "the thread's authors",
    "github.com/microsoft/onnxruntime/pull/21629",
    "a transcription of its table",
)
ONNX = {"flash": 229.5, "efficient": 144.8, "math": 76.5}


def _onnx(backend: str, published: float) -> Claim:
    variant = f"sdpa.{backend}"
    return of_kernel(
        f"h100-short-{backend}",
        f"On 256 tokens PyTorch's {backend} backend gives {published} TFLOP/s on an H100.",
        ONNX_21629,
        "float16, batch 16, 32 heads of 128, 256 tokens: launching weighs here",
        "H100",
        variant,
        [
            rate(
                variant,
                published,
                dtype="float16",
                batch=16,
                heads=32,
                tokens=256,
                head_dim=128,
                causal=False,
            )
        ],
        minutes=0.3,
    )


ROWS = [
    of_kernel(
        "h200-flash3-long",
        "FlashAttention-3 takes 4.517 ms, 487 TFLOP/s, on an H200.",
        FLASH_1438,
        "bfloat16, forward, 8 heads of 64, 32,768 tokens",
        "H200",
        "flash_attn3",
        [
            rate(
                "flash_attn3",
                487.0,
                dtype="bfloat16",
                batch=1,
                heads=8,
                tokens=32768,
                head_dim=64,
                causal=False,
            )
        ],
        minutes=0.3,
    ),
    *(
        of_kernel(
            f"h100-4608-{word}",
            f"{what} gives {published} TFLOP/s on an H100.",
            PYTORCH_142132,
            "bfloat16, forward, 24 heads of 128, 4,608 tokens",
            "H100",
            variant,
            [
                rate(
                    variant,
                    published,
                    dtype="bfloat16",
                    batch=1,
                    heads=24,
                    tokens=4608,
                    head_dim=128,
                    causal=False,
                )
            ],
            minutes=0.3,
        )
        for word, what, variant, published in (
            (
                "flash",
                "PyTorch's attention as it chooses, by flash at that time,",
                "sdpa.flash",
                329.0,
            ),
            ("cudnn", "cuDNN", "sdpa.cudnn", 631.0),
            ("flash3", "FlashAttention-3", "flash_attn3", 632.0),
        )
    ),
    of_kernel(
        "h100-8192-cudnn",
        "cuDNN gives 582 TFLOP/s on an H100.",
        TRITONBENCH_141,
        "float16, forward, batch 8, 16 heads of 128, 8,192 tokens; the thread's own host",
        "H100",
        "sdpa.cudnn",
        [
            rate(
                "sdpa.cudnn",
                582.0,
                dtype="float16",
                batch=8,
                heads=16,
                tokens=8192,
                head_dim=128,
                causal=False,
            )
        ],
        minutes=0.3,
    ),
    *(_onnx(backend, published) for backend, published in ONNX.items()),
]
