"""Claims about efficient attention: the order of the products, sparse patterns, low rank.

Growth: a size is held against its double in pairs, taken until they decide on which side of the
claim's limit the power lies, the logarithm of their ratio. Over three doublings it is averaged.

Low rank: a mechanism improves at a length where, by its cells, it is faster than torch's own
attention by more than the margin of unpaired times, and its skill is half or more on one of three
kinds of inputs. Where it overtakes is searched by pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, product
from math import log2
from statistics import fmean
from typing import TYPE_CHECKING, Any

import impls
from attnbench.core.settings import Settings
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.timing import MARGIN, compare, measure_cell
from attnbench.features.crossover.search import find_crossover
from attnbench.sweep.engine import engine_on
from impls.errors import CantBeDone
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
PAIRS_SHARE, CROSSING_SHARE = 0.5, 0.3


def build(problem: Problem, normalise: bool, chunk: int) -> Attend:
    """(Q K^T) V without softmax; the options are the definition's, and stay as they are."""
    scale = problem.scale

    def attend(q_bhnd: Tensor, k_bhmd: Tensor, v_bhme: Tensor) -> Tensor:
        scores_bhnm = (q_bhnd * scale) @ k_bhmd.mT
        return scores_bhnm @ v_bhme

    return attend


def measure_growth(request: ClaimRequest) -> ClaimFindings:
    """Powers of the length and of the width, the ratio at a long length, and the crossover."""
    quick, slow = impls.table().find("linear.identity"), SCORES_FIRST
    each_s, crossing_s = PAIRS_SHARE * request.seconds / 10, CROSSING_SHARE * request.seconds
    series: list[tuple[str, Variant, Mapping[int, Problem]]] = [
        ("re-associated", quick, {n: _problem(n, HEADS) for n in LENGTHS}),
        ("width", quick, {d: _problem(LONG, HEADS, d) for d in WIDTHS}),
        ("scores first", slow, {n: _problem(n, HEADS) for n in SHORTER}),
    ]
    figures: dict[str, ClaimFigure] = {}
    rows = list[Any]()
    with engine_on("cpu", Settings(threads=request.threads)) as engine:
        for name, row, problems in series:
            powers, margin = [], 2 ** LIMITS[name] - 1
            for n, double in pairwise(problems):
                smaller, larger = problems[n], problems[double]
                ratio, found, ms = compare(
                    engine, row, row, larger, request, each_s, against_on=smaller, margin=margin
                )
                power = ratio
                if ratio.value is not None:
                    low, high = ratio.interval
                    power = ClaimFigure(log2(ratio.value), log2(low), log2(high))
                count = found.comparison.n if found.comparison else None
                rows.append([name, n, *reversed(ms), power.value, *power.interval, count])
                powers.append(power)
            without = [power for power in powers if power.value is None]
            ends = zip(*((p.value or 0.0, *p.interval) for p in powers), strict=True)
            value, low, high = map(fmean, ends)
            figures[name] = without[0] if without else ClaimFigure(value, low, high)
        at_long, shortest = _problem(LONG, HEADS), _problem(64, HEADS)
        figures["ratio"], _, _ = compare(engine, quick, slow, at_long, request, each_s)
        pairs = engine, request.seed, MARGIN
        crossover = find_crossover(quick, slow, shortest, (16, 1024), *pairs, crossing_s)
    columns = ["series", "size", "ms", "ms at its double", "power", "from", "to", "pairs"]
    table = ClaimTable("a size against its double", columns, rows)
    return ClaimFindings(figures, [f"by pairs: {crossover.sentence()}"], [table])


def _problem(n: int, heads: int = 1, width: int = 64, inputs: str = "normal") -> Problem:
    one = Problem(heads=heads, kv_heads=heads, q_len=n, kv_len=n, inputs=inputs)
    return one.with_(head_dim=width, v_head_dim=width)


EXACT = "sdpa"
MECHANISMS = ("linformer", "nystrom", "performer", "rfa", "skyformer", "lsh", "routing")
"""Five of low rank; two that infer which pairs matter."""
TIMED_AT, SKILL_AT = (512, 2048, 8192), 1024
INPUTS = ("normal", "peaky", "equal_keys")
BETWEEN = (256, 8192)
LEAST_LEAD, LEAST_SKILL = 0.05, 0.5
CELLS_SHARE, SEARCH_SHARE = 0.15, 0.5


def measure_low_rank(request: ClaimRequest) -> ClaimFindings:
    """At each length, the share of mechanisms that improve."""
    names, find = (EXACT, *MECHANISMS), impls.table().find
    cell_s = CELLS_SHARE * request.seconds / (len(TIMED_AT) * len(names))
    search_s = SEARCH_SHARE * request.seconds / len(MECHANISMS)
    times: dict[tuple[str, int], float] = {}
    skills: dict[tuple[str, str], float] = {}
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
        for name in MECHANISMS:
            a, b, shortest = find(EXACT), find(name), _problem(BETWEEN[0])
            try:
                pairs = engine, request.seed, MARGIN
                found = find_crossover(a, b, shortest, BETWEEN, *pairs, search_s)
                notes.append(f"by pairs: {found.sentence()}")
            except CantBeDone as error:
                notes.append(f"{name}: {error}")
    as_good = {name for (name, _), skill in skills.items() if skill >= LEAST_SKILL}
    over: dict[str, list[float | None]] = {name: [] for name in MECHANISMS}
    figures: dict[str, ClaimFigure] = {}
    shares = list[Any]()
    for n in TIMED_AT:
        exact = times.get((EXACT, n))
        for name in MECHANISMS:
            own = times.get((name, n))
            over[name].append(own / exact if own is not None and exact is not None else None)
        if exact is None:
            figures[str(n)] = ClaimFigure(None, why=f"{EXACT} has no time at {n:,}")
            shares.append([n, None, None])
            continue
        faster = {k for k, (*_, x) in over.items() if x is not None and x < 1 - LEAST_LEAD}
        good = len(faster & as_good) / len(MECHANISMS)
        figures[str(n)] = ClaimFigure(good)
        shares.append([n, good, len(faster) / len(MECHANISMS)])
    rows = [[name, *over[name], *(skills.get((name, x)) for x in INPUTS)] for name in MECHANISMS]
    columns = ["mechanism", *(f"time at {n:,} over {EXACT}'s" for n in TIMED_AT)]
    columns += [f"skill, {kind}" for kind in INPUTS]
    title = "mechanisms of low rank and inferred sparsity"
    tables = [ClaimTable(title, columns, rows)]
    columns = ["tokens", "as good and faster", "faster"]
    tables += [ClaimTable("share of the mechanisms that are", columns, shares)]
    return ClaimFindings(figures, notes, tables)
