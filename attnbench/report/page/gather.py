"""Runs as a report reads them: every record with its line, and what is amiss with a run as a whole.

A run that was cut off is read as far as it goes. A number that isn't finite is said to be missing,
and a time that is none is taken back with its reason: nothing is ranked by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnbench.collector import collector_off
from attnbench.record import Record, Status, Time
from attnbench.report.scenes import Ran
from attnbench.store import HEADER, RECORDS, StoreError, find_runs, read_header
from attnbench.store.reading import parsed, whole_length

NO_NUMBER = re.compile(rb"NaN|Infinity|[eE]\+?\d{3}")
"""Within a line whose numbers may not be finite; few are."""
COUNTS = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
WORDS = ("dtype", "mask", "phase", "inputs", "level", "device")
BAD_TIME = "its time is no finite number above nought"
AXES = {
    "seq": "kv_len", "phase": "phase", "mask": "mask", "dtype": "dtype", "batch": "batch",
    "heads": "heads", "head_dim": "head_dim", "inputs": "inputs",
}  # fmt: skip
"""Of a run's grid, and what problems call them."""


def gather(paths: Sequence[Path]) -> list[Ran]:
    """The runs that are, or lie below, these paths; each once, the first given first."""
    found = {path.resolve(): path for path in find_runs(paths)}
    if not found:
        raise StoreError(
            f"there is no run in {_listed(paths)}: no {HEADER} lies there; runs lie in "
            "results/<machine>/<run>, and 'attnbench run' makes one"
        )
    read: list[Ran] = []
    empty: list[Path] = []
    for path in found.values():
        header = read_header(path)
        with collector_off():
            records, torn = _records(path)
        if records:
            notes = [*_cut_off(torn, header, records), *_not_finite(path, records)]
            read.append(Ran(len(read), path, header, [r for _, r in records],
                            [line for line, _ in records], tuple(notes)))  # fmt: skip
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


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def _records(path: Path) -> tuple[list[tuple[int, Record]], bool]:
    """The records with their lines, and whether a death left something behind them."""
    try:
        data = (path / RECORDS).read_bytes()
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise StoreError(
            f"can't read {path / RECORDS}: {error.strerror}; make it readable"
        ) from None
    whole = whole_length(data)
    lines = data[:whole].split(b"\n")[:-1]
    found = []
    for number, (line, record) in enumerate(zip(lines, parsed(path, 1, lines), strict=True), 1):
        _check_problem(path, number, record.problem)
        odd = NO_NUMBER.search(line) is not None
        found.append((number, _sound(record, odd=odd)))
    return found, whole < len(data)


def _check_problem(path: Path, number: int, problem: Mapping[str, Any]) -> None:
    """All that regimes are made of must be there: a file may have been written by anybody."""
    if isinstance(problem, Mapping):
        wrong = [k for k in COUNTS if type(problem.get(k)) is not int or problem[k] < 1]
        wrong += [k for k in WORDS if not isinstance(problem.get(k), str)]
    else:
        wrong = [*COUNTS, *WORDS]
    if wrong:
        raise StoreError(
            f"{path / RECORDS}, line {number}: its problem has no fit {', '.join(wrong)}; take the "
            "line out, or measure again"
        )


def _sound(record: Record, *, odd: bool) -> Record:
    """The record without numbers that are none; a time that is none is taken back."""
    if odd:
        record = Record.from_dict(record.to_dict())  # what is not finite is null from here on
    if record.time is not None and not _is_time(record.time):
        record = replace(record, time=None, status=Status.IMPLAUSIBLE, reason=BAD_TIME)
    if record.memory is not None and not _is_number(record.memory.peak_bytes):
        record = replace(record, memory=None)
    if record.cost is not None and not (
        _is_number(record.cost.flops) and _is_number(record.cost.bytes)
    ):
        record = replace(record, cost=None)
    return record


def _is_time(time: Time) -> bool:
    middle = (time.median_s, time.low_s, time.high_s, time.min_s)
    return all(_is_number(each) and each > 0 for each in middle)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _cut_off(torn: bool, header: Mapping[str, Any],
             records: Sequence[tuple[int, Record]]) -> Iterator[str]:  # fmt: skip
    """Sentences on what a death took from the run, or what it had not come to."""
    if torn:
        yield (
            f"the run was cut off: the end of its {RECORDS} was left unfinished; what came before "
            "is shown"
        )
    for axis, missed in _not_reached(header, [r.problem for _, r in records]).items():
        what = AXES[axis].replace("kv_len", "length")
        yield (
            f"the run did not come to all of its grid: there is no record of {what} "
            f"{', '.join(missed)}; 'attnbench run --resume' with its folder goes on with it"
        )


def _not_reached(header: Mapping[str, Any],
                 problems: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:  # fmt: skip
    """By axis of the grid, the values that no problem has."""
    grid = header.get("grid")
    missed = {}
    for axis, name in AXES.items():
        asked = grid.get(axis) if isinstance(grid, Mapping) else None
        if isinstance(asked, list):
            seen = {str(problem[name]) for problem in problems}
            last = [str(value).rpartition("x")[2] if axis == "seq" else str(value)
                    for value in asked]  # fmt: skip
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
