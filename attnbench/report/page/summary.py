"""The report in short, as Markdown: fit for a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnbench.answer.compare_runs import RunsComparison
from attnbench.answer.standing import Standing
from attnbench.report.page.contents import Contents, Missing
from attnbench.report.page.headlines import lead, sentences, telling
from attnbench.report.scenes import Ran, Scene

LIMIT = 60_000
"""Characters: a comment may hold 65,536."""
REGIMES, REASONS, VERDICTS, NAMES, TIED = 24, 30, 20, 8, 4
WORDS = 900
"""Characters of one text of somebody else's."""
ENTITY = re.compile(r"&(?=#?\w+;)")
"""Elsewhere an ampersand is one."""
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!$])")
CUT = "\n\n*… cut here: the rest is in index.html.*\n"


def summary(contents: Contents) -> str:
    """Answers, winners, what was not measured, and what may be believed."""
    parts = [f"# {_plain(contents.title)}", *map(_plain, contents.headlines), *_sure(contents)]
    for run in contents.runs:
        parts += _run(contents, run)
    parts += _comparisons(contents)
    parts += _missing(contents.missing)
    parts += _claims(contents)
    parts += _model_cost(contents)
    parts += _trust(contents)
    text = "\n\n".join(parts) + "\n"
    return text if len(text) <= LIMIT else _cut(text)


def _sure(contents: Contents) -> Iterator[str]:
    if contents.sure:
        yield f"How sure: {_plain(contents.sure)}."
    several = len(contents.runs) > 1
    for only in contents.only:
        on = f" on {only.run.name}" * several
        yield _plain(f"If you may choose only one{on}: {only}")


def _cut(text: str) -> str:
    return text[: text.rindex("\n", 0, LIMIT - len(CUT))] + CUT


def _run(contents: Contents, run: Ran) -> Iterator[str]:
    """One run's winners and its answers, regime by regime."""
    timed = [scene for scene in contents.scenes if scene.run is run and scene.timed]
    about = next(about for about in contents.abouts if about.run is run)
    yield f"## {_plain(run.name)}" if len(contents.runs) > 1 else "## Winners"
    yield _plain(about.machine_line)
    if not timed:
        yield "Nothing has a time in this run."
        return
    yield _winners(timed[:REGIMES])
    for scene in timed[:REGIMES]:
        yield f"**{_plain(str(scene.regime))}**\n\n" + "\n".join(
            f"- {_plain(sentence)}" for sentence in sentences(scene)
        )
    if rest := timed[REGIMES:]:
        yield f"… and {len(rest)} more regime{'s' * (len(rest) > 1)}, in index.html."


def _winners(scenes: Sequence[Scene]) -> str:
    """A row a regime, a column a length; a tie is said as one, and an empty cell says why."""
    lengths = sorted({length for scene in scenes for length in scene.regime.lengths})
    lines = [_row(["regime", *(f"{length:,}" for length in lengths)]),
             _row(["---", *["---"] * len(lengths)])]  # fmt: skip
    apart = telling(scenes)
    for scene in scenes:
        standings = {standing.length: standing for standing in scene.standings}
        cells = [_winner(standings.get(length)) for length in lengths]
        lines.append(_row([_plain(apart[scene.number]), *cells]))
    return "\n".join(lines)


def _winner(standing: Standing | None) -> str:
    if standing is None:
        return "not asked"
    if standing.answer is None:
        return "nothing exact has a time"
    doubt = " (in doubt)" * bool(standing.answer.flags)
    if standing.answer.equal:
        named = ", ".join(map(_plain, standing.leaders[:TIED]))
        more = ", …" * (len(standing.leaders) > TIED)
        return f"tie of {len(standing.leaders)}: {named}{more}{doubt}"
    return f"**{_plain(standing.answer.winner)}** {lead(standing) or 'alone'}{doubt}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _comparisons(contents: Contents) -> Iterator[str]:
    """Each other run against the first."""
    if contents.comparisons or contents.incomparable:
        yield "## The runs against the first"
    for found in contents.comparisons:
        yield _comparison(found)
    for sentence in contents.incomparable:
        yield f"Not compared: {_plain(sentence)}."


