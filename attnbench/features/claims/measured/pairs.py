"""Two variants in pairs, a problem for each point of the claim."""

from __future__ import annotations

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.ruler import engine, medians, pairs, problem, ratio, row
from attnbench.sweep.compare import Compared

PAIRS_SHARE = 0.7
"""Of the time that is given; the rest is for starting and for the gate."""


def measure_saving(asked: ClaimRequest) -> ClaimFindings:
    """The share of time that the judged saves; less than nought where it is slower."""
    found = _compared(asked)
    return ClaimFindings(
        {name: _saved(ratio(each)) for name, each in found.items()}, (), [_table(asked, found)]
    )


def measure_ratio(asked: ClaimRequest) -> ClaimFindings:
    """The judged's time over the other's."""
    found = _compared(asked)
    figures = {name: ratio(each) for name, each in found.items()}
    return ClaimFindings(figures, (), [_table(asked, found)])


def _compared(asked: ClaimRequest) -> dict[str, Compared]:
    """By point."""
    seconds = PAIRS_SHARE * asked.seconds / len(asked.cells)
    found = {}
    with engine(asked) as opened:
        for name, said in asked.cells.items():
            judged, against, of = (
                row(said["judged"]),
                row(said["against"]),
                problem(said["problem"]),
            )
            found[name] = pairs(opened, judged, against, of, asked, seconds)
    return found


def _saved(taken: ClaimFigure) -> ClaimFigure:
    if taken.value is None:
        return taken
    low, high = taken.interval
    return ClaimFigure(1 - taken.value, 1 - high, 1 - low)


def _table(asked: ClaimRequest, found: dict[str, Compared]) -> ClaimTable:
    rows: list[list[str | float | None]] = []
    for name, each in found.items():
        c, said = each.comparison, asked.cells[name]
        b_s, a_s = medians(each)
        how = [c.ratio, c.low, c.high, c.n, str(c.verdict)] if c else [None] * 4 + [each.why]
        rows.append(
            [name, said["judged"], said["against"], *(x and 1e3 * x for x in (a_s, b_s)), *how]
        )
    columns = [
        "point",
        "judged",
        "against",
        "judged, ms",
        "against, ms",
        "ratio",
        "from",
        "to",
        "pairs",
        "verdict at 1 %",
    ]
    return ClaimTable("in pairs", columns, rows)
