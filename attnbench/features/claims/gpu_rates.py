"""Published rates of fused kernels on GPUs, counted as their authors count.

    forward  4 b h n^2 d     half of it where the mask is causal
    backward 5/2 of forward, since the scores are computed again; both: 7/2

Times are measured as everywhere: cold caches, one call a sample, the clocks as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import impls
from attnbench.core.record import Record
from attnbench.features.claims.claim import (
    NEAR,
    Cells,
    Claim,
    ClaimFigure,
    ClaimFindings,
    ClaimPoint,
    ClaimRequest,
    ClaimSource,
    ClaimTable,
    Needs,
)
from attnbench.features.claims.timing import measure_cell, open_engine, problem_of
from attnbench.sweep.engine import START_LIMIT_S, Engine
from impls.problem import Problem

TOLERANCE = 0.1
"""Of a published rate: clocks, drivers and versions differ."""
PHASES = {"forward": 1.0, "backward": 2.5, "train": 3.5}
"""Work over that of a forward pass."""
SECONDS = 0.5
"""Of sampling a cell, at the most."""
CELLS_SHARE = 0.5
"""Of the time that is given; the rest is for starting and for the gate."""
_RULES = (
    "FLOPs by the source's convention: 4 b h n^2 d forward, half of it under a causal mask, 5/2 of "
    "that backward, 7/2 both. Our times are of cold caches and of the clocks as they stand, so 10 "
    "% either way is allowed; that is ours"
)


def _rate(
    variant: str,
    published: float,
    dtype: str,
    batch: int,
    heads: int,
    tokens: int,
    head_dim: int,
    causal: bool = False,
    phase: str = "forward",
    kv_heads: int | None = None,
) -> ClaimPoint:
    """One figure in TFLOP/s."""
    mask = "causal" if causal else "none"
    problem = {
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
    cell = {"variant": variant, "problem": problem}
    return ClaimPoint(name, says, NEAR, published, TOLERANCE, "TFLOP/s", cell=cell)


def _kernel(
    name: str,
    statement: str,
    source: ClaimSource,
    setting: str,
    gpu: str,
    variant: str,
    points: Sequence[ClaimPoint],
    minutes: float = 2.0,
) -> Claim:
    """A claim about the rates of one row of the table on one kind of GPU."""
    return Claim(
        name,
        statement,
        source,
        f"{setting}. {_RULES}.",
        tuple(points),
        f"{__name__}:measure_rates",
        Needs(gpu=gpu, requires=("torch>=2.9",), variants=(variant,)),
        minutes=minutes,
        timed=True,
    )


# ---- scaled_dot_product_attention on an H200, as NVIDIA's cudnn-frontend publishes it ------------

SDPA_TABLE = ClaimSource(
    "benchmark_results.csv",
    "NVIDIA",
    "github.com/NVIDIA/cudnn-frontend, benchmark/, 505fcfeb",
    "the table and the README beside it, which names the H200 and its clocks; the table does not",
)
SDPA_RATES = (  # batch, tokens, causal; flash forward, backward, both; cuDNN likewise
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
SDPA_SETTING = (
    "bfloat16, 16 heads of 128, no dropout; the README locks clocks at 3201 and 1980 MHz and power "
    "at 700 W"
)


def _sdpa(variant: str, column: int) -> Iterator[ClaimPoint]:
    for batch, tokens, causal, *columns in SDPA_RATES:
        for phase, published in zip(PHASES, columns[column], strict=True):
            yield _rate(variant, published, "bfloat16", batch, 16, tokens, 128, causal, phase)


# ---- Llama 3.1's shapes on an H200, as NVIDIA's cudnn-frontend publishes them --------------------

LLAMA_TABLE = ClaimSource(
    "llama3.1_20260928_130009.csv",
    "NVIDIA",
    "github.com/NVIDIA/cudnn-frontend, benchmark/attention_training/results/llama3.1/h200/",
    "the table, of cuDNN 9.27 and FlashAttention-4",
)
LLAMA_RATES = (  # tokens, phase; causal cuDNN, causal FA4, full cuDNN, full FA4
    (2048, "forward", 534, 522, 660, 671),
    (4096, "forward", 616, 619, 687, 734),
    (8192, "forward", 655, 675, 701, 756),
    (16384, "forward", 633, 702, 640, 686),
    (32768, "forward", 619, 638, 622, 679),
    (8192, "backward", 526, 629, 562, 656),
    (16384, "backward", 539, 606, 549, 621),
)
LLAMA_SETTING = "bfloat16, batch 2, 64 heads of 128 on 8 of keys and values"


def _llama(variant: str, column: int) -> Iterator[ClaimPoint]:
    for tokens, phase, *rates in LLAMA_RATES:
        for causal, published in ((True, rates[column]), (False, rates[column + 2])):
            yield _rate(variant, published, "bfloat16", 2, 64, tokens, 128, causal, phase, 8)


# ---- an H100: the FlashAttention-3 paper's figure 5, and FlashAttention-2's repository -----------

FLASH3_FIGURE = ClaimSource(
    "FlashAttention-3, figure 5",
    "Shah, Bikshandi, Zhang, Thakkar, Ramani and Dao",
    "arXiv:2407.08608; assets/flash3_fp16_fwd.png of github.com/Dao-AILab/flash-attention, "
    "0251105a",
    "the numbers over the bars; of heads of 128 without a mask, cuDNN's at 512 and 1,024 tokens "
    "are partly covered and were read with a transcription",
)
FLASH2_FIGURE = ClaimSource(
    "FlashAttention-2 on an H100",
    "Dao",
    "arXiv:2307.08691; assets/flash2_h100_fwd_bwd_benchmark.png of "
    "github.com/Dao-AILab/flash-attention, 0251105a",
    "the numbers over the bars",
)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
NONE = 0
"""Where a figure has no number: out of memory, or covered."""
FORWARD = {  # variant: head_dim, causal: a rate for each length
    "matmul": {
        (64, False): (52, 63, 67, 72, 73, NONE),
        (64, True): (16, 18, 18, 18, 18, NONE),
        (128, False): (74, 100, 119, 133, 139, NONE),
        (128, True): (26, 31, 34, 35, 35, NONE),
    },
    "sdpa.flash": {
        (64, False): (282, 306, 318, 321, 322, 324),
        (64, True): (180, 229, 262, 284, 295, 299),
        (128, False): (309, 350, 362, 368, 370, 370),
        (128, True): (191, 260, 298, 319, 333, 335),
        (256, False): (275, 313, 321, 323, 324, 326),
        (256, True): (208, 251, 278, 293, 297, 298),
    },
    "sdpa.cudnn": {
        (64, False): (335, 373, 395, 408, 412, 413),
        (64, True): (225, 288, 334, 363, 379, 388),
        (128, False): (497, 574, 617, 609, 600, 595),
        (128, True): (315, 410, 484, 518, 529, 539),
        (256, False): (470, 546, 580, 581, 580, 581),
        (256, True): (308, 391, 450, 483, 497, 509),
    },
    "flash_attn3": {
        (64, False): (333, 392, 460, 476, 496, 497),
        (64, True): (197, 265, 371, 420, 460, 473),
        (128, False): (467, 565, 625, 638, 646, 648),
        (128, True): (292, 423, 521, 579, 602, 616),
        (256, False): (482, NONE, 707, 736, 746, 756),
        (256, True): (286, 427, 537, 612, 628, 642),
    },
}
TRAIN = {
    "matmul": {
        (64, False): (62, 72, 81, 86, 87, NONE),
        (128, False): (93, 120, 145, 160, 167, NONE),
        (64, True): (26, 29, 31, 32, 32, NONE),
        (128, True): (40, 50, 57, 61, 63, NONE),
    },
    "sdpa.flash": {
        (64, False): (215, 254, 274, 288, 294, 296),
        (128, False): (248, 294, 320, 326, 335, 338),
        (64, True): (141, 192, 232, 257, 273, 284),
        (128, True): (163, 221, 265, 294, 308, 328),
    },
}
FORWARD_SETTING = "float16, forward, batch times tokens 16,384, heads times their width 2,048"
TRAIN_SETTING = (
    "float16, forward and backward, batch times tokens 16,384, heads times their width 2,048; the "
    "figure does not say the dtype, the benchmark beside it takes float16"
)
FLASH2_KERNELS = "PyTorch's flash backend, whose kernels are of that version"


def _h100(variant: str, phase: str) -> Iterator[ClaimPoint]:
    panels = (FORWARD if phase == "forward" else TRAIN)[variant]
    for (d, causal), rates in panels.items():
        for tokens, published in zip(LENGTHS, rates, strict=True):
            if published != NONE:
                batch, heads = 16384 // tokens, 2048 // d
                yield _rate(variant, published, "float16", batch, heads, tokens, d, causal, phase)


# ---- single figures, from threads of several projects --------------------------------------------


def _thread(title: str, where: str, read: str = "the thread's text") -> ClaimSource:
    return ClaimSource(title, "the thread's authors", f"github.com/{where}", read)


FLASH_1438 = _thread("flash-attention, issue 1438", "Dao-AILab/flash-attention/issues/1438")
PYTORCH_142132 = _thread(
    "pytorch, issue 142132",
    "pytorch/pytorch/issues/142132",
    "the thread's text, which does not say the dtype of the figures: bfloat16 is taken",
)
TRITONBENCH_141 = _thread("tritonbench, issue 141", "pytorch-labs/tritonbench/issues/141")
ONNX_21629 = _thread(
    "onnxruntime, pull request 21629",
    "microsoft/onnxruntime/pull/21629",
    "a transcription of its table",
)


def _single(
    name: str, statement: str, source: ClaimSource, setting: str, gpu: str, point: ClaimPoint
) -> Claim:
    variant = point.cell["variant"]
    return _kernel(name, statement, source, setting, gpu, variant, [point], minutes=0.3)


def _of_4608(word: str, what: str, variant: str, published: float) -> Claim:
    return _single(
        f"h100-4608-{word}",
        f"{what} gives {published} TFLOP/s on an H100.",
        PYTORCH_142132,
        "bfloat16, forward, 24 heads of 128, 4,608 tokens",
        "H100",
        _rate(variant, published, "bfloat16", 1, 24, 4608, 128),
    )


def _of_256(backend: str, published: float) -> Claim:
    return _single(
        f"h100-short-{backend}",
        f"On 256 tokens PyTorch's {backend} backend gives {published} TFLOP/s on an H100.",
        ONNX_21629,
        "float16, batch 16, 32 heads of 128, 256 tokens: launching weighs here",
        "H100",
        _rate(f"sdpa.{backend}", published, "float16", 16, 32, 256, 128),
    )


ROWS = [
    _kernel(
        "h200-sdpa-flash",
        "PyTorch's attention by its flash backend on an H200: 249 to 357 TFLOP/s.",
        SDPA_TABLE,
        SDPA_SETTING,
        "H200",
        "sdpa.flash",
        tuple(_sdpa("sdpa.flash", 0)),
        minutes=3.0,
    ),
    _kernel(
        "h200-sdpa-cudnn",
        "PyTorch's attention by its cuDNN backend on an H200: 444 to 669 TFLOP/s.",
        SDPA_TABLE,
        SDPA_SETTING,
        "H200",
        "sdpa.cudnn",
        tuple(_sdpa("sdpa.cudnn", 1)),
        minutes=3.0,
    ),
    _kernel(
        "h200-llama-cudnn",
        "cuDNN on Llama 3.1's shapes, on an H200: 526 to 701 TFLOP/s.",
        LLAMA_TABLE,
        f"{LLAMA_SETTING}; through PyTorch's cuDNN backend",
        "H200",
        "sdpa.cudnn",
        tuple(_llama("sdpa.cudnn", 0)),
    ),
    _kernel(
        "h200-llama-fa4",
        "FlashAttention-4 on Llama 3.1's shapes, on an H200: 522 to 756 TFLOP/s.",
        LLAMA_TABLE,
        LLAMA_SETTING,
        "H200",
        "flash_attn4",
        tuple(_llama("flash_attn4", 1)),
    ),
    _kernel(
        "h100-standard",
        "Standard attention in PyTorch, forward on an H100: 16 to 139 TFLOP/s.",
        FLASH3_FIGURE,
        f"{FORWARD_SETTING}; the table's row matmul",
        "H100",
        "matmul",
        tuple(_h100("matmul", "forward")),
    ),
    _kernel(
        "h100-flash2",
        "FlashAttention-2, forward on an H100: 180 to 370 TFLOP/s.",
        FLASH3_FIGURE,
        f"{FORWARD_SETTING}; {FLASH2_KERNELS}",
        "H100",
        "sdpa.flash",
        tuple(_h100("sdpa.flash", "forward")),
        minutes=3.0,
    ),
    _kernel(
        "h100-cudnn",
        "cuDNN, forward on an H100: 225 to 617 TFLOP/s.",
        FLASH3_FIGURE,
        f"{FORWARD_SETTING}; through PyTorch's cuDNN backend",
        "H100",
        "sdpa.cudnn",
        tuple(_h100("sdpa.cudnn", "forward")),
        minutes=3.0,
    ),
    _kernel(
        "h100-flash3",
        "FlashAttention-3, forward on an H100: 197 to 756 TFLOP/s.",
        FLASH3_FIGURE,
        FORWARD_SETTING,
        "H100",
        "flash_attn3",
        tuple(_h100("flash_attn3", "forward")),
        minutes=3.0,
    ),
    _kernel(
        "h100-standard-train",
        "Standard attention in PyTorch, forward and backward on an H100: 26 to 167 TFLOP/s.",
        FLASH2_FIGURE,
        f"{TRAIN_SETTING}; the table's row matmul",
        "H100",
        "matmul",
        tuple(_h100("matmul", "train")),
    ),
    _kernel(
        "h100-flash2-train",
        "FlashAttention-2, forward and backward on an H100: 141 to 338 TFLOP/s.",
        FLASH2_FIGURE,
        f"{TRAIN_SETTING}; {FLASH2_KERNELS}",
        "H100",
        "sdpa.flash",
        tuple(_h100("sdpa.flash", "train")),
    ),
    _single(
        "h200-flash3-long",
        "FlashAttention-3 takes 4.517 ms, 487 TFLOP/s, on an H200.",
        FLASH_1438,
        "bfloat16, forward, 8 heads of 64, 32,768 tokens",
        "H200",
        _rate("flash_attn3", 487.0, "bfloat16", 1, 8, 32768, 64),
    ),
    _of_4608(
        "flash", "PyTorch's attention as it chooses, by flash at that time,", "sdpa.flash", 329.0
    ),
    _of_4608("cudnn", "cuDNN", "sdpa.cudnn", 631.0),
    _of_4608("flash3", "FlashAttention-3", "flash_attn3", 632.0),
    _single(
        "h100-8192-cudnn",
        "cuDNN gives 582 TFLOP/s on an H100.",
        TRITONBENCH_141,
        "float16, forward, batch 8, 16 heads of 128, 8,192 tokens; the thread's own host",
        "H100",
        _rate("sdpa.cudnn", 582.0, "float16", 8, 16, 8192, 128),
    ),
    _of_256("flash", 229.5),
    _of_256("efficient", 144.8),
    _of_256("math", 76.5),
]


def measure_rates(request: ClaimRequest) -> ClaimFindings:
    """TFLOP/s, a cell for each point."""
    with open_engine(request, "cuda") as engine:
        return rates(engine, request)


def rates(engine: Engine, request: ClaimRequest) -> ClaimFindings:
    """The same, by an engine that is open."""
    dtypes = sorted({str(c["problem"]["dtype"]) for c in request.cells.values()})
    ceilings = engine.ask({"ceilings": dtypes, "device": "cuda"}, START_LIMIT_S)["ceilings"]
    each_s = min(SECONDS, CELLS_SHARE * request.seconds / len(request.cells))
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    for name, cell in request.cells.items():
        variant, problem = impls.table().find(cell["variant"]), problem_of(cell["problem"])
        record = measure_cell(engine, variant, problem, request, each_s, ceilings=ceilings)
        figures[name] = _figure(record, problem)
        rows.append([name, *_evidence(record)])
    columns = ["point", "ms", "from", "to", "samples", "SM MHz", "kernels", "amiss"]
    return ClaimFindings(figures, (), [ClaimTable("cells", columns, rows)])


def flops(problem: Problem) -> float:
    """By the authors' convention."""
    p = problem
    product = 4.0 * p.batch * p.heads * p.q_len * p.kv_len * p.head_dim
    return product * (0.5 if p.mask.is_causal(p.shape) else 1.0) * PHASES[p.phase]


def _figure(record: Record, problem: Problem) -> ClaimFigure:
    time = record.time
    if time is None:
        why = f"{record.variant} at {problem}: {record.status}: {record.reason}"
        return ClaimFigure(None, why=why)
    work = flops(problem) / 1e12
    return ClaimFigure(work / time.median_s, work / time.high_s, work / time.low_s)


def _evidence(record: Record) -> Cells:
    """What speaks for the rate or against it: samples, clocks, kernels, flags."""
    time = record.time
    if time is None:
        return [*[None] * 6, f"{record.status}: {record.reason}"]
    clock = time.clocks.get("sm_mhz")
    times = [1e3 * time.median_s, 1e3 * time.low_s, 1e3 * time.high_s]
    return [*times, time.n, clock, ", ".join(record.kernels[:2]), "; ".join(time.flags)]
