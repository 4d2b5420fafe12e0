"""Two variants, two runs, or two commits compared; and what asv's results show of many commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from rich.markup import escape

from attnbench.answer.compare_runs import UNDECIDED, RunsComparison, change_of
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
from attnbench.core.stats import Comparison, Verdict
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
STYLES = dict.fromkeys(FINDINGS, BAD) | dict.fromkeys(GOOD_NEWS, GOOD) | {QUIET[0]: BOLD}
"""On a terminal; the others are faint."""
MANY = 12
"""Cells of one side alone, and benchmarks of a commit, that are named; the rest is counted."""
MOST = 40
"""Rows of two runs on a terminal; of more, those that differ come first."""
SIDES = ("a: ", "b: ")
STOPS = {"": "", "decided": "", "cap": " (at the cap)", "budget": " (at the budget)"}
FIGURES = ("ratio", "99 % interval", "pairs", "could be seen")


def _figures(c: Comparison | None) -> list[str | None]:
    """Ratio, interval, how many, and what could have been seen."""
    if c is None:
        return [None] * 4
    effect = percent(c.smallest_effect)
    return [f"{c.ratio:.3f}", f"[{c.low:.3f}, {c.high:.3f}]", f"{c.n}{STOPS[c.stop]}", effect]


def _medians(c: Comparison | None) -> tuple[float | None, float | None]:
    """Seconds of a call of a and of b."""
    return c.medians if c else (None, None)


def _faint(some: Iterable[str]) -> None:
    for each in some:
        console().print(escape(each), style=FAINT)


def pairs_rows(results: Sequence[Compared], against: Variant) -> Iterator[tidy.Row]:
    """A row a problem: the time of one variant over the other's, and the verdict."""
    for one in results:
        c = one.comparison
        against_s, median_s = _medians(c)
        yield {
            "variant": one.variant,
            "computes": one.computes,
            "against": one.against,
            "against_computes": against.computes,
            **tidy.of_problem(one.problem),
            "verdict": str(c.verdict) if c else one.status.replace("_", " "),
            **tidy.flat({"median_s": median_s, "against_s": against_s}),
            **tidy.of_comparison(c),
            "reason": one.why,
        }


def show_pairs(results: Sequence[Compared], judged: Variant, against: Variant) -> None:
    """The table, and how often which verdict fell."""
    right = (f"{judged.label} ms", f"{against.label} ms", *FIGURES, "margin")
    rows = []
    for one in results:
        c = one.comparison
        verdict = Styled(c.verdict, tables.VERDICTS[c.verdict]) if c else Styled(one.status, FAINT)
        times, margin = map(ms, reversed(_medians(c))), percent(c.margin) if c else None
        rows.append((str(one.problem), verdict, *times, *_figures(c), margin))
    heads = columns("problem", "verdict", *right, right=right, wrap=("problem", "verdict", "pairs"))
    tables.show(Table("", heads, rows))
    _faint(f"{one.problem}: {one.status}: {one.why}" for one in results if not one.comparison)
    many = ", ".join(f"{verdict} on {n}" for verdict, n in counts(results).items())
    problems = counted(len(results), "problem")
    names = " against ".join(name_and_kind(row.label, row.computes) for row in (judged, against))
    console().print(escape(f"{names}, {problems}: {many}"))


def runs_rows(both: RunsComparison) -> Iterator[tidy.Row]:
    """A row a measurement of both runs: b's time over a's, unpaired, and the verdict."""
    for cell in both.cells:
        c = cell.comparison
        figures = tidy.of_comparison(c)
        yield {
            "variant": cell.variant,
            "computes": cell.computes,
            **tidy.of_problem(cell.problem),
            "verdict": str(c.verdict) if c else change_of(cell) or "no verdict",
            "status_a": cell.status_a.replace("_", " "),
            "status_b": cell.status.replace("_", " "),
            **{"samples" if name == "pairs" else name: x for name, x in figures.items()},
            "memory_ratio": cell.memory_ratio,
            "reason": _reasons(cell),
            "notes": "; ".join(cell.notes),
        }


