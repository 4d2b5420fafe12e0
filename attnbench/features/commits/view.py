"""Tables of two runs, two variants or two commits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.markup import escape

from attnbench.answer.compare_runs import ComparedCell, RunsComparison
from attnbench.answer.ranking import regime, regime_on_device
from attnbench.core.stats import Comparison, Verdict
from attnbench.features.commits.pairs import CommitCell, CommitsComparison
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put
from attnbench.sweep.compare import Compared, counts

STYLE = {
    Verdict.FASTER: GOOD,
    Verdict.SLOWER: BAD,
    Verdict.EQUIVALENT: "bold",
    Verdict.INCONCLUSIVE: FAINT,
}
STOPS = {"decided": "", "cap": " (at the cap)", "budget": " (at the budget)"}


def pairs_line(one: Compared, judged: str, against: str) -> str:
    """One problem as a sentence."""
    where = regime(one.problem)
    if one.comparison is None:
        return f"{where}: {one.status}: {one.why}"
    return f"{where}: {one.comparison.sentence(against, judged)}"


def show_pairs(found: Sequence[Compared], judged: str, against: str) -> None:
    """The table, and how often which verdict fell."""
    right = (
        f"{judged} ms",
        f"{against} ms",
        "ratio",
        "99 % interval",
        "pairs",
        "margin",
        "could be seen",
    )
    made = grid("problem", "verdict", *right, right=right, words=("problem", "pairs"))
    for one in found:
        where = escape(str(one.problem))
        if one.pairs is None:
            made.add_row(where, f"[{FAINT}]{one.status}[/]", *["–"] * len(right))
            continue
        c = one.pairs.comparison
        a_ms, b_ms = (statistics.median(x) * 1e3 for x in (one.pairs.a_s, one.pairs.b_s))
        made.add_row(
            where,
            f"[{STYLE[c.verdict]}]{c.verdict}[/]",
            f"{b_ms:.4g}",
            f"{a_ms:.4g}",
            f"{c.ratio:.3f}",
            f"{c.low:.3f}–{c.high:.3f}",
            f"{c.n}{STOPS[one.pairs.stop]}",
            f"{c.margin:.1%}",
            f"{c.smallest_effect:.1%}",
        )
    put(made)
    out = console()
    for one in found:
        if one.pairs is None:
            out.print(escape(f"{one.status}: {one.problem}: {one.why}"), style=FAINT)
    many = ", ".join(f"{verdict} on {n}" for verdict, n in counts(found).items())
    problems = f"{len(found)} problem" + "s" * (len(found) != 1)
    out.print(escape(f"{judged} against {against}, {problems}: {many}"))


MANY = 8
"""Cells of one side alone that are named; the rest is counted."""
MOST = 400
"""Rows of two runs that anybody reads; of more, those that say something come first."""
NOTHING = "–"
WORDS = ("problem", "verdict", "pairs")
"""Columns that may wrap."""


def runs(found: RunsComparison) -> None:
    """Run b against run a."""
    out = console()
    out.print(escape(f"a  {found.a}\nb  {found.b}\n"))
    if found.differences:
        made = grid("the runs differ in", "a", "b", words=["the runs differ in", "a", "b"])
        for one in found.differences:
            made.add_row(*map(escape, (one.what, one.a, one.b)))
        put(made)
    else:
        out.print("machine, versions, settings and code are the same in both")
    out.print(
        f"\nb's time over a's, unpaired: the two were not measured in turn, so the margin is "
        f"{found.margin:.1%}\n"
    )
    right = ("ratio", "99 % interval", "samples", "could be seen", "memory")
    made = grid("variant", "problem", "verdict", *right, right=right, words=WORDS)
    shown = _telling(found.cells)
    for cell in shown:
        memory = NOTHING if cell.memory_ratio is None else f"{cell.memory_ratio:.3g}"
        where = escape(regime_on_device(cell.problem))
        made.add_row(
            escape(cell.variant), where, _run_verdict(cell), *_figures(cell.comparison), memory
        )
    put(made)
    _lines(_run_remarks(found, shown))
    _counted(found.counts())


def commits(found: CommitsComparison) -> None:
    """Commit b against commit a."""
    out = console()
    for side, commit in (("a", found.a), ("b", found.b)):
        out.print(escape(f"{side}  {commit}  {commit.subject}"))
    files = ", ".join(found.changed) or "nothing: impls is the same in both"
    out.print(escape(f"changed in between: {files}"))
    out.print(f"\nb's time over a's, in pairs; the margin is {found.margin:.1%}\n")
    right = ("a ms", "b ms", "ratio", "99 % interval", "pairs", "could be seen")
    made = grid("variant", "problem", "verdict", *right, right=right, words=WORDS)
    for cell in found.cells:
        ratio, interval, n, seen = _figures(cell.comparison)
        taken = (NOTHING, NOTHING)
        if cell.pairs is not None:
            a_ms, b_ms = (statistics.median(x) * 1e3 for x in (cell.pairs.a_s, cell.pairs.b_s))
            taken, n = (f"{a_ms:.4g}", f"{b_ms:.4g}"), n + STOPS[cell.pairs.stop]
        where = escape(regime_on_device(cell.problem))
        made.add_row(
            escape(cell.variant), where, _commit_verdict(cell), *taken, ratio, interval, n, seen
        )
    put(made)
    _lines(
        f"{c.variant} on {regime_on_device(c.problem)}: {_why(c)}"
        for c in found.cells
        if c.pairs is None
    )
    _counted(found.counts())


def line(cell: CommitCell) -> str:
    """One cell of two commits as a sentence."""
    where = f"{cell.variant} on {regime_on_device(cell.problem)}"
    return f"{where}: {cell.comparison.sentence('a', 'b') if cell.comparison else _why(cell)}"


def _figures(c: Comparison | None) -> tuple[str, str, str, str]:
    """Ratio, interval, how many, and what could have been seen."""
    if c is None:
        return (NOTHING,) * 4
    return f"{c.ratio:.3f}", f"{c.low:.3f}–{c.high:.3f}", str(c.n), f"{c.smallest_effect:.1%}"


def _run_verdict(cell: ComparedCell) -> str:
    across = ", across devices" * cell.across_devices
    if cell.comparison is not None:
        verdict = cell.comparison.verdict
        return f"[{STYLE[verdict]}]{verdict}[/], unpaired{across}"
    if cell.status_a is cell.status_b:
        return f"[{FAINT}]no verdict[/]{across}"
    style = {"worse": BAD, "better": GOOD}.get(cell.change, FAINT)
    return f"[{style}]{cell.status_a} → {cell.status_b}[/]{across}"


def _commit_verdict(cell: CommitCell) -> str:
    if cell.comparison is not None:
        return f"[{STYLE[cell.comparison.verdict]}]{cell.comparison.verdict}[/]"
    sides = [side for side, why in (("a", cell.why_a), ("b", cell.why_b)) if why]
    style = BAD if sides == ["b"] else FAINT
    return f"[{style}]not by {' nor '.join(sides)}[/]"


def _why(cell: CommitCell) -> str:
    return "; ".join(dict.fromkeys(filter(None, (cell.why_a, cell.why_b))))


def _telling(cells: Sequence[ComparedCell]) -> Sequence[ComparedCell]:
    """Those that are shown: all, or of too many those that differ before those that don't."""
    if len(cells) <= MOST:
        return cells
    telling = (Verdict.SLOWER, Verdict.FASTER)

    def rank(cell: ComparedCell) -> int:
        if cell.comparison is None:
            return 0 if cell.status_a is not cell.status_b else len(telling) + 2
        verdict = cell.comparison.verdict
        return 1 + (telling.index(verdict) if verdict in telling else len(telling))

    return sorted(cells, key=rank)[:MOST]


