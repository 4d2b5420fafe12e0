"""Runs as results of asv's, so that sweeps stand in its pages and in its comparisons.

What asv calls failed is a cell that was run and did not end as measured: it has no value. What it
calls skipped (``n/a``) is one that was not to be had on that machine, or that no run asked for. The
sweeps of a commit on one machine share a file. The times that several of them took of one cell
are values of independent processes, and are put together; a cell that failed in one stays failed,
however fast it was in another.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import impls
from attnbench.history import index, problems, suite
from attnbench.history.machine import entry, save_entry
from attnbench.history.sweeps import CantExport, Sweep, sweeps
from attnbench.record import NOT_TRIED, PROTOCOL, Record, Status
from attnbench.store.disk import write_whole
from impls.asked import CantBeDone

if TYPE_CHECKING:
    from asv.results import Results

FAILED = None
SKIPPED = math.nan
Value = list[float] | float | None
"""A time of each run, or one figure, or how asv says that there is none: :data:`SKIPPED`,
:data:`FAILED`.
"""


class ResultsError(CantBeDone):
    """Something about asv's results folder; a sentence with what to do."""


class Place(NamedTuple):
    """What shares a file of asv's results."""

    machine: str
    commit: str
    python: str


@dataclass
class Sheet:
    """What a file is to say: of each benchmark each cell, by asv's text of its parameters."""

    entry: dict[str, str]
    sweep: Sweep
    """The last of them."""
    values: dict[str, dict[index.Cell, Value]] = field(default_factory=dict)

    def add(self, name: str, cell: index.Cell, value: Value) -> None:
        """What a run says of a cell, beside what those before it said."""
        cells = self.values.setdefault(name, {})
        cells[cell] = together(cells[cell], value) if cell in cells else value


def export(paths: Sequence[str | Path], results: Path, *, root: Path | None = None,
           say: Callable[[str], None] = lambda sentence: None) -> list[Path]:  # fmt: skip
    """Write runs into asv's results folder; the files that they are in.

    Nothing is written if a run that was named has no place there. ``root`` is the checkout whose
    history it is, by default the one that holds ``impls``.
    """
    root = root or Path(impls.__file__).resolve().parents[1]
    found = sweeps([Path(p) for p in paths], root, say)
    sheets: dict[Place, Sheet] = {}
    for sweep in found:
        for machine, record in sweep.records():
            _enter(sheets, sweep, machine, record)
    if not sheets:
        raise CantExport(f"there is no record in {', '.join(map(str, paths))} yet; finish the run")
    try:
        written = [_save(place, sheet, results) for place, sheet in sheets.items()]
        index.write(results)
    except OSError as error:
        raise ResultsError(f"can't write {error.filename or results}: {error.strerror}; make room "
                           "there, or make it writable") from None  # fmt: skip
    return written


def together(old: Value, new: Value) -> Value:
    """What two runs say of one cell: both times; of one figure, what the later one says."""
    if old is FAILED or new is FAILED:
        return FAILED
    if isinstance(old, list) and isinstance(new, list):
        return old if _holds(old, new) else [*old, *new]
    return new if _says(new) else old


def _says(value: Value) -> bool:
    """Whether there is a figure, or are times."""
    return value is not None and (isinstance(value, list) or not math.isnan(value))


def _holds(old: Sequence[float], new: Sequence[float]) -> bool:
    """Whether a run's time is there already, since it was exported before."""
    last = len(old) - len(new) + 1
    return any(old[i : i + len(new)] == list(new) for i in range(last))


def _enter(sheets: dict[Place, Sheet], sweep: Sweep, machine: Mapping[str, Any],
           record: Record) -> None:  # fmt: skip
    mine = entry(machine)
    python = ".".join(machine["python"].split(".")[:2])  # as asv names an environment's
    sheet = sheets.setdefault(Place(mine["machine"], sweep.commit, python), Sheet(mine, sweep))
    sheet.sweep = sweep
    group = problems.group_on(machine, record.problem, sweep.own_threads(machine))
    cell = problems.cell(record.variant, record.problem)
    for figure in suite.FIGURES.values():
        if figure.name != "energy" or sweep.energy:
            sheet.add(f"{group}.{figure.name}", cell, _value(record, figure))


def _value(record: Record, figure: suite.Figure) -> Value:
    if record.status in NOT_TRIED:
        return SKIPPED
    if record.status is not Status.MEASURED:
        return FAILED
    value = figure.of(record)
    return SKIPPED if value is None else value


def _save(place: Place, sheet: Sheet, results: Path) -> Path:
    """One file, with what it said before."""
    from asv.results import Results
    from asv.util import UserError

    whole = Results(
        {**sheet.entry, "python": place.python}, {}, place.commit, sheet.sweep.committed_ms,
        place.python, f"sweep-protocol{PROTOCOL}-py{place.python}", {},
    )  # fmt: skip
    path = results / whole._filename
    try:
        whole.load_data(str(results))
        before = {name: _before(whole, name) for name in sheet.values}
    except (UserError, ValueError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"{path} is damaged ({error}); move it away and export again all that was in it"
        ) from None
    for name, new in sheet.values.items():
        _add(whole, name, before[name], new, sheet.sweep)
    save_entry(results, sheet.entry)
    with tempfile.TemporaryDirectory() as folder:
        whole.save(folder)
        write_whole(path, (Path(folder) / whole._filename).read_bytes())
    return path


def _add(whole: Results, name: str, cells: dict[index.Cell, Value],
         new: Mapping[index.Cell, Value], sweep: Sweep) -> None:  # fmt: skip
    """A benchmark's row, over all cells that it had or has."""
    from asv.runner import BenchmarkResult

    for cell, value in new.items():
        cells[cell] = together(cells[cell], value) if cell in cells else value
    if not any(value is FAILED or _says(value) for value in cells.values()):
        return  # not to be had there at all
    about = index.described(name)
    assert about is not None
    said = {**about, "params": index.axes(cells)}
    values = [cells.get(cell, SKIPPED) for cell in product(*said["params"])]
    samples = [value if isinstance(value, list) else None for value in values]
    result = BenchmarkResult(
        result=[0.0 if isinstance(value, list) else value for value in values], samples=samples,
        number=[None if each is None else 1 for each in samples], errcode=0, stderr="",
        profile=None,
    )  # fmt: skip
    whole.add_result(said, result, sweep.started, record_samples=True)


def _before(whole: Results, name: str) -> dict[index.Cell, Value]:
    """What the file says of a benchmark; the samples of an earlier version are one value."""
    if name not in whole.get_all_result_keys():
        return {}
    params = whole.get_result_params(name)
    values = zip(
        product(*params), whole.get_result_value(name, params),
        whole.get_result_samples(name, params), strict=True,
    )  # fmt: skip
    about = index.described(name)
    same = about is not None and whole.benchmark_version.get(name) == about["version"]
    return {
        cell: (samples if same else [statistics.median(samples)]) if samples else value
        for cell, value, samples in values
    }
