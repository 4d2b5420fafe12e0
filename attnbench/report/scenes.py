"""What a report shows: the runs that were read, and their regimes in the order of the page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from attnbench.answer.ranking import (
    Crossing,
    Standing,
    Stretch,
    crossings,
    margin_of,
    standings,
    stretches,
)
from attnbench.answer.regimes import Regime, regimes
from attnbench.core.disk import HEADER, RECORDS, StoreError
from attnbench.core.lock import collector_off
from attnbench.core.record import Record
from attnbench.core.store import BAD_TIME, Checked, each_run, read_header, whole_length
from impls.problem import Problem


@dataclass(frozen=True)
class ReportRun:
    """One run."""

    number: int
    path: Path
    header: Mapping[str, Any]
    records: Sequence[Record]
    lines: Sequence[int]
    """The line of each record in the run's file, counted from 1."""
    notes: Sequence[str] = ()
    """Sentences on the run as a whole: it was cut off, or has numbers that aren't finite."""

    @cached_property
    def margin(self) -> float:
        """The largest lead that counts as none in this run."""
        return margin_of(self.records)

    @property
    def machine(self) -> str:
        """The name of its machine."""
        return str((self.header.get("machine") or {}).get("name") or self.path.parent.name)

    @property
    def name(self) -> str:
        """``20261122-015809 on amd-epyc-2c``, with its folder's name where that differs."""
        run, folder = str(self.header.get("run") or ""), self.path.name
        called = run if run == folder else f"{folder} ({run})" if run else folder
        return f"{called} on {self.machine}"


@dataclass(frozen=True)
class Scene:
    """A regime of a run."""

    number: int
    """Among all regimes of all runs of the report; ``r3`` on its page."""
    run: ReportRun
    regime: Regime

    @cached_property
    def standings(self) -> list[Standing]:
        """The ranking at each length."""
        return standings(self.regime, self.run.margin)

    @cached_property
    def stretches(self) -> list[Stretch]:
        """The lengths at which the same variants lead, together."""
        return stretches(self.standings)

    @cached_property
    def crossings(self) -> list[Crossing]:
        """Where one variant overtakes another."""
        return crossings(self.regime, self.standings, self.run.margin)

    @property
    def name(self) -> str:
        """``r3``"""
        return f"r{self.number}"

    @property
    def timed(self) -> bool:
        """Whether anything at all has a time."""
        return any(standing.timed for standing in self.standings)


def scenes(runs: Sequence[ReportRun]) -> list[Scene]:
    """Every regime of every run, numbered through."""
    found = [(run, regime) for run in runs for regime in regimes(run.records)]
    return [Scene(number, run, regime) for number, (run, regime) in enumerate(found)]


AXES = {
    "seq": "kv_len", "phase": "phase", "mask": "mask", "dtype": "dtype", "batch": "batch",
    "heads": "heads", "head_dim": "head_dim", "inputs": "inputs",
}  # fmt: skip
"""The axes of a run's grid, and the fields of a problem that they set."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no name may have: ends of lines, commands to a terminal, half a letter."""
OBJECTS = ("ceilings", "nodes", "code", "selfcheck")
"""Parts of a header that may be missing."""
CHOSEN = re.compile(r"torch chose ([^(]+) \(")
"""The backend, in a record's note."""


def gather(paths: Sequence[Path]) -> list[ReportRun]:
    """The runs at or below these paths, each once, in the order given."""
    found = each_run(paths)
    if not found:
        raise StoreError(
            f"there is no run in {_listed(paths)}: no {HEADER} lies there; runs lie in "
            "results/<machine>/<run>, and 'attnbench run' makes one"
        )
    read: list[ReportRun] = []
    empty: list[Path] = []
    for path in found:
        header = read_header(path)
        check_header(path, header)
        with collector_off():
            records, torn, damage = _records(path)
        if not records:
            empty.append(path)
            continue
        notes = [
            *_cut_off(torn, header, records),
            *_not_finite(records),
            *_chosen_by_torch(records),
            *damage,
        ]
        for number, leg in enumerate(header.get("legs", ()), 2):
            changes = "; ".join(leg["changes"])
            notes.append(f"leg {number} of the run, whose cells are ranked apart: {changes}")
        lines, some = zip(*records, strict=True)
        read.append(ReportRun(len(read), path, header, some, lines, tuple(notes)))
    if not read:
        raise StoreError(
            f"{_listed(empty)} holds no record: nothing has been measured there; go on with it by "
            f"'attnbench run --resume {empty[0]}'"
        )
    if empty:
        left_out = f"left out, for there is no record in it: {', '.join(p.name for p in empty)}"
        read[0] = replace(read[0], notes=(*read[0].notes, left_out))
    return read


