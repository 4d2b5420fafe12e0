"""Two variants, two runs, or two commits compared; and what asv's results show of many commits."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from rich.markup import escape

from attnbench.answer.compare_runs import UNDECIDED, ComparedCell, RunsComparison
from attnbench.answer.ranking import EXACT, problem_and_device
from attnbench.core.checkout import Commit
from attnbench.core.format import (
    NOT_SOFTMAX,
    OTHER,
    counted,
    duration,
    ms,
    name_and_kind,
    name_with_star,
    percent,
    roughly,
)
from attnbench.core.stats import Comparison, Pairs, Verdict
from attnbench.features.commits.asv_interface import CommitHistory
from attnbench.features.commits.pairs import FINDINGS, CommitCell, CommitsComparison, CommitVerdict
from attnbench.features.commits.rounds import LOOKS
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


def _figures(c: Comparison | None, stop: str = "") -> list[str | None]:
    """Ratio, interval, how many, and what could have been seen."""
    if c is None:
        return [None] * 4
    seen = percent(c.smallest_effect)
    return [f"{c.ratio:.3f}", f"[{c.low:.3f}, {c.high:.3f}]", f"{c.n}{STOPS[stop]}", seen]


def _pairs_figures(pairs: Pairs | None) -> list[str | None]:
    """The medians of a and b in milliseconds, and the figures of the comparison."""
    if pairs is None:
        return [None] * 6
    medians = [ms(statistics.median(x)) for x in (pairs.a_s, pairs.b_s)]
    return [*medians, *_figures(pairs.comparison, pairs.stop)]


def _faint(some: Iterable[str]) -> None:
    for each in some:
        console().print(escape(each), style=FAINT)


def _medians(pairs: Pairs | None, ahead: str, behind: str) -> tidy.Row:
    """The medians of a and b, under these names of their fields."""
    seconds = pairs and (statistics.median(pairs.a_s), statistics.median(pairs.b_s))
    return tidy.flat(dict(zip((ahead, behind), seconds or (None, None), strict=True)))


def pairs_rows(
    problems: Sequence[Compared], judged: Variant, against: Variant
) -> Iterator[tidy.Row]:
    """A row a problem: the time of one variant over the other's, and the verdict."""
    for one in problems:
        c = one.comparison
        medians = _medians(one.pairs, "against_s", "median_s")
        yield {
            "variant": judged.label,
            "computes": judged.computes,
            "against": against.label,
            "against_computes": against.computes,
            **tidy.of_problem(one.problem),
            "verdict": str(c.verdict) if c else one.status.words,
            **dict(reversed(medians.items())),
            **tidy.of_comparison(c),
            "reason": one.why,
        }


def show_pairs(found: Sequence[Compared], judged: Variant, against: Variant) -> None:
    """The table, and how often which verdict fell."""
    right = (f"{judged.label} ms", f"{against.label} ms", *FIGURES, "margin")
    rows = []
    for one in found:
        c = one.comparison
        against_ms, judged_ms, *rest = _pairs_figures(one.pairs)
        verdict = Styled(one.status, FAINT)
        verdict = Styled(c.verdict, tables.VERDICTS[c.verdict]) if c else verdict
        margin = percent(c.margin) if c else None
        rows.append((str(one.problem), verdict, judged_ms, against_ms, *rest, margin))
    heads = columns("problem", "verdict", *right, right=right, wrap=("problem", "verdict", "pairs"))
    tables.show(Table("", heads, rows))
    _faint(f"{one.problem}: {one.status}: {one.why}" for one in found if one.pairs is None)
    many = ", ".join(f"{verdict} on {n}" for verdict, n in counts(found).items())
    problems = counted(len(found), "problem")
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
            "verdict": str(c.verdict) if c else cell.change or "no verdict",
            "status_a": cell.status_a.words,
            "status_b": cell.status_b.words,
            **{"samples" if name == "pairs" else name: x for name, x in figures.items()},
            "memory_ratio": cell.memory_ratio,
            "across_devices": cell.across_devices,
            "reason": cell.reason,
            "notes": "; ".join(cell.notes),
        }


