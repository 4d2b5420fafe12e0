"""Two variants, two runs, or two commits compared; and what asv's results show of many commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape

from attnbench.answer.compare_runs import UNDECIDED, RunsComparison
from attnbench.answer.ranking import EXACT
from attnbench.core.format import (
    NOT_SOFTMAX,
    OTHER,
    counted,
    duration,
    first_few,
    ms,
    name_and_kind,
    name_with_star,
    percent,
    roughly,
)
from attnbench.core.stats import Verdict
from attnbench.features.commits.asv_interface import CommitResults
from attnbench.features.commits.rounds import (
    FINDINGS,
    LOOKS,
    CommitsComparison,
    CommitVerdict,
)
from attnbench.report import tables, tidy
from attnbench.report.tables import BAD, BOLD, FAINT, GOOD, Styled, Table, columns, console
from attnbench.sweep.compare import Compared, counts
from attnbench.sweep.plan import Cell
from impls.spec import Variant

QUIET = (CommitVerdict.UNCHANGED, CommitVerdict.LEFT_OUT)
GOOD_NEWS = (CommitVerdict.FASTER, CommitVerdict.MENDED, CommitVerdict.ADDED)
STYLES: dict[str, str] = {
    **dict.fromkeys(FINDINGS, BAD),
    **dict.fromkeys(GOOD_NEWS, GOOD),
    CommitVerdict.UNCHANGED: BOLD,
}
"""On a terminal; the others are faint."""
MANY = 12
"""Cells of one side alone, and benchmarks of a commit, that are named; the rest is counted."""
MOST = 40
"""Rows of two runs on a terminal; of more, those that differ come first."""
SIDES = ("a: ", "b: ")
STOPS = {"": "", "decided": "", "cap": " (at the cap)", "budget": " (at the budget)"}
Judged = tuple[Compared, str]
"""What was compared, and the verdict in words."""


# ---- what variants, runs and commits share -------------------------------------------------------


def csv_rows(cells: Iterable[Judged]) -> Iterator[tidy.Row]:
    """A row a measurement: b's time over a's, the verdict, and what stands behind it."""
    for one, verdict in cells:
        c = one.comparison
        against_s, median_s = c.medians if c and c.a_s else (None, None)
        yield {
            "variant": one.variant,
            "computes": one.computes,
            "against": one.against,
            **tidy.of_problem(one.problem),
            "verdict": verdict,
            **tidy.flat({"median_s": median_s, "against_s": against_s}),
            **tidy.of_comparison(c),
            "memory_ratio": one.memory_ratio,
            "reason": _reasons(one),
            "notes": "; ".join(one.notes),
        }


def _table(cells: Iterable[Judged], a: str, b: str, styles: Mapping[str, str]) -> Table:
    """A row a measurement, without the columns that would be empty."""
    right = (f"{a} ms", f"{b} ms", "ratio", "99 % interval", "pairs", "could be seen", "memory")
    rows: list[list[Any]] = []
    for one, verdict in cells:
        name = name_with_star(one.variant, one.computes)
        row = [name, str(one.problem), Styled(verdict, styles.get(verdict, FAINT)), None, None]
        if (c := one.comparison) is None:
            row += [None] * 4
        else:
            row[3:] = map(ms, c.medians) if c.a_s else (None, None)
            row += [f"{c.ratio:.3f}", f"[{c.low:.3f}, {c.high:.3f}]", f"{c.n}{STOPS[c.stop]}"]
            row.append(percent(c.smallest_effect))
        row.append(None if one.memory_ratio is None else f"{one.memory_ratio:.3g}")
        rows.append(row)
    heads = ("variant", "problem", "verdict", *right)
    full = [n for n in range(len(heads)) if n < 3 or any(row[n] is not None for row in rows)]
    wrap = ("problem", "verdict", "pairs")
    shown = columns(*(heads[n] for n in full), right=right, wrap=wrap)
    return Table("", shown, [[row[n] for n in full] for row in rows])


def _reasons(one: Compared) -> str:
    """Why a side has no time, a's first; once where it is the same for both."""
    if one.why_a == one.why or not one.why_a:
        return one.why
    return "; ".join(f"{side}: {why}" for side, why in (("a", one.why_a), ("b", one.why)) if why)


