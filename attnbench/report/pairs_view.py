"""Pairs in words and in a table: a line a problem, the verdict first."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.markup import escape

from attnbench.answer.verdict import regime
from attnbench.comparison import Verdict
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put
from attnbench.sweep.compare import Compared, counts

STYLE = {
    Verdict.FASTER: GOOD, Verdict.SLOWER: BAD, Verdict.EQUIVALENT: "bold",
    Verdict.INCONCLUSIVE: FAINT,
}  # fmt: skip
STOPS = {"decided": "", "cap": " (at the cap)", "budget": " (at the budget)"}


def line(one: Compared, judged: str, against: str) -> str:
    """One problem as a sentence."""
    where = regime(one.problem.to_dict())
    if one.comparison is None:
        return f"{where}: {one.status}: {one.why}"
    return f"{where}: {one.comparison.sentence(against, judged)}"


def show(found: Sequence[Compared], judged: str, against: str) -> None:
    """The table, and how often which verdict fell."""
    right = (f"{judged} ms", f"{against} ms", "ratio", "99 % interval", "pairs", "margin",
             "could be seen")  # fmt: skip
    made = grid("problem", "verdict", *right, right=right, words=("problem", "pairs"))
    for one in found:
        where = escape(str(one.problem))
        if one.pairs is None:
            made.add_row(where, f"[{FAINT}]{one.status}[/]", *["–"] * len(right))
            continue
        c = one.pairs.comparison
        a_ms, b_ms = (statistics.median(x) * 1e3 for x in (one.pairs.a_s, one.pairs.b_s))
        made.add_row(
            where, f"[{STYLE[c.verdict]}]{c.verdict}[/]", f"{b_ms:.4g}", f"{a_ms:.4g}",
            f"{c.ratio:.3f}", f"{c.low:.3f}–{c.high:.3f}", f"{c.n}{STOPS[one.pairs.stop]}",
            f"{c.margin:.1%}", f"{c.smallest_effect:.1%}",
        )  # fmt: skip
    put(made)
    out = console()
    for one in found:
        if one.pairs is None:
            out.print(escape(f"{one.status}: {one.problem}: {one.why}"), style=FAINT)
    many = ", ".join(f"{verdict} on {n}" for verdict, n in counts(found).items())
    problems = f"{len(found)} problem" + "s" * (len(found) != 1)
    out.print(escape(f"{judged} against {against}, {problems}: {many}"))