def _reasons(cell: Compared) -> str:
    """Why a side has no time, a's first."""
    sides = (("a", cell.why_a), ("b", cell.why))
    return "; ".join(f"{side}: {why}" for side, why in sides if why)


def runs(both: RunsComparison, whole: bool) -> None:
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

    def alike(cell: Compared) -> int:
        if cell.comparison is None:
            return 0 if change_of(cell) else 4
        return {Verdict.SLOWER: 1, Verdict.FASTER: 2}.get(cell.comparison.verdict, 3)

    many = len(both.cells) > MOST and not whole
    cells = sorted(both.cells, key=alike)[:MOST] if many else both.cells
    rows = []
    for cell in cells:
        if (c := cell.comparison) is not None:
            verdict = Styled(f"{c.verdict}, unpaired", tables.VERDICTS[c.verdict])
        else:
            style = {"worse": BAD, "better": GOOD}.get(change_of(cell), FAINT)
            verdict = Styled(f"{cell.status_a} → {cell.status}", style)
        memory = None if cell.memory_ratio is None else f"{cell.memory_ratio:.3g}"
        name = name_with_star(cell.variant, cell.computes)
        rows.append((name, str(cell.problem), verdict, *_figures(c), memory))
    right = ("ratio", "99 % interval", "samples", "could be seen", "memory")
    wrap = ("problem", "verdict")
    tables.show(
        Table("", columns("variant", "problem", "verdict", *right, right=right, wrap=wrap), rows)
    )
    _faint([*_footnote(cells), *_run_remarks(both, cells)])
    ended = {"worse": "that ended worse", "better": "that ended better"}
    many_of = [(n, word) for word, n in both.counts().items() if n or word not in ended]
    out.print(", ".join(f"{n} {ended.get(word, word)}" for n, word in many_of))


def _footnote(cells: Iterable[Compared]) -> Iterator[str]:
    """A line for the names with a star, where there are some."""
    kinds = dict.fromkeys(cell.computes for cell in cells if cell.computes not in ("", EXACT))
    if kinds:
        yield f"{OTHER} {NOT_SOFTMAX}: {', '.join(kinds)}"


def _run_remarks(both: RunsComparison, cells: Sequence[Compared]) -> Iterator[str]:
    """Sentences below the table."""
    if rest := len(both.cells) - len(cells):
        yield f"{rest} more are not shown, those that differ least: --csv has them all"
    for cell in cells:
        if reasons := _reasons(cell):
            yield f"{cell.variant} on {cell.problem}: {reasons}"
    noisy = [{n.split(": ")[1] for n in c.notes if n[:3] in SIDES} for c in both.cells]
    if any(noisy):
        kinds = Counter(chain.from_iterable(noisy))
        each = ", ".join(f"{kind} ({n})" for kind, n in kinds.most_common())
        many = counted(sum(map(bool, noisy)), "measurement")
        yield f"{many} noisy in a or b, so nothing is decided of them: {each}; --json says of which"
    others = Counter(n for c in both.cells for n in c.notes if n[:3] not in SIDES)
    others.pop(UNDECIDED, None)
    yield from (f"{note}: {counted(n, 'measurement')}" for note, n in others.most_common())
    for side, names in (("a", both.only_a), ("b", both.only_b)):
        if names:
            yield f"only in {side}: {first_few(names, MANY)}"
    if both.alike:
        yield f"{counted(both.alike, 'measurement')} ended alike in both, without a time"
    if both.apart:
        middle, most = map(percent, both.apart)
        yield f"of what was timed in both, half are at most {middle} apart, nine in ten {most}"


