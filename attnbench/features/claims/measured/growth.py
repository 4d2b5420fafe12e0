"""How the time of (Q K^T) V without softmax grows in either order, and where they cross.

A size is held against its double in pairs, so that drift can't bend the line: the power is the
logarithm of the ratio, its interval that of the pairs, which are taken until they decide on which
side of the claim's limit it lies. Over three doublings powers are averaged, intervals carried
through at their worse ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.crossing import bracket
from attnbench.features.claims.measured.ruler import engine, medians, pairs, ratio, row
from attnbench.features.claims.measured.scores_first import ROW
from attnbench.sweep.compare import Compared
from attnbench.sweep.engine import LocalEngine
from impls.problem import Problem
from impls.spec import Variant

HEADS, WIDTH, LONG = 2, 64, 2048
LENGTHS, SHORTER = (2048, 4096, 8192, 16384), (256, 512, 1024, 2048)
"""With all scores first there is a matrix of them, so they are not tried as far."""
WIDTHS = (32, 64, 128, 256)
"""Of a head, at the long length."""
LIMITS = {"re-associated": 1.5, "width": 2.5, "scores first": 1.5}
"""Powers that a decision is about."""
PAIRS_SHARE, CROSSING_SHARE = 0.5, 0.3
"""Of the time that is given; the rest is for starting and for the gate."""


@dataclass(frozen=True)
class Doubling:
    """A size, its double, and what pairs say of their times."""

    series: str
    size: int
    found: Compared

    @property
    def power(self) -> ClaimFigure:
        """By how many powers of the size the time grows."""
        taken = ratio(self.found)
        if taken.value is None:
            return taken
        low, high = taken.interval
        return ClaimFigure(log2(taken.value), log2(low), log2(high))


def measure(asked: ClaimRequest) -> ClaimFindings:
    """Powers of the length and of the width, the ratio at a long one, and the crossover."""
    quick = row("linear.identity")
    series: list[tuple[str, Variant, Mapping[int, Problem]]] = [
        ("re-associated", quick, {n: _problem(n, WIDTH) for n in LENGTHS}),
        ("width", quick, {d: _problem(LONG, d) for d in WIDTHS}),
        ("scores first", ROW, {n: _problem(n, WIDTH) for n in SHORTER}),
    ]
    each_s = PAIRS_SHARE * asked.seconds / 10
    found: list[Doubling] = []
    with engine(asked) as opened:
        for name, variant, problems in series:
            found += _doublings(opened, name, variant, problems, asked, each_s)
        at_long = pairs(opened, quick, ROW, _problem(LONG, WIDTH), asked, each_s)
        crossing = bracket(
            opened,
            quick,
            ROW,
            _problem(64, WIDTH),
            (16, 1024),
            asked,
            CROSSING_SHARE * asked.seconds,
        )
    figures = {name: _mean([d.power for d in found if d.series == name]) for name, *_ in series}
    figures["ratio"] = ratio(at_long)
    return ClaimFindings(figures, [f"by pairs: {crossing.sentence()}"], [_table(found)])


def _problem(length: int, width: int) -> Problem:
    return Problem(
        heads=HEADS, kv_heads=HEADS, q_len=length, kv_len=length, head_dim=width, v_head_dim=width
    )


def _doublings(
    opened: LocalEngine,
    name: str,
    variant: Variant,
    problems: Mapping[int, Problem],
    asked: ClaimRequest,
    each_s: float,
) -> list[Doubling]:
    margin = 2 ** LIMITS[name] - 1
    return [
        Doubling(
            name,
            size,
            pairs(
                opened,
                variant,
                variant,
                problems[double],
                asked,
                each_s,
                against_on=problems[size],
                margin=margin,
            ),
        )
        for size, double in pairwise(problems)
    ]


def _mean(powers: Sequence[ClaimFigure]) -> ClaimFigure:
    """Of all doublings; of none where one has no figure."""
    for each in powers:
        if each.value is None:
            return each
    middles = [each.value or 0.0 for each in powers]
    lows, highs = zip(*(each.interval for each in powers), strict=True)
    many = len(powers)
    return ClaimFigure(sum(middles) / many, sum(lows) / many, sum(highs) / many)


def _table(found: Sequence[Doubling]) -> ClaimTable:
    rows: list[list[str | float | None]] = []
    for each in found:
        times = [s and 1e3 * s for s in medians(each.found)]
        low, high = each.power.interval
        pairs_ = each.found.comparison.n if each.found.comparison else None
        rows.append([each.series, each.size, *times, each.power.value, low, high, pairs_])
    columns = ["series", "size", "ms", "ms at its double", "power", "from", "to", "pairs"]
    return ClaimTable("a size against its double", columns, rows)