def _comparison(found: RunsComparison) -> str:
    counts = "; ".join(f"{count} {word}" for word, count in found.counts().items() if count)
    parts = [f"**{_plain(found.b)}** against {_plain(found.a)}: {_plain(counts) or 'nothing'} "
             f"(unpaired, margin {found.margin:.1%})."]  # fmt: skip
    other = [f"- {_plain(d.what)}: {_plain(d.a)} → {_plain(d.b)}" for d in found.differences]
    if other:
        more = [f"- … and {len(other) - VERDICTS} more"] * (len(other) > VERDICTS)
        parts.append("What they have otherwise:\n\n" + "\n".join([*other[:VERDICTS], *more]))
    return "\n\n".join(parts)


def _missing(found: Sequence[Missing]) -> Iterator[str]:
    yield "## Not measured"
    if not found:
        yield "Every cell that was begun has a time."
        return
    lines = [_stopped(each) for each in found[:REASONS]]
    if rest := found[REASONS:]:
        cells = sum(each.cells for each in rest)
        lines.append(f"- … and {cells} cells for {len(rest)} more reasons, in index.html")
    yield "\n".join(lines)


def _stopped(each: Missing) -> str:
    names = ", ".join(each.variants[:NAMES])
    names += f" and {len(each.variants) - NAMES} more" * (len(each.variants) > NAMES)
    status = each.status.replace("_", " ")
    remedy = f" → {_plain(each.remedy)}" * bool(each.remedy)
    cells = f"{each.cells} cell{'s' * (each.cells != 1)}"
    return f"- {status}: {_plain(names)} ({cells}): {_plain(each.reason)}{remedy}"


def _claims(contents: Contents) -> Iterator[str]:
    """How many claims of others came to which verdict, and which were not reproduced."""
    for found in contents.claims:
        yield f"## What others claim, tried on {_plain(found.machine)}"
        if found.note:
            yield _plain(found.note)
        if found.told:
            yield _plain(f"{found.made}: {found.counts}")
            bad = [claim for claim in found.tried if claim.verdict != "reproduced"]
            if bad:
                yield "\n".join(
                    f"- {claim.verdict}: {_plain(claim.name)} ({_plain(claim.why)})"
                    for claim in bad
                )


def _model_cost(contents: Contents) -> Iterator[str]:
    """What follows from what was asked of models; what can't be shown says why."""
    told = [found for found in contents.model_cost if found.conclusions or not found.tables]
    if told:
        yield "## What it costs a model"
    for found in told:
        lines = found.conclusions or [found.said]
        yield f"**{_plain(found.title)}** ({_plain(found.file)})"
        yield "\n".join(f"- {_plain(line)}" for line in lines)


def _trust(contents: Contents) -> Iterator[str]:
    yield "## How far to believe it"
    several = len(contents.runs) > 1
    yield "\n".join(
        f"- {f'{_plain(about.run.name)}: ' * several}{_plain(sentence)}"
        for about in contents.abouts for sentence in about.trust
    )  # fmt: skip
    commands = dict.fromkeys(command for about in contents.abouts for command in about.commands)
    yield "Repeat it:\n\n" + "\n".join(f"    {_line(command)}" for command in commands)


def _plain(text: str) -> str:
    """Somebody's words as words: on one line, no longer than a sentence, nothing in it markup."""
    cut = _line(text)
    cut = cut if len(cut) <= WORDS else cut[:WORDS] + "…"
    safe = SPECIAL.sub(r"\\\1", ENTITY.sub("&amp;", cut))
    return safe.replace("@", "&#64;").replace("\\<", "&lt;")


def _line(text: str) -> str:
    return " ".join(text.split())
