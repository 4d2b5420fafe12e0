"""Published rates of fused kernels on GPUs, counted as their authors count.

    forward  4 b h n^2 d     half of it where the mask is causal
    backward 5/2 of forward, since the scores are computed again; both: 7/2

Times are measured as everywhere: cold caches, one call a sample, the clocks as they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import impls
from attnbench.core.record import Record
from attnbench.features.claims.claim import (
    Cells,
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    ClaimRule,
    ClaimTable,
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
RULES = (
    "FLOPs by the source's convention: 4 b h n^2 d forward, half of it under a causal mask, 5/2 of "
    "that backward, 7/2 both. Our times are of cold caches and of the clocks as they stand, so 10 "
    "% either way is allowed; that is ours"
)
NONE = 0
"""Where a figure has no number: out of memory, or covered."""
Rate = tuple[float, Mapping[str, Any]]
"""In TFLOP/s, and the fields of the problem."""

# scaled_dot_product_attention on an H200, as NVIDIA's cudnn-frontend publishes it
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
# Llama 3.1's shapes on an H200, as NVIDIA's cudnn-frontend publishes them
LLAMA_RATES = (  # tokens, phase; causal cuDNN, causal FA4, full cuDNN, full FA4
    (2048, "forward", 534, 522, 660, 671),
    (4096, "forward", 616, 619, 687, 734),
    (8192, "forward", 655, 675, 701, 756),
    (16384, "forward", 633, 702, 640, 686),
    (32768, "forward", 619, 638, 622, 679),
    (8192, "backward", 526, 629, 562, 656),
    (16384, "backward", 539, 606, 549, 621),
)
# an H100: the FlashAttention-3 paper's figure 5, and FlashAttention-2's repository
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
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


def _rate(
    published: float,
    dtype: str,
    batch: int,
    heads: int,
    tokens: int,
    head_dim: int,
    causal: bool = False,
    phase: str = "forward",
) -> Rate:
    problem = {"batch": batch, "heads": heads, "kv_heads": heads, "q_len": tokens}
    problem |= {"kv_len": tokens, "head_dim": head_dim, "v_head_dim": head_dim}
    words = {"dtype": dtype, "mask": "causal" if causal else "none", "phase": phase}
    return published, {**problem, **words, "device": "cuda"}


def _sdpa(variant: str) -> Iterator[Rate]:
    for batch, tokens, causal, *columns in SDPA_RATES:
        rates = columns[variant == "sdpa.cudnn"]
        for phase, published in zip(PHASES, rates, strict=True):
            yield _rate(published, "bfloat16", batch, 16, tokens, 128, causal, phase)


def _llama(variant: str) -> Iterator[Rate]:
    for tokens, phase, *rates in LLAMA_RATES:
        column = int(variant == "flash_attn4")
        for causal, published in ((True, rates[column]), (False, rates[column + 2])):
            rate, problem = _rate(published, "bfloat16", 2, 64, tokens, 128, causal, phase)
            yield rate, {**problem, "kv_heads": 8}


def _h100(panels: Mapping[Any, tuple[int, ...]], phase: str) -> Iterator[Rate]:
    for (d, causal), rates in panels.items():
        for tokens, published in zip(LENGTHS, rates, strict=True):
            if published != NONE:
                batch, heads = 16384 // tokens, 2048 // d
                yield _rate(published, "float16", batch, heads, tokens, d, causal, phase)


RATES: Mapping[str, Callable[..., Iterator[Rate]]] = {
    "sdpa": _sdpa,
    "llama": _llama,
    "forward": lambda variant: _h100(FORWARD[variant], "forward"),
    "train": lambda variant: _h100(TRAIN[variant], "train"),
    "single": lambda variant, *rate: iter([_rate(*rate)]),
}
"""Published rates of a variant, by the name that ``claims.toml`` gives them."""


def claim_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``claims.toml`` about the rates of a variant on a kind of GPU, as any other row."""
    table, variant, *more = row["rates"]
    points = []
    for published, problem in RATES[table](variant, *more):
        mask, phase, batch, n, d = (
            problem[key] for key in ("mask", "phase", "batch", "q_len", "head_dim")
        )
        name = f"{mask} {phase} b{batch} h{problem['heads']} n{n} d{d}"
        says = f"{variant}, {mask}, {phase}, batch {batch}, {n:,} tokens, heads of {d}"
        cell = {"variant": variant, "problem": problem}
        points.append([name, says, ClaimRule.NEAR, published, TOLERANCE, False, "TFLOP/s", cell])
    return {
        **{key: row[key] for key in ("name", "statement", "source", "minutes")},
        "setting": f"{row['setting']}. {RULES}.",
        "points": points,
        "how": "gpu_rates:measure_rates",
        "needs": {"gpu": row["gpu"], "requires": ("torch>=2.9",), "variants": (variant,)},
        "timed": True,
    }


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