def runs(found: RunsComparison, whole: bool) -> None:
    """Run b against run a; ``whole``: every row, as a spreadsheet needs it."""
    out = console()
    out.print(escape(f"a  {found.a}\nb  {found.b}\n"), soft_wrap=True)
    if found.differences:
        names = ("the runs differ in", "a", "b")
        rows = [(one.what, one.a, one.b) for one in found.differences]
        tables.show(Table("", columns(*names, wrap=names), rows))
    else:
        out.print("machine, versions, settings and code are the same in both")
    out.print(
        f"\nb's time over a's, unpaired: the two were not measured in turn, so the margin is "
        f"{percent(found.margin)}\n"
    )

    def alike(cell: ComparedCell) -> int:
        if cell.comparison is None:
            return 4 if cell.status_a is cell.status_b else 0
        return {Verdict.SLOWER: 1, Verdict.FASTER: 2}.get(cell.comparison.verdict, 3)

    many = len(found.cells) > MOST and not whole
    shown = sorted(found.cells, key=alike)[:MOST] if many else found.cells
    cells = []
    for cell in shown:
        across, c = ", across devices" * cell.across_devices, cell.comparison
        if c is not None:
            said = Styled(f"{c.verdict}, unpaired{across}", tables.VERDICTS[c.verdict])
        elif cell.status_a is cell.status_b:
            said = Styled(f"no verdict{across}", FAINT)
        else:
            style = {"worse": BAD, "better": GOOD}.get(cell.change, FAINT)
            said = Styled(f"{cell.status_a} → {cell.status_b}{across}", style)
        memory = None if cell.memory_ratio is None else f"{cell.memory_ratio:.3g}"
        name = name_with_star(cell.variant, cell.computes)
        cells.append((name, problem_and_device(cell.problem), said, *_figures(c), memory))
    right = ("ratio", "99 % interval", "samples", "could be seen", "memory")
    wrap = ("problem", "verdict")
    tables.show(
        Table("", columns("variant", "problem", "verdict", *right, right=right, wrap=wrap), cells)
    )
    _faint([*_footnote(shown), *_run_remarks(found, shown)])
    ended = {"worse": "that ended worse", "better": "that ended better"}
    many_of = [(n, word) for word, n in found.counts().items() if n or word not in ended]
    out.print(", ".join(f"{n} {ended.get(word, word)}" for n, word in many_of))


def _footnote(cells: Iterable[ComparedCell | CommitCell]) -> Iterator[str]:
    """What the names with a star compute, where there are some."""
    kinds = dict.fromkeys(cell.computes for cell in cells if cell.computes not in ("", EXACT))
    if kinds:
        yield f"{OTHER} {NOT_SOFTMAX}: {', '.join(kinds)}"


def _run_remarks(found: RunsComparison, shown: Sequence[ComparedCell]) -> Iterator[str]:
    """What a table of numbers leaves out."""
    if rest := len(found.cells) - len(shown):
        yield f"{rest} more are not shown, those that differ least: --csv has them all"
    for cell in shown:
        if cell.reason:
            yield f"{cell.variant} on {problem_and_device(cell.problem)}: {cell.reason}"
    noisy = [{n.split(": ")[1] for n in c.notes if n[:3] in SIDES} for c in found.cells]
    if any(noisy):
        kinds = Counter(chain.from_iterable(noisy))
        each = ", ".join(f"{kind} ({n})" for kind, n in kinds.most_common())
        many = counted(sum(map(bool, noisy)), "measurement")
        yield f"{many} noisy in a or b, so nothing is decided of them: {each}; --json says of which"
    others = Counter(n for c in found.cells for n in c.notes if n[:3] not in SIDES)
    others.pop(UNDECIDED, None)
    yield from (f"{note}: {counted(n, 'measurement')}" for note, n in others.most_common())
    for side, names in (("a", found.only_a), ("b", found.only_b)):
        if names:
            more = f"; and {len(names) - MANY} more" if len(names) > MANY else ""
            yield f"only in {side}: {'; '.join(names[:MANY])}{more}"
    if found.alike:
        yield f"{counted(found.alike, 'measurement')} ended alike in both, without a time"
    if found.apart:
        middle, most = map(percent, found.apart)
        yield f"of what was timed in both, half are at most {middle} apart, nine in ten {most}"


def plan(cells: Sequence[Cell], about_s: float, budget_s: float) -> str:
    """What is going to be done, in a sentence."""
    runs = [cell for cell in cells if cell.left_out is None]
    return (
        f"making {counted(len(runs), 'comparison')} of "
        f"{counted(len({cell.variant.label for cell in runs}), 'variant')}, in {LOOKS[0]} to "
        f"{LOOKS[-1]} rounds, a new process each; about {roughly(about_s)}, "
        f"{duration(len(runs) * budget_s)} at the most"
    )


def commits(found: CommitsComparison, names: tuple[str, str]) -> None:
    """The second commit against the first, by the names given."""
    out, (a, b) = console(), names
    _two(names, (found.a, found.b))
    changed = ", ".join(found.changed) or "nothing that is measured"
    out.print(escape(f"changed in between: {changed}"))
    out.print(f"\n{b}'s time over {a}'s, in pairs; the margin is {percent(found.margin)}\n")
    tables.show(_commits_table(found.judged(), names, STYLES))
    _faint([*_footnote(found.cells), *_commits_remarks(found)])
    out.print(_verdict_counts(found))


def _commits_table(
    cells: Iterable[tuple[CommitCell, CommitVerdict, str]],
    names: tuple[str, str],
    styles: Mapping[CommitVerdict, str],
) -> Table:
    """A row a cell: the verdict on the commit, and the pairs behind it."""
    a, b = names
    right, word = (f"{a} ms", f"{b} ms", *FIGURES), f"{b} is"
    rows = []
    for cell, verdict, _ in cells:
        head_is = Styled(str(verdict), styles.get(verdict, FAINT))
        problem = problem_and_device(cell.problem)
        name = name_with_star(cell.variant, cell.computes)
        rows.append((name, problem, head_is, *_pairs_figures(cell.pairs)))
    wrap = ("problem", word, "pairs")
    return Table("", columns("variant", "problem", word, *right, right=right, wrap=wrap), rows)


