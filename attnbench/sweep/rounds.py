"""Two commits in several processes, both in each, since a process is luck that lasts as it does.

Where the system put a process's memory makes the same code some hundredths faster or slower than in
another, for as long as the process lives, and no number of pairs between two processes shows it. In
one process that luck is the same for both. So each round starts one, in which the two commits lie
beside each other, and what is said rests on the rounds: each gives one median of log(head/base),
and the interval is Student's of these. Looks after 4, 8 and 16 rounds share the confidence; a cell
that is decided is not measured again. What can't be had in one process (both register an operator
of the same name, say) is measured in two, and the rounds average over their luck.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from attnbench.comparison import CONFIDENCE, Comparison, Verdict
from attnbench.pairs import Pairs, Rule, corrected
from attnbench.statistics import student, student_quantile
from attnbench.sweep.checkout import Commit, changed, laid_out
from attnbench.sweep.commits import CommitCell, CommitsComparison, Open, compared
from attnbench.sweep.plan import Cell

LOOKS = (4, 8, 16)
"""Rounds in all at each look."""
BUDGET_S = 240.0
"""Seconds a cell, its checks included; after that no round begins."""
PAIRS = 80
"""Of a cell in a round: four places in memory."""


@dataclass
class Taken:
    """A cell, and what the rounds have given of it."""

    cell: Cell
    a_s: list[float] = field(default_factory=list)
    b_s: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    """Of log(b/a), one a round."""
    seconds: float = 0.0
    apart: bool = False
    """It can't be had in one process, and isn't tried there again."""
    ended: CommitCell | None = None


def compare_in_rounds(a: Commit, b: Commit, cells: Sequence[Cell], opened: Open, *, margin: float,
                      root: Path, budget_s: float = BUDGET_S, whole: bool = False,
                      watch: Callable[[CommitCell], None] = lambda cell: None,
                      ) -> CommitsComparison:  # fmt: skip
    """Commit b against commit a; ``budget_s`` of pairs a cell, after which no round begins."""
    taken, commits = [Taken(cell) for cell in cells], (a, b)
    with ExitStack() as stack:
        folders = [stack.enter_context(laid_out(commit, root, whole)) for commit in commits]
        for number in range(1, LOOKS[-1] + 1):
            left = [one for one in taken if one.ended is None]
            if not left:
                break
            _round(left, commits, folders, opened, margin, host=1 - number % 2)
            for one in left:
                _look(one, number, margin, budget_s)
                if one.ended is not None:
                    watch(one.ended)
    found = [one.ended for one in taken if one.ended is not None]
    pairs = list(corrected([cell.pairs for cell in found]))
    for each in filter(None, pairs):
        each.names = (a.name, b.name)
    together = tuple(replace(c, pairs=each) for c, each in zip(found, pairs, strict=True))
    return CommitsComparison(a, b, tuple(changed(a, b, root, whole)), together, margin)


def _round(left: Sequence[Taken], commits: Sequence[Commit], folders: Sequence[Path], opened: Open,
           margin: float, host: int) -> None:  # fmt: skip
    """All cells that are left, in a new process; whose own it is changes each time."""
    rule = Rule(margin, first=PAIRS, cap=PAIRS)
    with opened(folders[host]) as own:
        other = own.beside(folders[1 - host])
        together = [other, own] if host else [own, other]
        for one in left:
            start = perf_counter()
            seen = None if one.apart else compared(one.cell, commits, together, rule)
            if seen is None or (seen.pairs is None and one.cell.left_out is None):
                one.apart = True
                seen = _apart(one.cell, commits, folders, opened, rule, host)
            one.seconds += perf_counter() - start
            if seen.pairs is None:
                one.ended = seen
                continue
            one.a_s += seen.pairs.a_s
            one.b_s += seen.pairs.b_s
            ratios = [math.log(y / x) for x, y in zip(seen.pairs.a_s, seen.pairs.b_s, strict=True)]
            one.medians.append(statistics.median(ratios))


def _apart(cell: Cell, commits: Sequence[Commit], folders: Sequence[Path], opened: Open,
           rule: Rule, first: int) -> CommitCell:  # fmt: skip
    """A cell that could not be had in one process, in two: whose fault it was, if any's."""
    with ExitStack() as stack:
        order = (first, 1 - first)
        workers = {side: stack.enter_context(opened(folders[side])) for side in order}
        return compared(cell, commits, [workers[0], workers[1]], rule)


def _look(one: Taken, rounds: int, margin: float, budget_s: float) -> None:
    spent = one.seconds >= budget_s and rounds >= LOOKS[0]
    if one.ended is not None or not (rounds in LOOKS or spent):
        return
    said = judged(one.medians, margin, pairs=len(one.a_s))
    stop = "decided"
    if said.verdict is Verdict.INCONCLUSIVE:
        stop = "cap" if rounds == LOOKS[-1] else "budget" if spent else ""
    if stop:
        pairs = Pairs(said, one.a_s, one.b_s, stop)
        one.ended = CommitCell(one.cell.variant.label, one.cell.problem, pairs)


def judged(medians: Sequence[float], margin: float, pairs: int) -> Comparison:
    """What some rounds say together, at a look's share of the confidence."""
    n, middle = len(medians), statistics.mean(medians)
    error = max(statistics.stdev(medians) / math.sqrt(n), 1e-9)
    tail, edge = (1 - CONFIDENCE) / len(LOOKS) / 2, math.log1p(margin)
    half = student_quantile(1 - tail, n - 1) * error
    low, high = middle - half, middle + half
    verdict = Verdict.INCONCLUSIVE
    if low > edge:
        verdict = Verdict.SLOWER
    elif high < -edge:
        verdict = Verdict.FASTER
    elif -edge < low and high < edge:
        verdict = Verdict.EQUIVALENT
    p = 2 * len(LOOKS) * (1 - student((abs(middle) - edge) / error, n - 1))
    return Comparison(
        verdict, math.exp(middle), math.exp(low), math.exp(high), margin,
        math.expm1(edge + half), pairs, min(1.0, p),
    )  # fmt: skip