def _run_remarks(found: RunsComparison, shown: Sequence[ComparedCell]) -> Iterable[str]:
    """What a table of numbers leaves out."""
    if len(shown) < len(found.cells):
        rest = len(found.cells) - len(shown)
        yield f"{rest} more cells are not shown, those that differ least; --json has them all"
    for cell in shown:
        said = [cell.reason] * bool(cell.reason) + list(cell.notes)
        if said:
            yield f"{cell.variant} on {regime_on_device(cell.problem)}: {'; '.join(said)}"
    for side, names in (("a", found.only_a), ("b", found.only_b)):
        if names:
            more = f"; and {len(names) - MANY} more" if len(names) > MANY else ""
            yield f"only in {side}: {'; '.join(names[:MANY])}{more}"
    if found.alike:
        ended = "cell" + "s" * (found.alike > 1)
        yield f"{found.alike} {ended} ended alike in both, without a time"
    if found.apart:
        middle, most = (f"{100 * share:.1f}%" for share in found.apart)
        timed = sum(cell.comparison is not None for cell in found.cells)
        which = (
            f"of {timed} cells timed in both the middle one is" if timed > 1 else "the times are"
        )
        yield f"{which} {middle} apart" + f", nine in ten at most {most}" * (timed > 1)


def _lines(some: Iterable[str]) -> None:
    out = console()
    for each in some:
        out.print(escape(each), style=FAINT)


def _counted(counts: Mapping[str, int]) -> None:
    """How often each verdict was given; changes of status where there were any."""
    words = {"worse": "that ended worse", "better": "that ended better"}
    shown: Sequence[str] = [
        f"{n} {words.get(name, name)}" for name, n in counts.items() if n or name not in words
    ]
    console().print(", ".join(shown))