def _remarks(cells: Sequence[Compared]) -> Iterator[str]:
    """What the star means, and why there is no time."""
    kinds = dict.fromkeys(one.computes for one in cells if one.computes not in ("", EXACT))
    if kinds:
        yield f"{OTHER} {NOT_SOFTMAX}: {', '.join(kinds)}"
    for one in cells:
        if one.comparison is None and (reasons := _reasons(one)):
            yield f"{one.variant} on {one.problem}: {reasons}"


def _faint(some: Iterable[str]) -> None:
    for each in some:
        console().print(escape(each), style=FAINT)


# ---- two variants, two runs ----------------------------------------------------------------------


def pairs(results: Sequence[Compared]) -> list[Judged]:
    """The verdicts on a variant, problem after problem."""
    return [
        (one, str(one.comparison.verdict) if one.comparison else one.status.replace("_", " "))
        for one in results
    ]


def show_pairs(results: Sequence[Compared], judged: Variant, against: Variant) -> None:
    """The table, and how often which verdict fell."""
    tables.show(_table(pairs(results), against.label, judged.label, tables.VERDICTS))
    _faint(_remarks(results))
    if margins := {percent(one.comparison.margin) for one in results if one.comparison}:
        _faint([f"margin {', '.join(sorted(margins))}"])
    many = ", ".join(f"{verdict} on {n}" for verdict, n in counts(results).items())
    names = " against ".join(name_and_kind(row.label, row.computes) for row in (judged, against))
    console().print(escape(f"{names}, {counted(len(results), 'problem')}: {many}"))


def runs(both: RunsComparison) -> list[Judged]:
    """The verdicts on the second run, cell by cell."""
    judged = []
    for cell in both.cells:
        ends = [status.replace("_", " ") for status in (cell.status_a, cell.status)]
        c = cell.comparison
        judged.append((cell, str(c.verdict) if c else " → ".join(ends)))
    return judged


