"""Two variants, two runs, or two commits compared; and what asv's results show of many commits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from attnbench.answer.ranking import regime, regime_on_device
from attnbench.core.stats import Comparison, Verdict
from attnbench.features.commits.pairs import FINDINGS, CommitVerdict, PullRequest
from attnbench.features.commits.rounds import LOOKS
from attnbench.report.tables import (
    BAD,
    FAINT,
    GOOD,
    Styled,
    Table,
    columns,
    console,
    show,
)
from attnbench.sweep.compare import Compared, counts
from attnbench.sweep.plan import Cell, duration

if TYPE_CHECKING:
    from attnbench.answer.compare_runs import ComparedCell, RunsComparison
    from attnbench.features.commits.asv_report import CommitHistory, Moved
    from attnbench.features.commits.instructions import InstructionCounts
    from attnbench.features.commits.pairs import CommitCell, CommitsComparison

STYLE = {
    Verdict.FASTER: GOOD,
    Verdict.SLOWER: BAD,
    Verdict.EQUIVALENT: "bold",
    Verdict.INCONCLUSIVE: FAINT,
}
HEAD_STYLE = {
    **dict.fromkeys(FINDINGS, BAD),
    CommitVerdict.IMPROVED: GOOD,
    CommitVerdict.MENDED: GOOD,
    CommitVerdict.ADDED: GOOD,
    CommitVerdict.UNCHANGED: "bold",
}
MANY, MANY_BENCHMARKS = 8, 12
"""Cells of one side alone, and benchmarks of a commit, that are named; the rest is counted."""
MOST = 400
"""Rows of two runs at most; of more, those that differ come first."""
NOTHING = "–"
WORDS = ("problem", "verdict", "pairs")
"""Columns that may wrap."""
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
    rows: list[tuple[Any, ...]] = []
    for one in found:
        where = str(one.problem)
        if one.pairs is None:
            rows.append((where, Styled(one.status, FAINT), *[None] * len(right)))
            continue
        c = one.pairs.comparison
        against_ms, judged_ms = _medians_ms(one)
        rows.append(
            (
                where,
                Styled(c.verdict, STYLE[c.verdict]),
                judged_ms,
                against_ms,
                f"{c.ratio:.3f}",
                f"{c.low:.3f}–{c.high:.3f}",
                f"{c.n}{STOPS[one.pairs.stop]}",
                f"{c.margin:.1%}",
                f"{c.smallest_effect:.1%}",
            )
        )
    show(Table("", columns("problem", "verdict", *right, right=right, wrap=WORDS), rows))
    out = console()
    for one in found:
        if one.pairs is None:
            out.print(escape(f"{one.status}: {one.problem}: {one.why}"), style=FAINT)
    many = ", ".join(f"{verdict} on {n}" for verdict, n in counts(found).items())
    problems = f"{len(found)} problem" + "s" * (len(found) != 1)
    out.print(escape(f"{judged} against {against}, {problems}: {many}"))


def runs(found: RunsComparison) -> None:
    """Run b against run a."""
    out = console()
    out.print(escape(f"a  {found.a}\nb  {found.b}\n"))
    if found.differences:
        names = ("the runs differ in", "a", "b")
        rows = [(one.what, one.a, one.b) for one in found.differences]
        show(Table("", columns(*names, wrap=names), rows))
    else:
        out.print("machine, versions, settings and code are the same in both")
    out.print(
        f"\nb's time over a's, unpaired: the two were not measured in turn, so the margin is "
        f"{found.margin:.1%}\n"
    )
    right = ("ratio", "99 % interval", "samples", "could be seen", "memory")
    heads = columns("variant", "problem", "verdict", *right, right=right, wrap=WORDS)
    shown = _telling(found.cells)
    cells = [
        (
            cell.variant,
            regime_on_device(cell.problem),
            _run_verdict(cell),
            *_figures(cell.comparison),
            None if cell.memory_ratio is None else f"{cell.memory_ratio:.3g}",
        )
        for cell in shown
    ]
    show(Table("", heads, cells))
    _faint(_run_remarks(found, shown))
    _counted(found.counts())


# ---- two commits ---------------------------------------------------------------------------------


def plan(cells: Sequence[Cell], budget_s: float) -> str:
    """What is going to be done, in a sentence."""
    runs = [cell for cell in cells if cell.left_out is None]
    variants = len({cell.variant.label for cell in runs})
    return (
        f"comparing {_count(len(runs), 'cell')} of {_count(variants, 'variant')}, in {LOOKS[0]} to "
        f"{LOOKS[-1]} rounds, a new process each; {duration(len(runs) * budget_s)} at the most, a "
        "quarter of that as a rule"
    )


def commits(found: CommitsComparison) -> None:
    """Commit b against commit a, for ``compare``."""
    _ends(found, ("a", "b"), "nothing: impls is the same in both")
    _pairs_table(found, ("a", "b"), "verdict", [(c, _commit_verdict(c)) for c in found.cells])
    _faint(
        f"{c.variant} on {regime_on_device(c.problem)}: {c.why}"
        for c in found.cells
        if c.pairs is None
    )
    _counted(found.counts())


def pull_request(found: PullRequest) -> None:
    """Head against base, for ``history compare``."""
    _ends(found, ("base", "head"), "nothing that is measured")
    words = [
        (cell, Styled(_head_is(cell, verdict), HEAD_STYLE.get(verdict, FAINT)))
        for cell, verdict in found.judged()
    ]
    _pairs_table(found, ("base", "head"), "head is", words)
    _faint(_pull_request_remarks(found))
    console().print(_verdict_counts(found))


def _ends(found: CommitsComparison, names: tuple[str, str], nothing: str) -> None:
    """The two commits, the files that changed, and the margin."""
    out = console()
    for name, commit in zip(names, (found.a, found.b), strict=True):
        out.print(escape(f"{name}  {commit}  {commit.subject}"))
    out.print(escape(f"changed in between: {', '.join(found.changed) or nothing}"))
    a, b = names
    out.print(f"\n{b}'s time over {a}'s, in pairs; the margin is {found.margin:.1%}\n")


def _pairs_table(
    found: CommitsComparison,
    names: tuple[str, str],
    heading: str,
    cells: Sequence[tuple[CommitCell, Styled]],
) -> None:
    """A row a cell, with the verdict as given."""
    right = (*(f"{name} ms" for name in names), "ratio", "99 % interval", "pairs", "could be seen")
    rows = []
    for cell, verdict in cells:
        ratio, interval, n, seen = _figures(cell.comparison)
        if cell.pairs is not None:
            n += STOPS[cell.pairs.stop]
        where = regime_on_device(cell.problem)
        rows.append((cell.variant, where, verdict, *_medians_ms(cell), ratio, interval, n, seen))
    heads = columns("variant", "problem", heading, *right, right=right, wrap=WORDS)
    show(Table("", heads, rows))


def _medians_ms(cell: CommitCell | Compared) -> tuple[str, str]:
    """Of both sides."""
    if cell.pairs is None:
        return NOTHING, NOTHING
    a, b = (f"{statistics.median(x) * 1e3:.4g}" for x in (cell.pairs.a_s, cell.pairs.b_s))
    return a, b


def line(cell: CommitCell, a: str = "a", b: str = "b") -> str:
    """One cell of two commits as a sentence."""
    where = f"{cell.variant} on {regime_on_device(cell.problem)}"
    return f"{where}: {cell.comparison.sentence(a, b) if cell.comparison else cell.why}"


def _commit_verdict(cell: CommitCell) -> Styled:
    if cell.comparison is not None:
        return Styled(cell.comparison.verdict, STYLE[cell.comparison.verdict])
    sides = [side for side, why in (("a", cell.why_a), ("b", cell.why_b)) if why]
    style = BAD if sides == ["b"] else FAINT
    return Styled(f"not by {' nor '.join(sides)}", style)


def markdown(found: PullRequest) -> str:
    """The same, short, for a comment on a pull request: what did not change is folded away."""
    loud: list[tuple[CommitCell, CommitVerdict]] = []
    quiet: list[tuple[CommitCell, CommitVerdict]] = []
    for cell, verdict in found.judged():
        folded = verdict in (CommitVerdict.UNCHANGED, CommitVerdict.LEFT_OUT)
        (quiet if folded else loud).append((cell, verdict))
    lines = [f"### Attention, {found.a} to {found.b}: {_verdict_counts(found)}", ""]
    lines += _markdown_rows(loud) if loud else ["Nothing that was compared has changed."]
    if quiet:
        lines += [
            "",
            f"<details><summary>{len(quiet)} others</summary>",
            "",
            *_markdown_rows(quiet),
            "",
            "</details>",
        ]
    if remarks := list(_pull_request_remarks(found)):
        lines += ["", *(f"- {escape_markdown(text)}" for text in remarks)]
    lines += [
        "",
        f"<sub>Time of head over base in pairs of calls, margin {found.margin:.1%}; every cell "
        "passed the gate in both commits first. improved: FASTER, worse: SLOWER, unchanged: "
        "EQUIVALENT, can't tell: INCONCLUSIVE.</sub>",
    ]
    return "\n".join(lines)


def _markdown_rows(cells: Sequence[tuple[CommitCell, CommitVerdict]]) -> list[str]:
    made = [
        "| variant | problem | head is | base ms | head ms | ratio | 99 % interval |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for cell, verdict in cells:
        word = _head_is(cell, verdict)
        word = f"**{word}**" if verdict in FINDINGS else word
        names = map(escape_markdown, (cell.variant, regime_on_device(cell.problem)))
        row = [*names, word, *_medians_ms(cell), *_figures(cell.comparison)[:2]]
        made.append(f"| {' | '.join(row)} |")
    return made


def _head_is(cell: CommitCell, verdict: CommitVerdict) -> str:
    """The verdict on the commit, and that of the pairs behind it."""
    if cell.comparison is not None and verdict is not CommitVerdict.WRONG:
        return f"{verdict} ({cell.comparison.verdict})"
    return str(verdict)


def _verdict_counts(found: PullRequest) -> str:
    return ", ".join(f"{n} {word}" for word, n in found.counts().items()) or "no cells"


def _pull_request_remarks(found: PullRequest) -> Iterator[str]:
    for word, names in (("added", found.added), ("removed", found.removed)):
        if names:
            yield f"{word}: {', '.join(names)}"
    for cell, verdict in found.judged():
        where, c = f"{cell.variant} on {regime_on_device(cell.problem)}", cell.comparison
        if why := found.reason(cell):
            yield f"{where}: {why}"
        if verdict is CommitVerdict.UNDECIDED and c is not None:
            yield f"{where}: can't tell; {c.smallest_effect:.1%} would have been seen"


def escape_markdown(text: str) -> str:
    """Text that markdown and its tables leave as it is."""
    for mark in ("\\", "|", "`", "*", "_", "<"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _count(n: int, noun: str) -> str:
    """``1 cell``, ``2 cells``"""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _whole(instructions: int | None) -> str:
    return NOTHING if instructions is None else f"{instructions:,}"


# ---- instructions, and asv -----------------------------------------------------------------------


def instructions(found: InstructionCounts, *, markdown: bool) -> None:
    """Instructions of a call in both commits, and why there are none."""
    head = ("variant", "problem", "base", "head", "change")
    rows = [
        (
            one.variant,
            regime(one.problem),
            _whole(one.base),
            _whole(one.head),
            NOTHING if one.change is None else f"{one.change:+.2%}",
        )
        for one in found.cells
    ]
    whys = [
        f"{one.variant} on {regime(one.problem)}: {commit} {why}"
        for one in found.cells
        for commit, why in ((found.base, one.why_base), (found.head, one.why_head))
        if why
    ]
    if markdown:
        print(
            "\n".join(
                [
                    f"### Instructions of a call, {found.base} to {found.head}",
                    "",
                    f"| {' | '.join(head)} |",
                    "|---|---|--:|--:|--:|",
                    *(f"| {' | '.join(map(escape_markdown, row))} |" for row in rows),
                    *([""] if whys else []),
                    *(f"- {escape_markdown(why)}" for why in whys),
                ]
            )
        )
        return
    out = console()
    for side, commit in (("base", found.base), ("head", found.head)):
        out.print(escape(f"{side}  {commit}  {commit.subject}"))
    show(Table("", columns(*head, right=head[2:], wrap=["problem"]), rows))
    for why in whys:
        out.print(escape(why), style=FAINT)
    out.print(
        "instructions of a call, by valgrind's callgrind; they are no time, and below 0.1 % "
        "a change is noise",
        style=FAINT,
    )


def history(found: Sequence[CommitHistory], factor: float) -> None:
    """What asv's results show: a line a commit, oldest first, and what moved."""
    right = ("measured", "skipped", "failed", "slower", "faster")
    rows = []
    for one in found:
        counts = (one.measured, one.skipped, len(one.failed), len(one.slower), len(one.faster))
        styles = ("", FAINT, BAD, BAD, GOOD)
        shown = [Styled(n, style if n else "") for n, style in zip(counts, styles, strict=True)]
        rows.append((one.commit.sha[:8], one.commit.subject, *shown))
    show(Table("", columns("commit", "subject", *right, right=right, wrap=["subject"]), rows))
    out = console()
    for one in found:
        for text in _moves(one):
            out.print(escape(f"{one.commit.sha[:8]} {text}"))
    out.print(
        escape(
            f"slower and faster: than the commit before, by asv's rule and more than {factor:g} "
            "times, and further than anything moved on a commit that changed nothing in impls; "
            "not in pairs, though: 'attnbench history compare' decides"
        ),
        style=FAINT,
    )


