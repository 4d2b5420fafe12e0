"""Evidence on a page: claims, and what quality costs a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.core.disk import StoreError
from attnbench.core.evidence import Evidence, evidence_of, read_evidence
from attnbench.features.claims.view import FOOTNOTE, MARK, PointWords, alike, counts, points
from attnbench.features.quality import pictures
from attnbench.features.quality.recall_view import recall_lines, recall_tables, recall_tasks, said
from attnbench.features.quality.view import (
    LEVELS,
    model_lines,
    model_said,
    model_tables,
    real_lines,
    real_tables,
)
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import ReportRun

if TYPE_CHECKING:
    from rich.table import Table as Grid


KIND = "reproduce"


@dataclass(frozen=True)
class ClaimWords:
    """One claim, in words."""

    name: str
    statement: str
    source: str
    setting: str
    verdict: str
    why: str
    points: Sequence[PointWords]

    @property
    def tried(self) -> bool:
        """Whether there is a figure of ours."""
        return any(point.ours != "–" for point in self.points)


@dataclass(frozen=True)
class Claims:
    """Those of one machine."""

    machine: str
    made: str
    """When, and by what command."""
    counts: str
    told: Sequence[ClaimWords]
    footnote: str
    note: str = ""
    """Of evidence that can't be read."""

    @property
    def tried(self) -> list[ClaimWords]:
        """With figures."""
        return [claim for claim in self.told if claim.tried]

    @property
    def left(self) -> list[tuple[str, str, list[str]]]:
        """Without: verdict, reason, and the names of those of which both are so."""
        return [
            (*said, names)
            for said, names in alike(
                (claim.name, claim.verdict, claim.why) for claim in self.told if not claim.tried
            ).items()
        ]


def claims_of(runs: Sequence[ReportRun]) -> list[Claims]:
    """Of each machine's folder that has any."""
    folders = dict.fromkeys(run.path.resolve().parent for run in runs)
    return [found for folder in folders if (found := _newest(folder)) is not None]


def _newest(folder: Path) -> Claims | None:
    """The newest that can be read; what can't is said."""
    note = ""
    for path in evidence_of(folder, KIND):
        try:
            found = read_evidence(path)
            told = [_told(row) for row in found.rows]
            said = f"{str(found.made['started'])[:10]}, {found.made['command']}"
            return Claims(
                str(found.made["machine"]["name"]),
                said,
                counts(found.rows),
                told,
                _footnote(told),
                note,
            )
        except StoreError as error:
            note = note or str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            note = note or f"{path.name} is not as attnbench writes it ({type(error).__name__})"
    return Claims(folder.name, "", "", [], "", note) if note else None


def _told(row: Mapping[str, Any]) -> ClaimWords:
    source = row["source"]
    where = f"{source['title']}, {source['author']} ({source['where']}); read: {source['read']}"
    why = "; ".join(filter(None, [row["reason"], row["remedy"]]))
    return ClaimWords(
        row["name"],
        row["statement"],
        where,
        row["setting"],
        row["verdict"],
        why,
        tuple(points(row)),
    )


def _footnote(told: Sequence[ClaimWords]) -> str:
    marked = any(MARK in point.theirs for claim in told if claim.tried for point in claim.points)
    return FOOTNOTE if marked else ""


ALL = 1000
"""Of those that tie a page names every one."""
TITLES = {
    "model": "A trained model, its attention replaced by each variant",
    "recall": "What small models recall that were trained with each variant",
    "real": "Error and skill on what that model’s layers hand to attention",
}


@dataclass(frozen=True)
class PlainTable:
    """One table of the terminal's, as plain words."""

    title: str
    head: Sequence[tuple[str, bool]]
    """The columns, and whether each holds numbers."""
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class ShownEvidence:
    """One file of evidence, as it is shown."""

    title: str
    file: str
    said: str
    """When, where and by which command; of what can't be shown, why."""
    conclusions: Sequence[str] = ()
    """What follows: it opens."""
    tables: Sequence[PlainTable] = ()
    """The first of them answer; the others are there to be opened."""
    lines: Sequence[str] = ()
    figure: Drawn | None = None


def model_cost(runs: Sequence[Path], known: Looks) -> list[ShownEvidence]:
    """Of each machine's folder the newest of each kind; a file that can't be shown says why."""
    folders = list(dict.fromkeys(run.resolve().parent for run in runs))
    return [found for folder in folders for found in _of_folder(folder, known)]


def _of_folder(folder: Path, known: Looks) -> Iterator[ShownEvidence]:
    for kind, title in TITLES.items():
        if (newest := _newest_of_model_cost(evidence_of(folder, kind))) is None:
            continue
        file, found = newest
        if isinstance(found, StoreError):
            yield ShownEvidence(title, file.name, str(found))
            continue
        try:
            yield _found(found, title, file, known)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]  # of an earlier form, or so
            yield ShownEvidence(
                title,
                file.name,
                f"it can't be shown: something in it is not what it should be ({said})",
            )


def _newest_of_model_cost(files: Iterable[Path]) -> tuple[Path, Evidence | StoreError] | None:
    """The newest that is no part, or else the newest part; one that is damaged says so itself."""
    part: tuple[Path, Evidence] | None = None
    for file in files:
        try:
            found = read_evidence(file)
        except StoreError as why:
            return file, why
        if not found.partial:
            return file, found
        part = part or (file, found)
    return part


def _found(found: Evidence, title: str, file: Path, known: Looks) -> ShownEvidence:
    made = found.made
    where = f"{made['started'][:10]}, {made['machine']['name']}: {made['command']}"
    where += "; stopped before its end: a part of what was asked" * found.partial
    some, tables, lines, figure = SHOWN[found.kind](found, known)
    follows = [f"{line[0].upper()}{line[1:]}." for line in some]
    plain = [_plain(title, grid) for title, grid in tables]
    return ShownEvidence(title, file.name, where, follows, plain, lines, figure)


Shown = tuple[Sequence[str], Sequence[tuple[str, "Grid"]], Sequence[str], Drawn | None]


def _model(found: Evidence, known: Looks) -> Shown:
    """Who is fastest at the same quality stands first: it is what is asked."""
    tables = sorted(model_tables(found, ALL), key=lambda each: each[0] != LEVELS)
    return model_said(found), tables, model_lines(found), pictures.draw_quality(found, known)


def _recall(found: Evidence, known: Looks) -> Shown:
    by_setting = said(found)
    several = len(by_setting) > 1
    follows = [
        f"in {slug}: " * several + line for slug, some in by_setting.items() for line in some
    ]
    lines = [*recall_tasks(found), *recall_lines(found)]
    return follows, recall_tables(found), lines, pictures.drawn(found, known)


def _real(found: Evidence, _: Looks) -> Shown:
    return [], real_tables(found), real_lines(found), None


SHOWN = {"model": _model, "recall": _recall, "real": _real}


def _plain(title: str, grid: Grid) -> PlainTable:
    """A table without its colours."""
    from rich.text import Text

    head = [(str(column.header), column.justify == "right") for column in grid.columns]
    cells = [[Text.from_markup(str(cell)).plain for cell in c.cells] for c in grid.columns]
    return PlainTable(title, head, list(zip(*cells, strict=True)))
