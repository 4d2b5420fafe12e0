"""Claims about efficient attention: the order of the products, sparse patterns, low rank.

Growth: a size is held against its double in pairs, so that drift can't bend the line. The power is
the logarithm of the ratio, its interval that of the pairs, which are taken until they decide on
which side of the claim's limit it lies. Over three doublings powers are averaged, intervals carried
through at their worse ends.

Low rank: a mechanism improves at a length where, by its cells, it is faster than torch's own
attention by more than the margin of unpaired times and keeps half or more of what softmax does
beyond the mean of the values (its skill), on one of three kinds of inputs. Where it overtakes is
searched by pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import log2
from statistics import fmean
from typing import TYPE_CHECKING

import impls
from attnbench.features.claims.claim import (
    Cells,
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    ClaimTable,
)
from attnbench.features.claims.timing import (
    MARGIN,
    compare,
    measure_cell,
    medians_ms,
    open_engine,
)
from attnbench.features.crossover.answer import BUDGET, CrossoverAnswer
from attnbench.features.crossover.search import CrossoverSearch, Duel, PairServer, ladder, seek
from attnbench.sweep.engine import LocalEngine
from impls.asked import CantBeDone
from impls.problem import Problem
from impls.spec import Variant

if TYPE_CHECKING:
    from torch import Tensor

    from impls.heads import Attend

# ---- growth --------------------------------------------------------------------------------------

SCORES_FIRST = Variant(
    name="scores_first",
    title="(Q K^T) V, all scores first",
    family="claims",
    computes="its own operator",
    build=f"{__name__}:build",
    definition="impls.linear.identity:definition",
    masks=("none",),
    gqa=False,
    options={"normalise": False, "chunk": 128},
)
"""The operator of ``linear.identity``, made to be slower: 2 n m (d + e) FLOPs a head."""
HEADS, WIDTH, LONG = 2, 64, 2048
LENGTHS, SHORTER = (2048, 4096, 8192, 16384), (256, 512, 1024, 2048)
"""With all scores first there is a matrix of them, so they are not tried as far."""
WIDTHS = (32, 64, 128, 256)
"""Of a head, at the long length."""
LIMITS = {"re-associated": 1.5, "width": 2.5, "scores first": 1.5}
"""Powers that a decision is about."""
PAIRS_SHARE, CROSSING_SHARE = 0.5, 0.3
"""Of the time that is given; the rest is for starting and for the gate."""


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
        ("re-associated", quick, {n: _growing(n, WIDTH) for n in LENGTHS}),
        ("width", quick, {d: _growing(LONG, d) for d in WIDTHS}),
        ("scores first", slow, {n: _growing(n, WIDTH) for n in SHORTER}),
    ]
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    with open_engine(request) as engine:
        for name, row, problems in series:
            powers, margin = [], 2 ** LIMITS[name] - 1
            for n, double in pairwise(problems):
                smaller, larger = problems[n], problems[double]
                ratio, found = compare(
                    engine, row, row, larger, request, each_s, against_on=smaller, margin=margin
                )
                power = _power(ratio)
                count = found.comparison.n if found.comparison else None
                rows.append([name, n, *medians_ms(found), power.value, *power.interval, count])
                powers.append(power)
            figures[name] = _mean(powers)
        at_long, shortest = _growing(LONG, WIDTH), _growing(64, WIDTH)
        figures["ratio"], _ = compare(engine, quick, slow, at_long, request, each_s)
        crossing = find_crossing(engine, quick, slow, shortest, (16, 1024), request, crossing_s)
    columns = ["series", "size", "ms", "ms at its double", "power", "from", "to", "pairs"]
    table = ClaimTable("a size against its double", columns, rows)
    return ClaimFindings(figures, [f"by pairs: {crossing.sentence()}"], [table])


def _growing(length: int, width: int) -> Problem:
    one = Problem(heads=HEADS, kv_heads=HEADS, q_len=length, kv_len=length)
    return one.with_(head_dim=width, v_head_dim=width)


def _power(ratio: ClaimFigure) -> ClaimFigure:
    """By how many powers of the size the time grows."""
    if ratio.value is None:
        return ratio
    low, high = ratio.interval
    return ClaimFigure(log2(ratio.value), log2(low), log2(high))


def _mean(powers: Sequence[ClaimFigure]) -> ClaimFigure:
    """The mean of all; the first without a figure, where there is one."""
    values = [each.value for each in powers if each.value is not None]
    if len(values) < len(powers):
        return next(each for each in powers if each.value is None)
    lows, highs = zip(*(each.interval for each in powers), strict=True)
    return ClaimFigure(fmean(values), fmean(lows), fmean(highs))


def find_crossing(
    engine: LocalEngine,
    a: Variant,
    b: Variant,
    problem: Problem,
    between: tuple[int, int],
    request: ClaimRequest,
    seconds: float,
) -> CrossoverAnswer:
    """Which of two leads where, over the lengths that both take, as ``attnbench crossover``."""
    duel = Duel(a, b, problem, between, [])
    duel.rungs += [length for length in ladder(*between) if not duel.refusal(length)]
    if len(duel.rungs) < 2:
        raise CantBeDone(f"{a.label} and {b.label} share no lengths to search")
    search = CrossoverSearch(duel.rungs)
    for _ in seek(search, PairServer(duel, engine, request.seed, MARGIN), seconds):
        pass
    ended = BUDGET if search.next() is not None else ""
    return CrossoverAnswer(a.label, b.label, "tokens", between, search, ended)


# ---- low rank and inferred sparsity --------------------------------------------------------------

EXACT = "sdpa"
MECHANISMS = ("linformer", "nystrom", "performer", "rfa", "skyformer", "lsh", "routing")
"""Five of low rank; two that infer which pairs matter."""
TIMED_AT, SKILL_AT = (512, 2048, 8192), 1024
"""Lengths at which times are taken, and the one at which skills are."""
INPUTS = ("normal", "peaky", "equal_keys")
BETWEEN = (256, 8192)
LEAST_LEAD, LEAST_SKILL = 0.05, 0.5
CELLS_SHARE, SEARCH_SHARE = 0.15, 0.5
"""Of the time that is given; the rest is for starting and for the gate."""


def measure_low_rank(request: ClaimRequest) -> ClaimFindings:
    """At each length, the share of mechanisms that improve."""
    names, find = (EXACT, *MECHANISMS), impls.table().find
    cell_s = CELLS_SHARE * request.seconds / (len(TIMED_AT) * len(names))
    search_s = SEARCH_SHARE * request.seconds / len(MECHANISMS)
    times: dict[tuple[str, int], float] = {}
    skills: dict[tuple[str, str], float] = {}
    notes: list[str] = []
    with open_engine(request) as engine:
        for name, n in product(names, TIMED_AT):
            record = measure_cell(engine, find(name), _one_head(n), request, cell_s)
            if record.time is None:
                notes.append(f"{name}: {n:,}: {record.status}: {record.reason}")
            else:
                times[name, n] = record.time.median_s
        for name, inputs in product(MECHANISMS, INPUTS):
            problem = _one_head(SKILL_AT, inputs)
            record = measure_cell(engine, find(name), problem, request, 0.0, timed=False)
            if record.distance is None or record.distance.skill is None:
                why = record.reason or "its skill is not known"
                notes.append(f"{name}: {inputs}: {record.status}: {why}")
            else:
                skills[name, inputs] = record.distance.skill
        for name in MECHANISMS:
            both, problem = (find(EXACT), find(name)), _one_head(BETWEEN[0])
            try:
                crossing = find_crossing(engine, *both, problem, BETWEEN, request, search_s)
                notes.append(f"by pairs: {crossing.sentence()}")
            except CantBeDone as error:
                notes.append(f"{name}: {error}")
    figures, shares = _improving(times, skills)
    over = [[_over(times, name, n) for n in TIMED_AT] for name in MECHANISMS]
    rows: list[Cells] = [
        [name, *ratios, *(skills.get((name, kind)) for kind in INPUTS)]
        for name, ratios in zip(MECHANISMS, over, strict=True)
    ]
    columns = ["mechanism", *(f"time at {n:,} over {EXACT}'s" for n in TIMED_AT)]
    columns += [f"skill, {kind}" for kind in INPUTS]
    table = ClaimTable("mechanisms of low rank and inferred sparsity", columns, rows)
    return ClaimFindings(figures, notes, [table, shares])


def _improving(
    times: Mapping[tuple[str, int], float], skills: Mapping[tuple[str, str], float]
) -> tuple[dict[str, ClaimFigure], ClaimTable]:
    """At each length the share of mechanisms that are faster, and as good on what suits them."""
    as_good = {name for (name, _), skill in skills.items() if skill >= LEAST_SKILL}
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    for n in TIMED_AT:
        if (EXACT, n) not in times:
            figures[str(n)] = ClaimFigure(None, why=f"{EXACT} has no time at {n:,}")
            rows.append([n, None, None])
            continue
        ratios = {name: _over(times, name, n) for name in MECHANISMS}
        faster = {name for name, x in ratios.items() if x is not None and x < 1 - LEAST_LEAD}
        good = len(faster & as_good) / len(MECHANISMS)
        figures[str(n)] = ClaimFigure(good)
        rows.append([n, good, len(faster) / len(MECHANISMS)])
    columns = ["tokens", "as good and faster", "faster"]
    return figures, ClaimTable("share of the mechanisms that are", columns, rows)


def _over(times: Mapping[tuple[str, int], float], name: str, n: int) -> float | None:
    """A mechanism's time over exact attention's."""
    one, exact = times.get((name, n)), times.get((EXACT, n))
    return one / exact if one is not None and exact is not None else None


def _one_head(length: int, inputs: str = "normal") -> Problem:
    return Problem(heads=1, kv_heads=1, q_len=length, kv_len=length, inputs=inputs)
