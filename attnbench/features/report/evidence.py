"""Evidence on a page: claims, and what a variant costs a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnbench.core.disk import StoreError
from attnbench.core.evidence import Evidence, evidence_of, read_evidence
from attnbench.features.claims.view import FOOTNOTE, MARK, counts, has_figure, points, untried
from attnbench.features.quality.model_view import LEVELS_TITLE
from attnbench.features.quality.verb import draw, shown
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import ReportRun
from attnbench.report.tables import Table, columns

POINTS = ("what must hold", "theirs", "ours", "interval", "verdict")
LEFT = ("claims", "verdict", "why, and what to do")
MISFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What is raised where a file of evidence is not as attnbench writes it."""


class ClaimWords(NamedTuple):
    """One claim, in words."""

    name: str
    statement: str
    source: str
    setting: str
    verdict: str
    why: str
    points: Table


class Claims(NamedTuple):
    """The claims that were tested on one machine."""

    machine: str
    note: str = ""
    made: str = ""
    counts: str = ""
    tried: Sequence[ClaimWords] = ()
    left: Table | None = None
    footnote: str = ""


def claims_of(runs: Sequence[ReportRun]) -> list[Claims]:
    """The newest claims that can be read in each machine's folder that has any."""
    shown = []
    for folder in dict.fromkeys(run.path.resolve().parent for run in runs):
        note = ""
        for path in evidence_of(folder, "reproduce"):
            try:
                shown.append(_claims(read_evidence(path), note))
                break
            except StoreError as error:
                note = note or str(error)
            except MISFORMED as error:
                note = note or f"{path.name} is not as attnbench writes it ({type(error).__name__})"
        else:
            shown += [Claims(folder.name, note)] if note else []
    return shown


def _claims(found: Evidence, note: str) -> Claims:
    tried, left = [], untried(found.rows)
    for row in filter(has_figure, found.rows):
        of, why = row["source"], "; ".join(filter(None, [row["reason"], row["remedy"]]))
        source = f"{of['title']}, {of['author']} ({of['where']}); read: {of['read']}"
        rows = [
            (p.says, p.theirs, p.ours, p.interval, f"{p.held}\n{p.why}" if p.why else p.held)
            for p in points(row)
        ]
        table = Table(row["name"], columns(*POINTS, right=["ours"]), rows)
        texts = row["name"], row["statement"], source, row["setting"], row["verdict"], why
        tried.append(ClaimWords(*texts, table))
    marked = any(MARK in row[1] for claim in tried for row in claim.points.rows)
    return Claims(
        str(found.made["machine"]["name"]),
        note,
        f"{str(found.made['started'])[:10]}, {found.made['command']}",
        counts(found.rows),
        tried,
        Table("Claims without a figure", columns(*LEFT), left),
        FOOTNOTE if marked else "",
    )


ALL = 1000
TITLES = {
    "model": "A trained model, its attention replaced by each variant",
    "recall": "What small models recall that were trained with each variant",
    "real": "Error and skill on what that model’s layers hand to attention",
}


class ShownEvidence(NamedTuple):
    """One file of evidence, as it is shown."""

    title: str
    file: str
    source: str
    """When, where and by which command; or why it can't be shown."""
    conclusions: Sequence[str] = ()
    tables: Sequence[Table] = ()
    """The first two answer; the others are folded."""
    lines: Sequence[str] = ()
    figure: Drawn | None = None


def model_cost(runs: Sequence[Path], known: Looks) -> list[ShownEvidence]:
    """The newest evidence of each kind in each machine's folder, or its newest part."""
    shown = []
    for folder in dict.fromkeys(run.resolve().parent for run in runs):
        for kind, title in TITLES.items():
            part: ShownEvidence | None = None
            for file in evidence_of(folder, kind):
                try:
                    found = read_evidence(file)
                except StoreError as error:
                    part = ShownEvidence(title, file.name, str(error))
                    break
                if not found.partial or part is None:
                    part = _show(file, found, title, known)
                if not found.partial:
                    break
            shown += [part] if part else []
    return shown


def _show(file: Path, found: Evidence, title: str, known: Looks) -> ShownEvidence:
    try:
        made = found.made
        source = f"{made['started'][:10]}, {made['machine']['name']}: {made['command']}"
        if found.partial:
            source += "; stopped before its end: a part of what was asked"
        conclusions, tables, lines = shown(found, ALL)
        tables = sorted(tables, key=lambda each: each.title != LEVELS_TITLE)
        figure = draw(found, known)
        return ShownEvidence(title, file.name, source, conclusions, tables, lines, figure)
    except MISFORMED as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        why = f"it can't be shown: something in it is not what it should be ({first})"
        return ShownEvidence(title, file.name, why)
