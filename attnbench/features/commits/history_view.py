"""Commits: what asv's results say of each, and what a pull request does, for people and for it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.markup import escape

from attnbench.answer.ranking import regime, regime_on_device
from attnbench.features.commits.instructions import InstructionCounts
from attnbench.features.commits.pairs import CommitCell
from attnbench.features.commits.rounds import FINDINGS, LOOKS, Change, Changes, CommitVerdict
from attnbench.features.commits.told import CommitHistory, Moved
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put
from attnbench.sweep.plan import Cell, duration

NOTHING = "–"
MANY = 12
"""Benchmarks of a commit that are named; the rest is counted."""
STYLE = {
    CommitVerdict.WRONG: BAD,
    CommitVerdict.LOST: BAD,
    CommitVerdict.WORSE: BAD,
    CommitVerdict.IMPROVED: GOOD,
    CommitVerdict.MENDED: GOOD,
    CommitVerdict.ADDED: GOOD,
    CommitVerdict.UNCHANGED: "bold",
}


# ---- asv's results -------------------------------------------------------------------------------


def commits(found: Sequence[CommitHistory], factor: float) -> None:
    """A line a commit, oldest first, and what moved."""
    right = ("measured", "skipped", "failed", "slower", "faster")
    made = grid("commit", "subject", *right, right=right, words=["subject"])
    for one in found:
        counts = (one.measured, one.skipped, len(one.failed), len(one.slower), len(one.faster))
        colors = ("", FAINT, BAD, BAD, GOOD)
        shown = [_coloured(n, color) for n, color in zip(counts, colors, strict=True)]
        made.add_row(one.commit.sha[:8], escape(one.commit.subject), *shown)
    put(made)
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


def _coloured(n: int, color: str) -> str:
    return f"[{color}]{n}[/]" if n and color else str(n)


def _moves(one: CommitHistory) -> Iterator[str]:
    groups: list[tuple[str, Sequence[Moved]]] = [("slower", one.slower), ("faster", one.faster)]
    for word, moved in groups:
        for each in sorted(moved, key=lambda m: -m.far)[:MANY]:
            yield f"{word}: {each.name}: {each.before:.4g} → {each.after:.4g} ({each.ratio:.3f})"
        if len(moved) > MANY:
            yield f"{word}: {len(moved) - MANY} more"
    if one.by_itself:
        most = max(one.by_itself, key=lambda m: m.far)
        nothing = "" if one.changed else "nothing in impls has changed, and yet "
        yield f"{nothing}{len(one.by_itself)} moved by themselves, by up to {most.ratio:.3f}"
    for name in one.newly_failed[:MANY]:
        yield f"fails now: {name}"
    if len(one.newly_failed) > MANY:
        yield f"fails now: {len(one.newly_failed) - MANY} more"


# ---- two commits ---------------------------------------------------------------------------------


def plan(cells: Sequence[Cell], budget_s: float) -> str:
    """What is going to be done, in a sentence."""
    runs = [cell for cell in cells if cell.left_out is None]
    variants = len({cell.variant.label for cell in runs})
    return (
        f"comparing {len(runs)} cell{'s' * (len(runs) != 1)} of {variants} "
        f"variant{'s' * (variants != 1)}, in {LOOKS[0]} to {LOOKS[-1]} rounds, a new process each; "
        f"{duration(len(runs) * budget_s)} at the most, a quarter of that as a rule"
    )


def line(cell: CommitCell) -> str:
    """One cell as a sentence."""
    why = "; ".join(dict.fromkeys(filter(None, (cell.why_a, cell.why_b))))
    said = cell.comparison.sentence("base", "head") if cell.comparison else why
    return f"{cell.variant} on {regime_on_device(cell.problem)}: {said}"


def changes(found: Changes) -> None:
    """The table of a pull request on the terminal."""
    out, compared = console(), found.compared
    for side, commit in (("base", compared.a), ("head", compared.b)):
        out.print(escape(f"{side}  {commit}  {commit.subject}"))
    files = ", ".join(compared.changed) or "nothing that is measured"
    out.print(escape(f"changed in between: {files}"))
    out.print(f"\nhead's time over base's, in pairs; the margin is {compared.margin:.1%}\n")
    right = ("base ms", "head ms", "ratio", "99 % interval", "pairs")
    made = grid("variant", "problem", "head is", *right, right=right, words=["problem"])
    for one in found.cells:
        style = STYLE.get(one.said, FAINT)
        made.add_row(
            escape(one.cell.variant),
            escape(regime_on_device(one.cell.problem)),
            f"[{style}]{_words(one)}[/]",
            *_figures(one.cell),
        )
    put(made)
    for text in _remarks(found):
        out.print(escape(text), style=FAINT)
    out.print(", ".join(f"{n} {word}" for word, n in found.counts().items()) or "no cells")


def instructions(found: InstructionCounts, *, markdown: bool) -> None:
    """Instructions of a call in both commits, and why there are none."""
    head = ("variant", "problem", "base", "head", "change")
    rows = [
        (
            one.variant,
            regime(one.problem),
            _count(one.base),
            _count(one.head),
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
                    *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
                    *([""] if whys else []),
                    *(f"- {_cell(why)}" for why in whys),
                ]
            )
        )
        return
    out = console()
    for side, commit in (("base", found.base), ("head", found.head)):
        out.print(escape(f"{side}  {commit}  {commit.subject}"))
    made = grid(*head, right=head[2:], words=["problem"])
    for row in rows:
        made.add_row(*map(escape, row))
    put(made)
    for why in whys:
        out.print(escape(why), style=FAINT)
    out.print(
        "instructions of a call, by valgrind's callgrind; they are no time, and below 0.1 % "
        "a change is noise",
        style=FAINT,
    )


def _count(instructions: int | None) -> str:
    return NOTHING if instructions is None else f"{instructions:,}"


def markdown(found: Changes) -> str:
    """The same, short, for a comment on a pull request: what did not change is folded away."""
    compared = found.compared
    loud = [
        one
        for one in found.cells
        if one.said not in (CommitVerdict.UNCHANGED, CommitVerdict.LEFT_OUT)
    ]
    quiet = [
        one for one in found.cells if one.said in (CommitVerdict.UNCHANGED, CommitVerdict.LEFT_OUT)
    ]
    counts = ", ".join(f"{n} {word}" for word, n in found.counts().items()) or "no cells"
    lines = [f"### Attention, {compared.a} to {compared.b}: {counts}", ""]
    lines += _rows(loud) if loud else ["Nothing that was compared has changed."]
    if quiet:
        lines += [
            "",
            f"<details><summary>{len(quiet)} others</summary>",
            "",
            *_rows(quiet),
            "",
            "</details>",
        ]
    if remarks := list(_remarks(found)):
        lines += ["", *(f"- {_cell(text)}" for text in remarks)]
    lines += [
        "",
        f"<sub>Time of head over base in pairs of calls, margin {compared.margin:.1%}; every cell "
        "passed the gate in both commits first. improved: FASTER, worse: SLOWER, unchanged: "
        "EQUIVALENT, can't tell: INCONCLUSIVE.</sub>",
    ]
    return "\n".join(lines)


def _rows(some: Sequence[Change]) -> list[str]:
    made = [
        "| variant | problem | head is | base ms | head ms | ratio | 99 % interval |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for one in some:
        word = f"**{_words(one)}**" if one.said in FINDINGS else _words(one)
        where = regime_on_device(one.cell.problem)
        row = [_cell(one.cell.variant), _cell(where), word, *_figures(one.cell)[:4]]
        made.append(f"| {' | '.join(row)} |")
    return made


def _words(one: Change) -> str:
    """The word, and the verdict behind it."""
    comparison = one.cell.comparison
    if comparison is not None and one.said is not CommitVerdict.WRONG:
        return f"{one.said} ({comparison.verdict})"
    return str(one.said)


def _figures(cell: CommitCell) -> tuple[str, str, str, str, str]:
    if cell.pairs is None:
        return (NOTHING,) * 5
    a, b = (f"{statistics.median(taken) * 1e3:.4g}" for taken in (cell.pairs.a_s, cell.pairs.b_s))
    c = cell.pairs.comparison
    return a, b, f"{c.ratio:.3f}", f"{c.low:.3f}–{c.high:.3f}", str(c.n)


def _remarks(found: Changes) -> Iterator[str]:
    for word, names in (("added", found.added), ("removed", found.removed)):
        if names:
            yield f"{word}: {', '.join(names)}"
    for one in found.cells:
        if one.why:
            yield f"{one.cell.variant} on {regime_on_device(one.cell.problem)}: {one.why}"
        c = one.cell.comparison
        if one.said is CommitVerdict.UNTOLD and c is not None:
            yield (
                f"{one.cell.variant} on {regime_on_device(one.cell.problem)}: can't tell; "
                f"{c.smallest_effect:.1%} would have been seen"
            )


def _cell(text: str) -> str:
    """Text that markdown and its tables leave as it is."""
    for mark in ("\\", "|", "`", "*", "_", "<"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