def check_header(path: Path, header: Mapping[str, Any]) -> None:
    """Raises StoreError where a part of the header isn't of its kind."""
    wrong = [k for k in OBJECTS if not isinstance(header.get(k) or {}, Mapping)]
    if not isinstance(header.get("legs", []), list):
        wrong.append("legs")
    if wrong:
        raise StoreError(f"{path / HEADER} is damaged: no fit {', '.join(wrong)}; measure again")


def with_plain_names(record: Record) -> Record:
    """The record without control characters in its name and its reason."""
    if not CONTROL.search(record.variant + record.reason):
        return record
    variant, reason = (
        CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) for text in (record.variant, record.reason)
    )
    return record.with_(variant=variant, reason=reason)


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def _records(path: Path) -> tuple[list[tuple[int, Record]], bool, list[str]]:
    """The records with their lines, whether the file is cut off, and sentences on damaged lines."""
    try:
        data = (path / RECORDS).read_bytes()
    except FileNotFoundError:
        return [], False, []
    except OSError as error:
        raise StoreError(
            f"can't read {path / RECORDS}: {error.strerror}; make it readable"
        ) from None
    whole = whole_length(data)
    checked = Checked(path)
    found = [(number, with_plain_names(record)) for number, record in checked.records()]
    last = data.count(b"\n", 0, whole)  # what is cut off has a note of its own
    checked.damaged = [number for number in checked.damaged if number <= last]
    return found, whole < len(data), list(checked.sentences())


def _cut_off(
    torn: bool, header: Mapping[str, Any], records: Sequence[tuple[int, Record]]
) -> Iterator[str]:
    """Sentences on what is missing because the run was cut off."""
    if torn:
        yield (
            f"the run was cut off: the end of its {RECORDS} was left unfinished; what came before "
            "is shown"
        )
    cells, there = header.get("cells"), len({record.key for _, record in records})
    if isinstance(cells, int) and there < cells:
        yield (
            f"{there} of the {cells} cells that were asked for have a record: the rest was not "
            "begun, or not ended; 'attnbench run --resume' with its folder goes on"
        )
    for axis, missed in _not_reached(header, [r.problem for _, r in records]).items():
        what = AXES[axis].replace("kv_len", "length")
        yield (
            f"the run did not come to all of its grid: there is no record of {what} "
            f"{', '.join(missed)}"
        )


def _chosen_by_torch(records: Sequence[tuple[int, Record]]) -> Iterator[str]:
    """For each variant that leaves it to torch: the backends that ran, the most frequent first."""
    ran: dict[str, Counter[str]] = {}
    for _, record in records:
        for backend in CHOSEN.findall(record.note):
            ran.setdefault(record.variant, Counter())[backend] += 1
    for variant, found in ran.items():
        cells = ", ".join(f"{name} in {n}" for name, n in found.most_common())
        yield f"{variant} was torch's own choice of backend: {cells} cells"


def _grid_values(grid: Mapping[str, Any], axis: str) -> list[str]:
    """All values of an axis in a grid or its parts; none of batch where tokens determine it."""
    parts = grid.get("parts")
    found = [
        part[axis]
        for part in (parts if isinstance(parts, list) and parts else [grid])
        if isinstance(part, Mapping)
        and isinstance(part.get(axis), list)
        and not (axis == "batch" and part.get("tokens"))
    ]
    return list(dict.fromkeys(str(value) for values in found for value in values))


def _not_reached(header: Mapping[str, Any], problems: Sequence[Problem]) -> dict[str, list[str]]:
    """By axis of the grid, the values that no problem has."""
    missed: dict[str, list[str]] = {}
    grid = header.get("grid")
    if not isinstance(grid, Mapping):
        return {}
    for axis, name in AXES.items():
        seen = {str(getattr(problem, name)) for problem in problems}
        values = _grid_values(grid, axis)
        if axis == "seq":  # of 1x4096, the keys
            values = [value.rpartition("x")[2] for value in values]
        if left := [value for value in values if value not in seen]:
            missed[axis] = left
    return missed


def _not_finite(records: Sequence[tuple[int, Record]]) -> Iterator[str]:
    """A sentence with the lines whose times are no finite numbers."""
    lines = [str(number) for number, r in records if r.reason == BAD_TIME]
    if lines:
        some = ", ".join(lines[:8]) + (f" and {len(lines) - 8} more" if len(lines) > 8 else "")
        yield (
            f"a time in {RECORDS} is no finite number above nought, and is left out: line {some}"
        )