def commits_rows(both: CommitsComparison, names: tuple[str, str]) -> Iterator[tidy.Row]:
    """A row a measurement: the verdict on the second commit, and the pairs behind it."""
    a, b = names
    for cell, verdict, why in both.judged():
        yield {
            "variant": cell.variant,
            "computes": cell.computes,
            **tidy.of_problem(cell.problem),
            "verdict": str(verdict),
            **_medians(cell.pairs, f"{a}_s", f"{b}_s"),
            **tidy.of_comparison(cell.comparison),
            "reason": why,
        }


def markdown(found: CommitsComparison) -> str:
    """The same, for a comment on a pull request: what did not change is folded away."""
    loud = [each for each in found.judged() if each[1] not in QUIET]
    quiet = [each for each in found.judged() if each[1] in QUIET]
    bold, names = dict.fromkeys(FINDINGS, BOLD), ("base", "head")
    table, folded = (tables.to_markdown(_commits_table(x, names, bold)) for x in (loud, quiet))
    lines = [f"### Attention, {found.a} to {found.b}: {_verdict_counts(found)}", ""]
    lines.append(table if loud else "Nothing that was compared has changed.")
    if quiet:
        summary = f"<details><summary>{len(quiet)} others</summary>"
        lines += ["", summary, "", folded, "", "</details>"]
    if remarks := [*_footnote(found.cells), *_commits_remarks(found)]:
        lines += ["", *(f"- {tables.markdown_text(text)}" for text in remarks)]
    under = f"Time of head over base in pairs of calls, margin {percent(found.margin)}"
    return "\n".join([*lines, "", f"<sub>{under}</sub>"])


def _verdict_counts(found: CommitsComparison) -> str:
    return ", ".join(f"{n} {word}" for word, n in found.counts().items()) or "nothing to compare"


def _commits_remarks(found: CommitsComparison) -> Iterator[str]:
    for word, names in (("added", found.added), ("removed", found.removed)):
        if names:
            yield f"{word}: {', '.join(names)}"
    for cell, _, why in found.judged():
        if why:
            yield f"{cell.variant} on {problem_and_device(cell.problem)}: {why}"


def _two(names: tuple[str, str], commits: tuple[Commit, Commit]) -> None:
    for name, commit in zip(names, commits, strict=True):
        console().print(escape(f"{name}  {commit}  {commit.subject}"))


def history_rows(commits: Sequence[CommitHistory]) -> Iterator[tidy.Row]:
    """A row a commit, oldest first: how many benchmarks were measured, failed and moved."""
    counts = ("failed", "newly_failed", "slower", "faster", "by_itself")
    for one in commits:
        yield {
            "commit": one.commit.sha,
            "subject": one.commit.subject,
            "measured": one.measured,
            "skipped": one.skipped,
            **{name: len(getattr(one, name)) for name in counts},
        }


def history(found: Sequence[CommitHistory], factor: float) -> None:
    """What asv's results show: a line a commit, oldest first, and what moved."""
    right = {"measured": "", "skipped": FAINT, "failed": BAD, "slower": BAD, "faster": GOOD}
    rows, said = [], []
    for one in found:
        many = len(one.failed), len(one.slower), len(one.faster)
        styles = zip((one.measured, one.skipped, *many), right.values(), strict=True)
        shown = [Styled(n, style if n else "") for n, style in styles]
        rows.append((one.commit.sha[:8], one.commit.subject, *shown))
        slower, faster = (
            [f"{m.name}: {m.before:.4g} → {m.after:.4g} ({m.ratio:.3f})" for m in some]
            for some in (sorted(each, key=lambda m: -m.far) for each in (one.slower, one.faster))
        )
        texts, failed = list[str](), one.newly_failed
        for word, names in (("slower", slower), ("faster", faster), ("fails now", failed)):
            texts += [f"{word}: {name}" for name in names[:MANY]]
            texts += [f"{word}: {len(names) - MANY} more"] * (len(names) > MANY)
        if one.by_itself:
            most = max(one.by_itself, key=lambda m: m.far)
            nothing = "" if one.changed else "nothing that is measured has changed, and yet "
            many_moved = f"{len(one.by_itself)} moved by themselves"
            texts.append(f"{nothing}{many_moved}, by up to {most.ratio:.3f}")
        said += [f"{one.commit.sha[:8]} {text}" for text in texts]
    tables.show(
        Table("", columns("commit", "subject", *right, right=[*right], wrap=["subject"]), rows)
    )
    for text in said:
        console().print(escape(text))
    _faint(
        [
            f"slower and faster: by asv's rule, more than {factor:g} times, and further than where "
            "nothing changed; not in pairs, though: 'attnbench history compare' decides"
        ]
    )
