"""Claims about efficient attention: the order of the products, sparse patterns, low rank.

Growth: a size is held against its double in pairs, taken until they decide on which side of the
claim's limit the power lies, the logarithm of their ratio. Over three doublings it is averaged.

Low rank: a mechanism improves at a length where, by its cells, it is faster than torch's own
attention by more than the margin of unpaired times, and its skill is half or more on one of three
kinds of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import log2
from statistics import fmean
from typing import TYPE_CHECKING, Any

import impls
from attnbench.core.settings import Settings
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.timing import PAIRS_SHARE, cell_of, compare, measure_cell
from attnbench.sweep.engine import engine_on
from impls.problem import Problem
from impls.spec import Variant

if TYPE_CHECKING:
    from torch import Tensor

    from impls.heads import Attend

SCORES_FIRST = Variant(
    name="scores_first",
    title="(Q K^T) V, all scores first",
    family="claims",
    operator="its own operator",
    build=f"{__name__}:build",
    definition="impls.linear.identity:definition",
    masks=("none",),
    gqa=False,
    options={"normalise": False, "chunk": 128},
)
"""The operator of ``linear.identity``, made to be slower: 2 n m (d + e) FLOPs a head."""
HEADS, LONG = 2, 2048
LENGTHS, SHORTER = (2048, 4096, 8192, 16384), (256, 512, 1024, 2048)
"""With all scores first there is a matrix of them, so they are not tried as far."""
WIDTHS = (32, 64, 128, 256)
LIMITS = {"re-associated": 1.5, "width": 2.5, "scores first": 1.5}


def build(problem: Problem, normalise: bool, chunk: int) -> Attend:
    """(Q K^T) V without softmax; the options are the definition's, and stay as they are."""
    scale = problem.scale

    def attend(q_bhnd: Tensor, k_bhmd: Tensor, v_bhme: Tensor) -> Tensor:
        scores_bhnm = (q_bhnd * scale) @ k_bhmd.mT
        return scores_bhnm @ v_bhme

    return attend


def measure_growth(request: ClaimRequest) -> ClaimFindings:
    """Powers of the length and of the width, and the ratio at a long length."""
    quick, slow = impls.table().find("linear.identity"), SCORES_FIRST
    each_s = PAIRS_SHARE * request.seconds / 10
    series: list[tuple[str, Variant, Mapping[int, Problem]]] = [
        ("re-associated", quick, {n: _problem(n, HEADS) for n in LENGTHS}),
        ("width", quick, {d: _problem(LONG, HEADS, d) for d in WIDTHS}),
        ("scores first", slow, {n: _problem(n, HEADS) for n in SHORTER}),
    ]
    figures, rows = dict[str, ClaimFigure](), list[Any]()
    with engine_on("cpu", Settings(threads=request.threads)) as engine:
        for name, row, problems in series:
            ratios, margin = [], 2 ** LIMITS[name] - 1
            for n, double in pairwise(problems):
                cells = cell_of(row, problems[double]), cell_of(row, problems[n])
                ratio, result, ms = compare(engine, *cells, request, each_s, margin)
                count = result.comparison.n if result.comparison else None
                ends = [ratio.value, ratio.low, ratio.high]
                rows.append([name, n, *reversed(ms), *(x and log2(x) for x in ends), count])
                ratios.append(ratio)
            figures[name] = _mean_power(ratios)
        cells = cell_of(quick, _problem(LONG, HEADS)), cell_of(slow, _problem(LONG, HEADS))
        figures["ratio"], _, _ = compare(engine, *cells, request, each_s)
    columns = ["series", "size", "ms", "ms at its double", "power", "from", "to", "pairs"]
    table = ClaimTable("a size against its double", columns, rows)
    return ClaimFindings(figures, (), [table])


def _mean_power(ratios: Sequence[ClaimFigure]) -> ClaimFigure:
    """The mean of the powers of two that some ratios are; the first that is unknown, if any."""
    if unknown := [ratio for ratio in ratios if ratio.value is None]:
        return unknown[0]
    ends = zip(*((ratio.value or 1.0, *ratio.interval) for ratio in ratios), strict=True)
    value, low, high = (fmean(map(log2, end)) for end in ends)
    return ClaimFigure(value, low, high)


def _problem(n: int, heads: int = 1, width: int = 64, inputs: str = "normal") -> Problem:
    one = Problem(heads=heads, kv_heads=heads, q_len=n, kv_len=n, inputs=inputs)
    return one.with_(head_dim=width, v_head_dim=width)


EXACT = "sdpa"
MECHANISMS = ("linformer", "nystrom", "performer", "rfa", "skyformer", "lsh", "routing")
"""Five of low rank; two that infer which pairs matter."""
TIMED_AT, SKILL_AT = (512, 2048, 8192), 1024
INPUTS = ("normal", "peaky", "equal_keys")
LEAST_LEAD, LEAST_SKILL = 0.05, 0.5
CELLS_SHARE = 0.6


def measure_low_rank(request: ClaimRequest) -> ClaimFindings:
    """At each length, the share of mechanisms that improve."""
    names, find = (EXACT, *MECHANISMS), impls.table().find
    cell_s = CELLS_SHARE * request.seconds / (len(TIMED_AT) * len(names))
    times, skills = dict[tuple[str, int], float](), dict[tuple[str, str], float]()
    notes: list[str] = []
    with engine_on("cpu", Settings(threads=request.threads)) as engine:
        for name, n in product(names, TIMED_AT):
            record = measure_cell(engine, find(name), _problem(n), request, cell_s)
            if record.time is None:
                notes.append(f"{name}: {n:,}: {record.status}: {record.reason}")
            else:
                times[name, n] = record.time.median_s
        for name, inputs in product(MECHANISMS, INPUTS):
            problem = _problem(SKILL_AT, inputs=inputs)
            record = measure_cell(engine, find(name), problem, request)
            if record.distance is None or record.distance.skill is None:
                why = record.reason or "its skill is not known"
                notes.append(f"{name}: {inputs}: {record.status}: {why}")
            else:
                skills[name, inputs] = record.distance.skill
    as_good = {name for (name, _), skill in skills.items() if skill >= LEAST_SKILL}
    over = {(k, n): s / times[EXACT, n] for (k, n), s in times.items() if (EXACT, n) in times}
    figures, shares = dict[str, ClaimFigure](), list[Any]()
    for n in TIMED_AT:
        faster = {k for k in MECHANISMS if over.get((k, n), 1.0) < 1 - LEAST_LEAD}
        timed, good = (EXACT, n) in times, len(faster & as_good) / len(MECHANISMS)
        none = ClaimFigure(None, why=f"{EXACT} has no time at {n:,}")
        figures[str(n)] = ClaimFigure(good) if timed else none
        ends = (good, len(faster) / len(MECHANISMS)) if timed else (None, None)
        shares.append([n, *ends])
    rows = [
        [k, *(over.get((k, n)) for n in TIMED_AT), *(skills.get((k, x)) for x in INPUTS)]
        for k in MECHANISMS
    ]
    columns = ["mechanism", *(f"time at {n:,} over {EXACT}'s" for n in TIMED_AT)]
    columns += [f"skill, {kind}" for kind in INPUTS]
    tables = [ClaimTable("mechanisms of low rank and inferred sparsity", columns, rows)]
    columns = ["tokens", "as good and faster", "faster"]
    tables += [ClaimTable("share of the mechanisms that are", columns, shares)]
    return ClaimFindings(figures, notes, tables)