def _moves(one: CommitHistory) -> Iterator[str]:
    groups: list[tuple[str, Sequence[Moved]]] = [("slower", one.slower), ("faster", one.faster)]
    for word, moved in groups:
        for each in sorted(moved, key=lambda m: -m.far)[:MANY_BENCHMARKS]:
            yield f"{word}: {each.name}: {each.before:.4g} → {each.after:.4g} ({each.ratio:.3f})"
        if len(moved) > MANY_BENCHMARKS:
            yield f"{word}: {len(moved) - MANY_BENCHMARKS} more"
    if one.by_itself:
        most = max(one.by_itself, key=lambda m: m.far)
        nothing = "" if one.changed else "nothing in impls has changed, and yet "
        yield f"{nothing}{len(one.by_itself)} moved by themselves, by up to {most.ratio:.3f}"
    for name in one.newly_failed[:MANY_BENCHMARKS]:
        yield f"fails now: {name}"
    if len(one.newly_failed) > MANY_BENCHMARKS:
        yield f"fails now: {len(one.newly_failed) - MANY_BENCHMARKS} more"


# ---- parts of tables -----------------------------------------------------------------------------


def _figures(c: Comparison | None) -> tuple[str, str, str, str]:
    """Ratio, interval, how many, and what could have been seen."""
    if c is None:
        return (NOTHING,) * 4
    return f"{c.ratio:.3f}", f"{c.low:.3f}–{c.high:.3f}", str(c.n), f"{c.smallest_effect:.1%}"


def _run_verdict(cell: ComparedCell) -> Styled:
    across = ", across devices" * cell.across_devices
    if cell.comparison is not None:
        verdict = cell.comparison.verdict
        return Styled(f"{verdict}, unpaired{across}", STYLE[verdict])
    if cell.status_a is cell.status_b:
        return Styled(f"no verdict{across}", FAINT)
    style = {"worse": BAD, "better": GOOD}.get(cell.change, FAINT)
    return Styled(f"{cell.status_a} → {cell.status_b}{across}", style)


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


def _faint(some: Iterable[str]) -> None:
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