def plan(cells: Sequence[Cell], about_s: float, budget_s: float) -> str:
    """A sentence before it starts."""
    runs = [cell for cell in cells if cell.left_out is None]
    return (
        f"making {counted(len(runs), 'comparison')} of "
        f"{counted(len({cell.variant.label for cell in runs}), 'variant')}, in {LOOKS[0]} to "
        f"{LOOKS[-1]} rounds, a new process each; about {roughly(about_s)}, "
        f"{duration(len(runs) * budget_s)} at the most"
    )


def commits(both: CommitsComparison) -> None:
    """Head against base."""
    out = console()
    for name, commit in (("base", both.a), ("head", both.b)):
        out.print(escape(f"{name}  {commit}  {commit.subject}"))
    changed = ", ".join(both.changed) or "nothing that is measured"
    out.print(escape(f"changed in between: {changed}"))
    out.print(f"\nhead's time over base's, in pairs; the margin is {percent(both.margin)}\n")
    tables.show(_commits_table(both.judged(), STYLES))
    _faint([*_footnote(both.cells), *_commits_remarks(both)])
    out.print(_verdict_counts(both))


def _commits_table(
    cells: Iterable[tuple[Compared, CommitVerdict, str]], styles: Mapping[CommitVerdict, str]
) -> Table:
    """A row a cell: the verdict on head, and the pairs behind it."""
    right = ("base ms", "head ms", *FIGURES)
    rows = []
    for cell, verdict, _ in cells:
        head_is = Styled(str(verdict), styles.get(verdict, FAINT))
        problem = str(cell.problem)
        name = name_with_star(cell.variant, cell.computes)
        c = cell.comparison
        rows.append((name, problem, head_is, *map(ms, _medians(c)), *_figures(c)))
    wrap = ("problem", "head is", "pairs")
    return Table("", columns("variant", "problem", "head is", *right, right=right, wrap=wrap), rows)


def commits_rows(both: CommitsComparison) -> Iterator[tidy.Row]:
    """A row a measurement: the verdict on head, and the pairs behind it."""
    for cell, verdict, why in both.judged():
        base_s, head_s = _medians(cell.comparison)
        yield {
            "variant": cell.variant,
            "computes": cell.computes,
            **tidy.of_problem(cell.problem),
            "verdict": str(verdict),
            **tidy.flat({"base_s": base_s, "head_s": head_s}),
            **tidy.of_comparison(cell.comparison),
            "reason": why,
        }


def markdown(both: CommitsComparison) -> str:
    """The same, for a comment on a pull request: what did not change is folded away."""
    loud = [each for each in both.judged() if each[1] not in QUIET]
    quiet = [each for each in both.judged() if each[1] in QUIET]
    bold = dict.fromkeys(FINDINGS, BOLD)
    table, folded = (tables.to_markdown(_commits_table(x, bold)) for x in (loud, quiet))
    lines = [f"### Attention, {both.a} to {both.b}: {_verdict_counts(both)}", ""]
    lines.append(table if loud else "Nothing that was compared has changed.")
    if quiet:
        summary = f"<details><summary>{len(quiet)} others</summary>"
        lines += ["", summary, "", folded, "", "</details>"]
    if remarks := [*_footnote(both.cells), *_commits_remarks(both)]:
        lines += ["", *(f"- {tables.markdown_text(text)}" for text in remarks)]
    under = f"Time of head over base in pairs of calls, margin {percent(both.margin)}"
    return "\n".join([*lines, "", f"<sub>{under}</sub>"])


def _verdict_counts(both: CommitsComparison) -> str:
    return ", ".join(f"{n} {word}" for word, n in both.counts().items()) or "nothing to compare"


def _commits_remarks(both: CommitsComparison) -> Iterator[str]:
    for word, names in (("added", both.added), ("removed", both.removed)):
        if names:
            yield f"{word}: {', '.join(names)}"
    for cell, _, why in both.judged():
        if why:
            yield f"{cell.variant} on {cell.problem}: {why}"


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
