"""What a variant costs a model, for the page: the newest evidence beside its runs, if any.

The sentences that open it and the tables are the terminal's. Where
nothing was asked of a model the page has no such section.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.report import quality_picture, recall_picture
from attnbench.report.figures.looks import Looks
from attnbench.report.figures.sheet import Drawn
from attnbench.report.quality_real_view import real_lines, real_tables
from attnbench.report.quality_view import LEVELS, model_lines, model_said, model_tables
from attnbench.report.recall_view import recall_lines, recall_tables, recall_tasks, said
from attnbench.store import StoreError
from attnbench.store.evidence import Evidence, evidence_of, read_evidence

if TYPE_CHECKING:
    from rich.table import Table as Grid

ALL = 1000
"""Of those that tie a page names every one."""
TITLES = {
    "model": "A trained model, its attention replaced by each variant",
    "recall": "What small models recall that were trained with each variant",
    "real": "Error and skill on what that model’s layers hand to attention",
}


@dataclass(frozen=True)
class Table:
    """One table of the terminal's, as plain words."""

    title: str
    head: Sequence[tuple[str, bool]]
    """The columns, and whether each holds numbers."""
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Found:
    """One file of evidence, as it is shown."""

    title: str
    file: str
    said: str
    """When, where and by which command; of what can't be shown, why."""
    conclusions: Sequence[str] = ()
    """What follows: it opens."""
    tables: Sequence[Table] = ()
    """The first of them answer; the others are there to be opened."""
    lines: Sequence[str] = ()
    figure: Drawn | None = None


def model_cost(runs: Sequence[Path], known: Looks) -> list[Found]:
    """Of each machine's folder the newest of each kind; a file that can't be shown says why."""
    folders = list(dict.fromkeys(run.resolve().parent for run in runs))
    return [found for folder in folders for found in _of_folder(folder, known)]


def _of_folder(folder: Path, known: Looks) -> Iterator[Found]:
    for kind, title in TITLES.items():
        if (newest := _newest(evidence_of(folder, kind))) is None:
            continue
        file, found = newest
        if isinstance(found, StoreError):
            yield Found(title, file.name, str(found))
            continue
        try:
            yield _found(found, title, file, known)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]  # of an earlier form, or so
            yield Found(title, file.name, f"it can't be shown: something in it is not what it "
                        f"should be ({said})")  # fmt: skip


def _newest(files: Iterable[Path]) -> tuple[Path, Evidence | StoreError] | None:
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


def _found(found: Evidence, title: str, file: Path, known: Looks) -> Found:
    made = found.made
    where = f"{made['started'][:10]}, {made['machine']['name']}: {made['command']}"
    where += "; stopped before its end: a part of what was asked" * found.partial
    some, tables, lines, figure = SHOWN[found.kind](found, known)
    follows = [f"{line[0].upper()}{line[1:]}." for line in some]
    plain = [_plain(title, grid) for title, grid in tables]
    return Found(title, file.name, where, follows, plain, lines, figure)


Shown = tuple[Sequence[str], Sequence[tuple[str, "Grid"]], Sequence[str], Drawn | None]


def _model(found: Evidence, known: Looks) -> Shown:
    """Who is fastest at the same quality stands first: it is what is asked."""
    tables = sorted(model_tables(found, ALL), key=lambda each: each[0] != LEVELS)
    return model_said(found), tables, model_lines(found), quality_picture.draw(found, known)


def _recall(found: Evidence, known: Looks) -> Shown:
    by_setting = said(found)
    several = len(by_setting) > 1
    follows = [
        f"in {slug}: " * several + line for slug, some in by_setting.items() for line in some
    ]
    lines = [*recall_tasks(found), *recall_lines(found)]
    return follows, recall_tables(found), lines, recall_picture.drawn(found, known)


def _real(found: Evidence, _: Looks) -> Shown:
    return [], real_tables(found), real_lines(found), None


SHOWN = {"model": _model, "recall": _recall, "real": _real}


def _plain(title: str, grid: Grid) -> Table:
    """A table without its colours."""
    from rich.text import Text

    head = [(str(column.header), column.justify == "right") for column in grid.columns]
    cells = [[Text.from_markup(str(cell)).plain for cell in c.cells] for c in grid.columns]
    return Table(title, head, list(zip(*cells, strict=True)))