def show_runs(both: RunsComparison, whole: bool) -> None:
    """Run b against run a; ``whole``: every row, as a spreadsheet needs it."""
    out = console()
    out.print(escape(f"a  {both.a}\nb  {both.b}\n"), soft_wrap=True)
    if both.differences:
        names = ("the runs differ in", "a", "b")
        facts = [(one.what, one.a, one.b) for one in both.differences]
        tables.show(Table("", columns(*names, wrap=names), facts))
    else:
        out.print("machine, versions, settings and code are the same in both")
    out.print(
        f"\nb's time over a's, unpaired: the two were not measured in turn, so the margin is "
        f"{percent(both.margin)}\n"
    )
    judged = runs(both)
    if len(judged) > MOST and not whole:
        alike = (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
        judged = sorted(judged, key=lambda each: each[1] in alike)[:MOST]
    tables.show(_table(judged, "a", "b", tables.VERDICTS))
    cells = [cell for cell, _ in judged]
    _faint([*_remarks(cells), *_run_remarks(both, len(both.cells) - len(cells))])
    ended = {"worse": "that ended worse", "better": "that ended better"}
    many_of = [(n, word) for word, n in both.counts().items() if n or word not in ended]
    out.print(", ".join(f"{n} {ended.get(word, word)}" for n, word in many_of))


def _kind(note: str) -> str:
    """A note without its figures; empty for what follows from another."""
    noise = f"{note[3:].split(': ')[0]} in a or b, so nothing is decided"
    return noise if note[:3] in SIDES else "" if note == UNDECIDED else note


def _run_remarks(both: RunsComparison, rest: int) -> Iterator[str]:
    """Sentences below the table."""
    if rest:
        yield f"{rest} more are not shown, those that differ least: --csv has them all"
    kinds = Counter(kind for cell in both.cells for kind in set(map(_kind, cell.notes)))
    yield from (f"{kind}: {counted(n, 'measurement')}" for kind, n in kinds.most_common() if kind)
    for side, names in (("a", both.only_a), ("b", both.only_b)):
        if names:
            yield f"only in {side}: {first_few(names, MANY)}"
    if both.alike:
        yield f"{counted(both.alike, 'measurement')} ended alike in both, without a time"
    if both.apart:
        middle, most = map(percent, both.apart)
        yield f"of what was timed in both, half are at most {middle} apart, nine in ten {most}"


# ---- commits -------------------------------------------------------------------------------------


def plan(cells: Sequence[Cell], about_s: float, budget_s: float) -> str:
    """A sentence before it starts."""
    runs = [cell for cell in cells if cell.left_out is None]
    return (
        f"making {counted(len(runs), 'comparison')} of "
        f"{counted(len({cell.variant.label for cell in runs}), 'variant')}, in {LOOKS[0]} to "
        f"{LOOKS[-1]} rounds, a new process each; about {roughly(about_s)}, "
        f"{duration(len(runs) * budget_s)} at the most"
    )


def commits(both: CommitsComparison) -> list[Judged]:
    """The verdicts on head, the gravest first."""
    return [(cell, str(verdict)) for cell, verdict in both.judged()]


def show_commits(both: CommitsComparison) -> None:
    """Head against base."""
    out = console()
    for name, commit in (("base", both.a), ("head", both.b)):
        out.print(escape(f"{name}  {commit}  {commit.subject}"))
    changed = ", ".join(both.changed) or "nothing that is measured"
    out.print(escape(f"changed in between: {changed}"))
    out.print(f"\nhead's time over base's, in pairs; the margin is {percent(both.margin)}\n")
    tables.show(_table(commits(both), "base", "head", STYLES))
    _faint(_commits_remarks(both))
    out.print(_verdict_counts(both))


def markdown(both: CommitsComparison) -> str:
    """The same, for a comment on a pull request: what did not change is folded away."""
    judged, bold = commits(both), dict.fromkeys(map(str, FINDINGS), BOLD)
    loud = [each for each in judged if each[1] not in QUIET]
    quiet = [each for each in judged if each[1] in QUIET]
    table, folded = (
        tables.to_markdown(_table(some, "base", "head", bold)) for some in (loud, quiet)
    )
    lines = [f"### Attention, {both.a} to {both.b}: {_verdict_counts(both)}", ""]
    lines.append(table if loud else "Nothing that was compared has changed.")
    if quiet:
        summary = f"<details><summary>{len(quiet)} others</summary>"
        lines += ["", summary, "", folded, "", "</details>"]
    if remarks := [*_commits_remarks(both)]:
        lines += ["", *(f"- {tables.markdown_text(text)}" for text in remarks)]
    under = f"Time of head over base in pairs of calls, margin {percent(both.margin)}"
    return "\n".join([*lines, "", f"<sub>{under}</sub>"])


def _verdict_counts(both: CommitsComparison) -> str:
    return ", ".join(f"{n} {word}" for word, n in both.counts().items()) or "nothing to compare"


def _commits_remarks(both: CommitsComparison) -> Iterator[str]:
    for word, names in (("added", both.added), ("removed", both.removed)):
        if names:
            yield f"{word}: {', '.join(names)}"
    yield from _remarks([cell for cell, _ in both.judged()])


def history_rows(results: Sequence[CommitResults]) -> Iterator[tidy.Row]:
    """A row a commit, oldest first: how many benchmarks were measured, skipped and failed."""
    for one in results:
        failed = len(one.failed)
        yield {
            "commit": one.commit.sha,
            "subject": one.commit.subject,
            "measured": len(one.values) - failed - one.skipped,
            "skipped": one.skipped,
            "failed": failed,
        }


def history(
    results: Sequence[CommitResults],
    moved: Mapping[str, Sequence[str]],
    lost: Mapping[str, Sequence[str]],
) -> None:
    """A line a commit, oldest first; what fails now; and what moved since the commit before."""
    styles = {"measured": "", "skipped": FAINT, "failed": BAD}
    rows = []
    for one in history_rows(results):
        cells = [Styled(one[name], one[name] and style) for name, style in styles.items()]
        rows.append((str(one["commit"])[:8], one["subject"], *cells))
    heads = columns("commit", "subject", *styles, right=[*styles], wrap=["subject"])
    tables.show(Table("", heads, rows))
    for sha, names in lost.items():
        if names:
            console().print(escape(f"{sha[:8]} fails now: {first_few(names, MANY)}"), style=BAD)
    for sha, lines in moved.items():
        if lines:
            console().print(escape("\n".join([f"\n{sha[:8]}, by asv:", *lines])), soft_wrap=True)
    _faint(["asv's rule is not of pairs: 'attnbench history compare' decides"])
