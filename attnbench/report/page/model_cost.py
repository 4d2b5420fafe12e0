"""What a variant costs a model, for the page: the newest evidence beside its runs, if any.

The tables are the terminal's. Where nothing was asked of a model the page has no such section.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.report import quality_picture
from attnbench.report.figures.looks import Looks
from attnbench.report.figures.sheet import Drawn
from attnbench.report.quality_real_view import real_lines, real_tables
from attnbench.report.quality_view import model_lines, model_tables
from attnbench.store import StoreError
from attnbench.store.evidence import Evidence, evidence_of, read_evidence

if TYPE_CHECKING:
    from rich.table import Table as Grid

TITLES = {
    "model": "A trained model, its attention replaced by each variant",
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
    """When, where and by which command."""
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()
    figure: Drawn | None = None


def model_cost(runs: Sequence[Path], known: Looks) -> list[Found]:
    """Of each machine's folder the newest of each kind; a file that can't be shown says why."""
    folders = list(dict.fromkeys(run.resolve().parent for run in runs))
    return [found for folder in folders for found in _of_folder(folder, known)]


def _of_folder(folder: Path, known: Looks) -> Iterator[Found]:
    for kind, title in TITLES.items():
        files = list(evidence_of(folder, kind))
        file = next((file for file in files if not _stopped(file)), next(iter(files), None))
        if file is None:
            continue
        try:
            yield _found(read_evidence(file), title, file, known)
        except StoreError as why:
            yield Found(title, file.name, str(why))
        except (KeyError, TypeError, ValueError) as error:  # of an earlier form, or damaged
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Found(title, file.name, f"it can't be shown: something in it is not what it "
                        f"should be ({said})")  # fmt: skip


def _stopped(file: Path) -> bool:
    """Whether it holds a part: it stands behind whatever is whole. A damaged one says so itself."""
    try:
        return read_evidence(file).partial
    except StoreError:
        return False


def _found(found: Evidence, title: str, file: Path, known: Looks) -> Found:
    made = found.made
    said = f"{made['started'][:10]}, {made['machine']['name']}: {made['command']}"
    said += "; stopped before its end: a part of what was asked" * found.partial
    if found.kind == "model":
        tables, lines = model_tables(found), model_lines(found)
        figure = quality_picture.draw(found, known)
    else:
        tables, lines, figure = real_tables(found), real_lines(found), None
    plain = [_plain(title, grid) for title, grid in tables]
    return Found(title, file.name, said, plain, lines, figure)


def _plain(title: str, grid: Grid) -> Table:
    """A table without its colours."""
    from rich.text import Text

    head = [(str(column.header), column.justify == "right") for column in grid.columns]
    cells = [[Text.from_markup(str(cell)).plain for cell in c.cells] for c in grid.columns]
    return Table(title, head, list(zip(*cells, strict=True)))
