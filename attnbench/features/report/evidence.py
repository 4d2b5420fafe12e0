"""Evidence on a page: claims, and what a variant costs a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.core.disk import StoreError
from attnbench.core.evidence import Evidence, evidence_of, read_evidence
from attnbench.core.format import NONE
from attnbench.features.claims.view import FOOTNOTE, MARK, alike, counts, points
from attnbench.features.quality import pictures
from attnbench.features.quality.model_view import (
    LEVELS_TITLE,
    model_conclusions,
    model_lines,
    model_tables,
    real_lines,
    real_tables,
)
from attnbench.features.quality.recall_results import (
    recall_conclusions,
    recall_lines,
    recall_tables,
    recall_tasks,
)
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import ReportRun
from attnbench.report.tables import Table, columns

CLAIMS = "reproduce"
"""The kind of evidence that claims are."""
POINTS = ("what must hold", "theirs", "ours", "interval", "verdict")
LEFT = ("claims", "verdict", "why, and what to do")


@dataclass(frozen=True)
class ClaimWords:
    """One claim, in words."""

    name: str
    statement: str
    source: str
    setting: str
    verdict: str
    why: str
    points: Table


@dataclass(frozen=True)
class Claims:
    """The claims that were tested on one machine."""

    machine: str
    made: str = ""
    """When, and by what command."""
    counts: str = ""
    tried: Sequence[ClaimWords] = ()
    """Those with a figure of ours."""
    left: Table | None = None
    """The others by verdict and reason."""
    footnote: str = ""
    note: str = ""
    """Why newer evidence can't be shown."""


def claims_of(runs: Sequence[ReportRun]) -> list[Claims]:
    """The claims in each machine's folder that has any."""
    folders = dict.fromkeys(run.path.resolve().parent for run in runs)
    return [found for folder in folders if (found := _newest_claims(folder)) is not None]


def _newest_claims(folder: Path) -> Claims | None:
    """The newest claims that can be read, with a note on newer ones that can't."""
    note = ""
    for path in evidence_of(folder, CLAIMS):
        try:
            return _claims(read_evidence(path), note)
        except StoreError as error:
            note = note or str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            note = note or f"{path.name} is not as attnbench writes it ({type(error).__name__})"
    return Claims(folder.name, note=note) if note else None


def _claims(found: Evidence, note: str) -> Claims:
    tried, untried, marked = [], [], False
    for row in found.rows:
        some, why = list(points(row)), "; ".join(filter(None, [row["reason"], row["remedy"]]))
        if all(point.ours == NONE for point in some):
            untried.append((row["name"], row["verdict"], why))
            continue
        marked = marked or any(MARK in point.theirs for point in some)
        of = row["source"]
        source = f"{of['title']}, {of['author']} ({of['where']}); read: {of['read']}"
        rows = [
            (p.says, p.theirs, p.ours, p.interval, f"{p.held}\n{p.why}" if p.why else p.held)
            for p in some
        ]
        table = Table(row["name"], columns(*POINTS, right=["ours"]), rows)
        texts = row["name"], row["statement"], source, row["setting"], row["verdict"], why
        tried.append(ClaimWords(*texts, table))
    left = [(", ".join(names), *both) for both, names in alike(untried).items()]
    return Claims(
        str(found.made["machine"]["name"]),
        f"{str(found.made['started'])[:10]}, {found.made['command']}",
        counts(found.rows),
        tried,
        Table("Claims without a figure", columns(*LEFT), left),
        FOOTNOTE if marked else "",
        note,
    )


ALL = 1000
"""A page names all variants that tie."""
TITLES = {
    "model": "A trained model, its attention replaced by each variant",
    "recall": "What small models recall that were trained with each variant",
    "real": "Error and skill on what that model’s layers hand to attention",
}


@dataclass(frozen=True)
class ShownEvidence:
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
    """The newest evidence of each kind in each machine's folder."""
    folders = dict.fromkeys(run.resolve().parent for run in runs)
    shown = []
    for folder in folders:
        for kind, title in TITLES.items():
            newest = _newest(evidence_of(folder, kind))
            if newest is not None:
                shown.append(_show(*newest, title, known))
    return shown


def _newest(files: Iterable[Path]) -> tuple[Path, Evidence | StoreError] | None:
    """The newest that is complete, or else the newest part; of a damaged one the error."""
    part: tuple[Path, Evidence] | None = None
    for file in files:
        try:
            found = read_evidence(file)
        except StoreError as error:
            return file, error
        if not found.partial:
            return file, found
        part = part or (file, found)
    return part


def _show(file: Path, found: Evidence | StoreError, title: str, known: Looks) -> ShownEvidence:
    if isinstance(found, StoreError):
        return ShownEvidence(title, file.name, str(found))
    try:
        made = found.made
        source = f"{made['started'][:10]}, {made['machine']['name']}: {made['command']}"
        if found.partial:
            source += "; stopped before its end: a part of what was asked"
        some, tables, lines, figure = SHOWN[found.kind](found, known)
        conclusions = [f"{line[0].upper()}{line[1:]}." for line in some]
        return ShownEvidence(title, file.name, source, conclusions, tables, lines, figure)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        why = f"it can't be shown: something in it is not what it should be ({first})"
        return ShownEvidence(title, file.name, why)


Shown = tuple[Sequence[str], Sequence[Table], Sequence[str], Drawn | None]


def _model(found: Evidence, known: Looks) -> Shown:
    """Its tables, first the one of the fastest variants at the same quality."""
    tables = sorted(model_tables(found, ALL), key=lambda each: each.title != LEVELS_TITLE)
    return model_conclusions(found), tables, model_lines(found), pictures.draw(found, known)


def _recall(found: Evidence, known: Looks) -> Shown:
    by_setting = recall_conclusions(found)
    several = len(by_setting) > 1
    follows = [
        f"in {slug}: " * several + line for slug, some in by_setting.items() for line in some
    ]
    lines = [*recall_tasks(found), *recall_lines(found)]
    return follows, recall_tables(found), lines, pictures.draw(found, known)


def _real(found: Evidence, _: Looks) -> Shown:
    return [], real_tables(found), real_lines(found), None


SHOWN = {"model": _model, "recall": _recall, "real": _real}
