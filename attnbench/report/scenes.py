"""What a report shows: runs as they were read, and their regimes as the pages number them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from attnbench.sweep.plan import problems as problems_of
from attnbench.sweep.presets import Preset
from impls.asked import CantBeDone
from impls.problem import Problem


@dataclass(frozen=True)
class ReportRun:
    """One run."""

    number: int
    path: Path
    header: Mapping[str, Any]
    records: Sequence[Record]
    lines: Sequence[int]
    """Of each record, its line in the run's file, counted from 1."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What is amiss with the run as a whole: cut off, numbers that are not finite."""

    @cached_property
    def margin(self) -> float:
        """What counts as no lead in this run."""
        return margin_of(self.records)

    @property
    def machine(self) -> str:
        """The name of the machine that it was on."""
        return str((self.header.get("machine") or {}).get("name") or self.path.parent.name)

    @property
    def name(self) -> str:
        """``20261122-015809 on amd-epyc-2c``, with its folder's name where that is another."""
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
        """How the variants stand at each length."""
        return standings(self.regime, self.run.margin)

    @cached_property
    def stretches(self) -> list[Stretch]:
        """The same, lengths together at which the same ones lead."""
        return stretches(self.standings)

    @cached_property
    def crossings(self) -> list[Crossing]:
        """Where one overtakes another."""
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
"""Of a run's grid, and what problems call them."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no name may have: ends of lines, commands to a terminal, half a letter."""
OBJECTS = ("ceilings", "nodes", "code", "selfcheck")
"""Of a header; each may be missing."""
CHOSEN = re.compile(r"torch chose ([^(]+) \(")
"""Of a record's note."""


def gather(paths: Sequence[Path]) -> list[ReportRun]:
    """The runs that are, or lie below, these paths; each once, the first given first."""
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
            records, torn, amiss = _records(path)
        if records:
            notes = [
                *_cut_off(torn, header, records),
                *_not_finite(path, records),
                *_chosen_by_torch(records),
                *amiss,
            ]
            notes += [
                f"leg {number} of the run, whose cells are ranked apart: "
                f"{'; '.join(leg['changes'])}"
                for number, leg in enumerate(header.get("legs", ()), 2)
            ]
            read.append(
                ReportRun(
                    len(read),
                    path,
                    header,
                    [r for _, r in records],
                    [line for line, _ in records],
                    tuple(notes),
                )
            )
        else:
            empty.append(path)
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
    """The records with their lines, whether a death left something behind them, and what is amiss
    with some of them, in sentences.
    """
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
    last = data.count(b"\n", 0, whole)  # what a death left behind is said apart
    checked.damaged = [number for number in checked.damaged if number <= last]
    return found, whole < len(data), list(checked.sentences())


def _cut_off(
    torn: bool, header: Mapping[str, Any], records: Sequence[tuple[int, Record]]
) -> Iterator[str]:
    """Sentences on what a death took from the run, or what it had not come to."""
    if torn:
        yield (
            f"the run was cut off: the end of its {RECORDS} was left unfinished; what came before "
            "is shown"
        )
    asked, there = _asked_for(header, records), len({record.key for _, record in records})
    if there < asked:
        yield (
            f"{there} of the {asked} cells that were asked for have a record: the rest was not "
            "begun, or not ended; 'attnbench run --resume' with its folder goes on"
        )
    for axis, missed in _not_reached(header, [r.problem for _, r in records]).items():
        what = AXES[axis].replace("kv_len", "length")
        yield (
            f"the run did not come to all of its grid: there is no record of {what} "
            f"{', '.join(missed)}"
        )


def _chosen_by_torch(records: Sequence[tuple[int, Record]]) -> Iterator[str]:
    """Of each variant that leaves it to torch, which backends ran, the most frequent first."""
    ran: dict[str, Counter[str]] = {}
    for _, record in records:
        for backend in CHOSEN.findall(record.note):
            ran.setdefault(record.variant, Counter())[backend] += 1
    for variant, found in ran.items():
        cells = ", ".join(f"{name} in {n}" for name, n in found.most_common())
        yield f"{variant} was torch's own choice of backend: {cells} cells"


def _asked_for(header: Mapping[str, Any], records: Sequence[tuple[int, Record]]) -> int:
    """How many cells the grid has: of the variants named, or else of those that are there."""
    grid = header.get("grid")
    if not isinstance(grid, Mapping):
        return 0
    values = [grid[axis] for axis in AXES if isinstance(grid.get(axis), list)]
    named = header.get("variants") or {record.variant for _, record in records}
    if grid.get("parts"):
        return _asked_of_parts(grid, header.get("variants"), named)
    if given := header.get("problems"):  # in place of a grid's
        return len(given) * len(named)
    if any(":" in str(mask) and "window" not in str(mask) for mask in grid.get("mask") or ()):
        return 0  # a mask with lengths of its own is not for every length
    return math.prod(len(some) or 1 for some in values) * len(named)


def _asked_of_parts(
    grid: Mapping[str, Any], told: Sequence[str] | None, named: Collection[str]
) -> int:
    """Of each part the cells on its problems, of its own variants unless some were named."""
    try:
        return len(
            {
                (variant, problem)
                for part in Preset.from_dict(grid).products
                for problem in problems_of(part, part.level or ("core",))
                for variant in told or part.variants or named
            }
        )
    except (CantBeDone, KeyError, TypeError, ValueError, AttributeError):
        return 0  # what a header says of its parts is not all that it should be


def _asked_values(grid: Any, axis: str) -> list[Any]:
    """Of an axis, all values that a grid has, or its parts have; where tokens say it, none."""
    parts = grid.get("parts") if isinstance(grid, Mapping) else None
    each = parts if isinstance(parts, list) and parts else [grid]
    found = [
        part[axis]
        for part in each
        if isinstance(part, Mapping)
        and isinstance(part.get(axis), list)
        and not (axis == "batch" and part.get("tokens"))
    ]
    return list(dict.fromkeys(str(value) for values in found for value in values))


def _not_reached(header: Mapping[str, Any], problems: Sequence[Problem]) -> dict[str, list[str]]:
    """By axis of the grid, the values that no problem has."""
    grid = header.get("grid")
    missed = {}
    for axis, name in AXES.items():
        seen = {str(getattr(problem, name)) for problem in problems}
        last = [
            value.rpartition("x")[2] if axis == "seq" else value
            for value in _asked_values(grid, axis)
        ]
        if left := [value for value in last if value not in seen]:
            missed[axis] = left
    return missed


def _not_finite(path: Path, records: Sequence[tuple[int, Record]]) -> Iterator[str]:
    """A sentence with the lines whose times were none."""
    lines = [str(number) for number, r in records if r.reason == BAD_TIME]
    if lines:
        some = ", ".join(lines[:8]) + f" and {len(lines) - 8} more" * (len(lines) > 8)
        yield (
            f"a time in {RECORDS} is no finite number above nought, and is left out: line {some}"
        )
