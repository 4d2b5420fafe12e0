"""How the time of (Q K^T) V without softmax grows in either order, and where they cross.

Times are cells of the ruler, exponents a fit over four sizes with its 95 % interval, the crossover
a bracket by pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnbench.answer.powers import power
from attnbench.claims.figures import Asked, Figure, Found, Table
from attnbench.claims.measured.crossing import bracket
from attnbench.claims.measured.ruler import engine, pairs, ratio, record, row
from attnbench.claims.measured.scores_first import ROW
from attnbench.sweep.asking import Engine
from impls.problem import Problem
from impls.spec import Variant

HEADS = 2
LENGTHS = {"re-associated": (4096, 8192, 16384, 32768), "scores first": (512, 1024, 2048, 4096)}
"""The second has a matrix of scores, so it is not tried as far."""
WIDTHS, AT = (64, 128, 256, 512), 4096
"""Of a head, and the length at which the width is changed."""
LONG, WIDTH = 4096, 64
CELLS_SHARE, PAIRS_SHARE, CROSSING_SHARE = 0.3, 0.1, 0.4
"""Of the time that is given; the rest is for starting and for the gate."""


def measure(asked: Asked) -> Found:
    """Exponents in the length and in the width, the ratio at a long one, and the crossover."""
    quick, times = row("linear.identity"), dict[str, dict[int, float]]()
    each_s = CELLS_SHARE * asked.seconds / (sum(map(len, LENGTHS.values())) + len(WIDTHS))
    with engine(asked) as opened:
        for name, variant in (("re-associated", quick), ("scores first", ROW)):
            problems = {n: _problem(n, WIDTH) for n in LENGTHS[name]}
            times[name] = _times(opened, variant, problems, asked, each_s)
        problems = {d: _problem(AT, d) for d in WIDTHS}
        times["width"] = _times(opened, quick, problems, asked, each_s)
        at_long = pairs(opened, quick, ROW, _problem(LONG, WIDTH), asked,
                        PAIRS_SHARE * asked.seconds)  # fmt: skip
        crossing = bracket(opened, quick, ROW, _problem(64, WIDTH), (16, 1024), asked,
                           CROSSING_SHARE * asked.seconds)  # fmt: skip
    figures = {name: _exponent(some) for name, some in times.items()}
    figures["ratio"] = ratio(at_long)
    rows = [[name, float(n), 1e3 * s] for name, some in times.items() for n, s in some.items()]
    tables = [Table("times", ["what", "length or width", "ms"], rows)]
    return Found(figures, [f"where they cross, by pairs: {crossing.sentence()}"], tables)


def _problem(length: int, width: int) -> Problem:
    return Problem(
        heads=HEADS, kv_heads=HEADS, q_len=length, kv_len=length, head_dim=width, v_head_dim=width
    )


def _times(opened: Engine, variant: Variant, problems: Mapping[int, Problem], asked: Asked,
           each_s: float) -> dict[int, float]:  # fmt: skip
    """Median seconds by size, of those that have a time."""
    found = {}
    for size, problem in problems.items():
        said = record(opened, variant, problem, asked, each_s)
        if said.time is not None:
            found[size] = said.time.median_s
    return found


def _exponent(times: Mapping[int, float]) -> Figure:
    fitted = power(times)
    if fitted is None:
        return Figure(None, why="fewer than three sizes have a time")
    return Figure(fitted.power, fitted.power - fitted.error, fitted.power + fitted.error)
