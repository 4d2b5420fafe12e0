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
from dataclasses import dataclass, field
from itertools import pairwise
from math import log2
from statistics import fmean
from typing import TYPE_CHECKING

import impls
from attnbench.features.claims.claim import (
    AT_LEAST,
    AT_MOST,
    Cells,
    Claim,
    ClaimFigure,
    ClaimFindings,
    ClaimPoint,
    ClaimRequest,
    ClaimTable,
    Needs,
)
from attnbench.features.claims.layers import NUMPY_NOTEBOOK
from attnbench.features.claims.timing import (
    MARGIN,
    compare,
    measure_cell,
    medians_ms,
    open_engine,
    ratio_of,
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

SPARSE, SPARSE_LENGTH = ("longformer", "strided", "bigbird"), 8192


def _sparse(name: str) -> ClaimPoint:
    problem = {
        "heads": 1,
        "kv_heads": 1,
        "q_len": SPARSE_LENGTH,
        "kv_len": SPARSE_LENGTH,
        "mask": "causal",
        "phase": "forward",
    }
    cell = {"judged": name, "against": "sdpa", "problem": problem}
    says = f"{name} over sdpa at {SPARSE_LENGTH:,} tokens, forward"
    return ClaimPoint(
        f"{name} forward", says, AT_MOST, 0.5, unit="of the time", ours=True, cell=cell
    )


def _mechanisms(length: int) -> ClaimPoint:
    says = f"improve at {length:,} tokens"
    return ClaimPoint(str(length), says, AT_MOST, 0.5, unit="of seven mechanisms", ours=True)


ROWS = [
    Claim(
        "reassociated",
        "Without softmax, (K Q^T) V can be multiplied as K (Q^T V), which is O(T d^2) where the "
        "scores first are O(T^2 d): potentially much smaller.",
        NUMPY_NOTEBOOK,
        "One sequence, 2 heads of 64, no mask, float32: the table's linear.identity, and the same "
        "operator with all scores first. A size against its double in pairs, three times over: "
        "lengths, and widths at 2,048 tokens; powers with their 99 % intervals. An order is an "
        "upper bound: a power may be half above it, no nearer to the next, and that is ours; much "
        "smaller is a quarter of the time at 2,048 tokens, and that is ours too.",
        (
            ClaimPoint(
                "re-associated",
                "the power of the length, re-associated",
                AT_MOST,
                1.5,
                ours=True,
            ),
            ClaimPoint("width", "the power of the width, re-associated", AT_MOST, 2.5, ours=True),
            ClaimPoint(
                "scores first",
                "the power of the length, all scores first",
                AT_LEAST,
                1.5,
                ours=True,
            ),
            ClaimPoint(
                "ratio",
                "re-associated over scores first at 2,048 tokens",
                AT_MOST,
                0.25,
                unit="of the time",
                ours=True,
            ),
        ),
        f"{__name__}:measure_growth",
        Needs(variants=("linear.identity",)),
        minutes=0.6,
        timed=True,
    ),
    Claim(
        "sparse-long",
        "Where a model is to see a very long history, attention that is sparse by design pays at "
        "times.",
        NUMPY_NOTEBOOK,
        "One sequence of 8,192 tokens, one head of 64, causal, float32; softmax on patterns "
        "against torch's own attention in pairs, forward. Useful is half of the time at the most: "
        "that threshold is ours, and says nothing of what a model learns.",
        tuple(_sparse(name) for name in SPARSE),
        "attnbench.features.claims.timing:measure_ratio",
        Needs(variants=SPARSE),
        minutes=0.5,
        timed=True,
    ),
    Claim(
        "low-rank",
        "Of the mechanisms that rest on low rank or infer their sparsity, most gain little on "
        "plain attention, once real time counts and the model is to be as good.",
        NUMPY_NOTEBOOK,
        "linformer, nystrom, performer, rfa, skyformer, lsh and routing as the table has them, "
        "against torch's own attention; one head of 64, no mask, forward, float32. One improves at "
        "a length where it is faster by more than 5 % and keeps half or more of what softmax does "
        "beyond the mean of the values, at 1,024 tokens of normal inputs, of peaky ones or of long "
        "runs of equal keys, whichever is best for it; most don't where at most half do. These "
        "thresholds are ours, and inputs drawn at random are not a trained model's. Speed alone "
        "stands beside it and is part of no verdict; where each overtakes is searched by pairs.",
        tuple(_mechanisms(length) for length in (512, 2048, 8192)),
        f"{__name__}:measure_low_rank",
        minutes=1.4,
        timed=True,
    ),
]


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
    quick = impls.table().find("linear.identity")
    each_s, crossing_s = PAIRS_SHARE * request.seconds / 10, CROSSING_SHARE * request.seconds
    series: list[tuple[str, Variant, Mapping[int, Problem]]] = [
        ("re-associated", quick, {n: _growing(n, WIDTH) for n in LENGTHS}),
        ("width", quick, {d: _growing(LONG, d) for d in WIDTHS}),
        ("scores first", SCORES_FIRST, {n: _growing(n, WIDTH) for n in SHORTER}),
    ]
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    with open_engine(request) as engine:
        for name, variant, problems in series:
            powers = []
            for size, double in pairwise(problems):
                result = compare(
                    engine,
                    variant,
                    variant,
                    problems[double],
                    request,
                    each_s,
                    against_on=problems[size],
                    margin=2 ** LIMITS[name] - 1,
                )
                power = _power(ratio_of(result))
                count = result.comparison.n if result.comparison else None
                figure = [power.value, *power.interval, count]
                rows.append([name, size, *medians_ms(result), *figure])
                powers.append(power)
            figures[name] = _mean(powers)
        at_long = _growing(LONG, WIDTH)
        figures["ratio"] = ratio_of(compare(engine, quick, SCORES_FIRST, at_long, request, each_s))
        shortest = _growing(64, WIDTH)
        crossing = find_crossing(
            engine, quick, SCORES_FIRST, shortest, (16, 1024), request, crossing_s
        )
    columns = ["series", "size", "ms", "ms at its double", "power", "from", "to", "pairs"]
    table = ClaimTable("a size against its double", columns, rows)
    return ClaimFindings(figures, [f"by pairs: {crossing.sentence()}"], [table])


def _growing(length: int, width: int) -> Problem:
    return Problem(
        heads=HEADS, kv_heads=HEADS, q_len=length, kv_len=length, head_dim=width, v_head_dim=width
    )


def _power(ratio: ClaimFigure) -> ClaimFigure:
    """By how many powers of the size the time grows."""
    if ratio.value is None:
        return ratio
    low, high = ratio.interval
    return ClaimFigure(log2(ratio.value), log2(low), log2(high))


def _mean(powers: Sequence[ClaimFigure]) -> ClaimFigure:
    """The mean of all; the first without a figure, where there is one."""
    for each in powers:
        if each.value is None:
            return each
    lows, highs = zip(*(each.interval for each in powers), strict=True)
    middles = [each.value or 0.0 for each in powers]
    return ClaimFigure(fmean(middles), fmean(lows), fmean(highs))


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
    for length in ladder(*between):
        at_length = duel.at(length)
        if a.supports(at_length) is None and b.supports(at_length) is None:
            duel.rungs.append(length)
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


@dataclass
class Mechanism:
    """A variant and what was found of it."""

    variant: Variant
    times: dict[int, float] = field(default_factory=dict)
    skills: dict[str, float] = field(default_factory=dict)
    whys: list[str] = field(default_factory=list)
    overtakes: str = ""

    def is_faster(self, length: int, exact_s: float) -> bool:
        """Whether it is faster than exact attention by more than the margin."""
        return length in self.times and self.times[length] < exact_s * (1 - LEAST_LEAD)

    @property
    def is_as_good(self) -> bool:
        """Whether it keeps enough skill on the inputs that suit it best."""
        return max(self.skills.values(), default=0.0) >= LEAST_SKILL


def measure_low_rank(request: ClaimRequest) -> ClaimFindings:
    """At each length, the share of mechanisms that improve."""
    exact, *mechanisms = (Mechanism(impls.table().find(name)) for name in (EXACT, *MECHANISMS))
    cell_s = CELLS_SHARE * request.seconds / (len(TIMED_AT) * (len(mechanisms) + 1))
    search_s = SEARCH_SHARE * request.seconds / len(mechanisms)
    with open_engine(request) as engine:
        for one in (exact, *mechanisms):
            _time(engine, one, request, cell_s)
        for one in mechanisms:
            _find_skill(engine, one, request)
            try:
                crossing = find_crossing(
                    engine,
                    exact.variant,
                    one.variant,
                    _one_head(BETWEEN[0]),
                    BETWEEN,
                    request,
                    search_s,
                )
                one.overtakes = _lead(crossing)
            except CantBeDone as error:
                one.whys.append(str(error))
    figures: dict[str, ClaimFigure] = {}
    shares: list[Cells] = []
    for n in TIMED_AT:
        if n not in exact.times:
            figures[str(n)] = ClaimFigure(None, why=f"{EXACT} has no time at {n:,}")
            shares.append([n, None, None])
            continue
        faster = [one for one in mechanisms if one.is_faster(n, exact.times[n])]
        good = sum(one.is_as_good for one in faster) / len(mechanisms)
        figures[str(n)] = ClaimFigure(good)
        shares.append([n, good, len(faster) / len(mechanisms)])
    summary = ClaimTable(
        "share of the mechanisms that are", ["tokens", "as good and faster", "faster"], shares
    )
    notes = [f"{one.variant.label}: {why}" for one in (exact, *mechanisms) for why in one.whys]
    return ClaimFindings(figures, notes, [_table(mechanisms, exact), summary])


def _one_head(length: int, inputs: str = "normal") -> Problem:
    return Problem(heads=1, kv_heads=1, q_len=length, kv_len=length, inputs=inputs)


def _time(engine: LocalEngine, one: Mechanism, request: ClaimRequest, each_s: float) -> None:
    for n in TIMED_AT:
        record = measure_cell(engine, one.variant, _one_head(n), request, each_s)
        if record.time is None:
            one.whys.append(f"{n:,}: {record.status}: {record.reason}")
        else:
            one.times[n] = record.time.median_s


def _find_skill(engine: LocalEngine, one: Mechanism, request: ClaimRequest) -> None:
    for inputs in INPUTS:
        problem = _one_head(SKILL_AT, inputs)
        record = measure_cell(engine, one.variant, problem, request, 0.0, timed=False)
        if record.distance is not None and record.distance.skill is not None:
            one.skills[inputs] = record.distance.skill
        else:
            why = record.reason or "its skill is not known"
            one.whys.append(f"{inputs}: {record.status}: {why}")


def _lead(answer: CrossoverAnswer) -> str:
    """Where one overtakes the other, or which leads throughout."""
    if crossings := answer.crossovers():
        return "; ".join(f"{c.after} from {c.high:,} on (not yet at {c.low:,})" for c in crossings)
    lengths = [look.length for look in answer.looks]
    if not lengths:
        return "no length was compared"
    leaders = [stretch.leader for stretch in answer.stretches() if stretch.leader]
    who = leaders[0] if leaders else "can't be told apart"
    why = f" ({answer.ended})" if answer.ended else ""
    return f"{who} from {lengths[0]:,} to {lengths[-1]:,}{why}"


def _table(mechanisms: Sequence[Mechanism], exact: Mechanism) -> ClaimTable:
    times = [f"time at {n:,} over {EXACT}'s" for n in TIMED_AT]
    skills = [f"skill, {kind}" for kind in INPUTS]
    rows: list[Cells] = []
    for one in mechanisms:
        both = [n in one.times and n in exact.times for n in TIMED_AT]
        ratios = [
            one.times[n] / exact.times[n] if timed else None
            for n, timed in zip(TIMED_AT, both, strict=True)
        ]
        kept = [one.skills.get(kind) for kind in INPUTS]
        rows.append([one.variant.label, *ratios, *kept, one.overtakes])
    columns = ["mechanism", *times, *skills, "faster, by pairs"]
    return ClaimTable("mechanisms of low rank and inferred sparsity", columns, rows)
