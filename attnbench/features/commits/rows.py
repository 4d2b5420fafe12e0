"""The rows that commits have, as they list them themselves, and the cells to compare two on."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench.core.checkout import BadCommit, Commit, Repository
from attnbench.core.format import roughly
from attnbench.core.machine import Machine
from attnbench.core.process import Program, variables_of
from attnbench.core.wire import convert
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import RAGGED, Preset
from impls import Table, UnknownVariant
from impls.errors import CantBeDone
from impls.outside import GROUP
from impls.problem import InvalidProblem
from impls.spec import InvalidRow, Variant

READ_LIMIT_S = 120


@dataclass(frozen=True)
class CommitRows:
    """The rows of a commit by name; and which of them are the repository's own."""

    rows: Mapping[str, Variant] = field(default_factory=dict)
    own: Sequence[str] = ()
    """None of attnbench's clone, but those of row files that were named."""
    unreadable: str = ""
    """The reason, if its table can't be read."""


@dataclass
class CellPlan:
    """The cells that two commits are compared on, and what the tables of both tell."""

    cells: Sequence[Cell]
    changed: Sequence[str] = ()
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    ragged: Sequence[Cell] = ()
    """Cells that a variant has to be right on besides, without being timed."""


def plan_cells(
    base: Commit,
    head: Commit,
    variants: Sequence[str],
    grid: Preset,
    machine: Machine,
    repository: Repository,
) -> CellPlan:
    """The cells of some variants; if none is given, of the repository's own, or of the grid's and
    all that were touched.

    Raises CantBeDone where the table of either can't be read.
    """
    tables = [rows_of(commit, repository) for commit in (base, head)]
    for commit, table in zip((base, head), tables, strict=True):
        if table.unreadable:
            raise CantBeDone(
                f"commit {commit}: {table.unreadable}; give commits whose table can be read"
            )
    files, rows = repository.changed(base, head), [table.rows for table in tables]
    before, after = rows
    new = [name for name in after if name not in before]
    both, names = {**before, **after}, list(variants)
    if repository.whole:
        names = names or own_names(tables, repository)
    elif not names:  # the grid's, those whose own file changed, and those that are new
        usual = [name for name in grid.variants if name.split("?")[0] in both]
        file = {n: row.build.split(":")[0].replace(".", "/") + ".py" for n, row in both.items()}
        names = list(dict.fromkeys([*usual, *(n for n in both if file[n] in files), *new]))
    lost = sorted(before.keys() - after.keys())
    cells, ragged = _cells(rows, names, grid, machine), list[Cell]()
    with suppress(InvalidProblem):  # a mask, or inputs, of one length alone
        ragged = _cells(rows, names, grid.with_(seq=RAGGED), machine)
    ragged = [cell for cell in ragged if cell.left_out is None]
    return CellPlan(cells, files, new, lost, ragged)


def own_names(tables: Sequence[CommitRows], repository: Repository) -> list[str]:
    """The rows that a repository has in any of some commits; raises BadCommit where it has none."""
    if names := list(dict.fromkeys(name for table in tables for name in table.own)):
        return names
    where = ", ".join(repository.tables) or f"the entry-point group {GROUP} of its pyproject.toml"
    raise BadCommit(
        f"{repository.root} has no rows in these commits: {where} gives none. Declare them there, "
        "name their file with --table FILE, or go into the repository that is meant "
        "(docs/plugin.md)"
    )


def _cells(
    rows: Sequence[Mapping[str, Variant]], names: Sequence[str], grid: Preset, machine: Machine
) -> list[Cell]:
    """The cells as either commit would plan them, left out only where neither would measure."""
    cells: dict[str, Cell] = {}
    for name in names:
        refusals: list[Exception] = []
        for each in rows:
            try:
                planned = make_plan(Table(dict(each)), [name], grid, machine).cells
            except (UnknownVariant, InvalidRow) as error:
                refusals.append(error)
                continue
            for cell in planned:
                if cell.left_out is None or cell.key not in cells:
                    cells[cell.key] = cell
        if len(refusals) == len(rows):
            raise refusals[-1]
    return list(cells.values())


def rows_of(commit: Commit, repository: Repository) -> CommitRows:
    """The rows of a commit."""
    with repository.laid_out(commit) as folder:
        return rows_in(folder, str(commit), repository)


def rows_in(folder: Path, commit: str, repository: Repository) -> CommitRows:
    """The rows of a commit that lies in a folder, as it lists them itself.

    Raises BadCommit where what would be measured is not the commit's.
    """
    with tempfile.TemporaryDirectory() as name:
        answer = Path(name) / "rows.json"
        root = str(repository.root.resolve()) if repository.whole else ""
        files = [str(folder / table) for table in repository.tables]
        command = [sys.executable, "-P", "-m", "attnbench.features.commits.read_rows"]
        command += [str(answer), str(folder), root, *files]
        with Program(command, variables=variables_of(1, folder)) as reading:
            status = reading.wait(READ_LIMIT_S)
        if status is None:
            late = f"its table was still importing after {roughly(READ_LIMIT_S)}"
            return CommitRows(unreadable=late)
        values: dict[str, Any] = {"broken": reading.last_line()}
        if status == 0:
            values = json.loads(answer.read_text())
    if values["broken"]:
        broken = values["broken"].replace(f"{folder}/", "")
        return CommitRows(unreadable=f"its table can't be read: {broken}")
    if values["elsewhere"]:
        raise BadCommit(
            f"commit {commit} can't be measured: {values['elsewhere']}, so what would be measured "
            "is not the commit's. A commit's modules are looked for at its top and in src; those "
            "that lie elsewhere, or have to be built, are compared as runs of two installed "
            "versions: 'attnbench compare RUN RUN'"
        )
    rows = {row["name"]: convert(row, Variant) for row in values["rows"]}
    return CommitRows(rows, values["own"])
