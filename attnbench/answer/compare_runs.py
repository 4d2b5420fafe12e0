"""Two run folders, cell by cell: verdicts, what changed its status, and how the two runs differ.

The samples of two runs were taken at other times, so nothing takes the machine's drift out of them.
Blocks timed one after the other differ by a twentieth through drift alone, one time in twenty: that
is the margin, or the runs' own noise floors where those are larger, and each verdict is marked as
unpaired. Runs of unlike protocols are refused. Runs of unlike machines are compared, and everything
that their headers have otherwise is said first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.answer.ranking import MARGIN, regime_on_device
from attnbench.core.disk import HEADER, RECORDS, StoreError
from attnbench.core.lock import collector_off
from attnbench.core.record import Record, Status, Time, cell_key
from attnbench.core.stats import LEAST_PAIRS, Comparison, Verdict, holm, tally, unpaired
from attnbench.core.store import read_header, read_records
from impls.problem import Problem

COMPARED = ("machine", "settings", "code", "seed", "budget_s", "tables")
"""Of a header: what numbers may depend on."""
SAID_SHORT = {
    "machine.name": "machine",
    "machine.torch_cuda": "torch's CUDA",
    "budget_s": "budget",
    "machine.memory_bytes": "memory, bytes",
    "code.dirty": "uncommitted changes",
}


@dataclass(frozen=True)
class Difference:
    """One thing that the two headers have otherwise."""

    what: str
    a: str
    b: str


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Each value that two headers have otherwise, one at a time."""
    flat_a, flat_b = (dict(_flat({k: h.get(k) for k in COMPARED})) for h in (a, b))
    for path in dict.fromkeys([*flat_a, *flat_b]):
        one, other = (str(flat.get(path, "nothing")) for flat in (flat_a, flat_b))
        if one != other:
            yield Difference(_said(path), one, other)
    files_a, files_b = (h.get("files") or {} for h in (a, b))
    same = {*files_a.values()} & {*files_b.values()}  # though it may lie elsewhere
    for file in dict.fromkeys([*files_a, *files_b]):
        if not {h[file] for h in (files_a, files_b) if file in h} <= same:
            yield Difference(file, *(h.get(file, "not read") for h in (files_a, files_b)))
    if any(h.get("legs") for h in (a, b)):
        yield Difference(
            "later legs",
            *(
                "; ".join(each for leg in h.get("legs") or () for each in leg["changes"]) or "none"
                for h in (a, b)
            ),
        )


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value with the path to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(x, Mapping) for x in value):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}.{number}")
    elif isinstance(value, list):
        yield path, ", ".join(map(str, value)) or "nothing"
    else:
        yield path, "nothing" if value is None else value


def _said(path: str) -> str:
    """``OMP_NUM_THREADS`` for ``settings.environment.OMP_NUM_THREADS``."""
    if path in SAID_SHORT:
        return SAID_SHORT[path]
    rooms = ("machine", "settings", "code", "versions", "environment")
    return " ".join(part for part in path.split(".") if part not in rooms).replace("gpus", "gpu")


Header = Mapping[str, Any]
WORSE = (
    {Status.MEASURED},
    {Status.UNSUPPORTED, Status.UNAVAILABLE},
    {Status.OUT_OF_MEMORY, Status.TIMED_OUT},
    {Status.FAILED, Status.CRASHED},
    {Status.IMPLAUSIBLE, Status.WRONG},
)
"""Statuses, each set worse than the one before."""


class Incomparable(StoreError):
    """Two runs of which nothing can be said together; a sentence with what to do."""


@dataclass(frozen=True)
class ComparedCell:
    """One cell of both runs."""

    variant: str
    problem: Problem
    """As run b has it."""
    status_a: Status
    status_b: Status
    comparison: Comparison | None
    """None where not both have a time."""
    memory_ratio: float | None
    """b's peak over a's."""
    across_devices: bool
    reason: str
    """Why the side that has no time has none."""
    notes: tuple[str, ...]
    """What was amiss while either was timed, and clocks that are not the same."""

    @property
    def change(self) -> str:
        """``worse`` or ``better`` by status, or nothing."""
        a, b = (_rank(status) for status in (self.status_a, self.status_b))
        return "worse" if b > a else "better" if b < a else ""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        compared = None if self.comparison is None else self.comparison.to_dict()
        return {
            **asdict(self),
            "problem": self.problem.to_dict(),
            "status_a": str(self.status_a),
            "status_b": str(self.status_b),
            "comparison": compared,
            "change": self.change,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class RunsComparison:
    """What can be said of run b against run a."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    cells: tuple[ComparedCell, ...]
    """Those that have a time in both, or another status in one than in the other."""
    alike: int
    """Cells that ended in both with the same status and without a time."""
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    margin: float

    @property
    def across_devices(self) -> bool:
        """Whether any cell ran on another device in one run than in the other."""
        return any(cell.across_devices for cell in self.cells)

    def counts(self) -> dict[str, int]:
        """How often each verdict was given, and how often a status changed for worse or better."""
        changed = [c.change for c in self.cells if c.change]
        verdicts = tally(cell.comparison for cell in self.cells)
        return verdicts | {word: changed.count(word) for word in ("worse", "better")}

    @property
    def apart(self) -> tuple[float, float] | None:
        """How far the two runs' times lie apart, as shares: of the middle cell, and nine in ten."""
        ratios = [cell.comparison.ratio for cell in self.cells if cell.comparison]
        if not ratios:
            return None
        shares = [max(ratio, 1.0 / ratio) - 1.0 for ratio in ratios]
        middle, most = np.quantile(shares, [0.5, 0.9])
        return float(middle), float(most)

    @property
    def exit_status(self) -> int:
        """1 where something is slower or ended worse."""
        counts = self.counts()
        return int(bool(counts[Verdict.SLOWER] or counts["worse"]))

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "a": self.a,
            "b": self.b,
            "paired": False,
            "margin": self.margin,
            "across_devices": self.across_devices,
            "differences": [asdict(d) for d in self.differences],
            "cells": [cell.to_dict() for cell in self.cells],
            "alike": self.alike,
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "counts": self.counts(),
            "apart": self.apart,
        }


def compare_runs(a: Path, b: Path) -> RunsComparison:
    """Run b against run a; raises :class:`Incomparable`."""
    headers = read_header(a), read_header(b)
    with collector_off():
        records = list(read_records(a)), list(read_records(b))
    return compared((str(a), str(b)), headers, records)


def compared(
    names: tuple[str, str],
    headers: tuple[Header, Header],
    records: tuple[Sequence[Record], Sequence[Record]],
) -> RunsComparison:
    """Of two runs that were read, the second against the first; raises :class:`Incomparable`."""
    _refuse_unlike_protocols(names, headers, records)
    cells_a, cells_b = _by_cell(*records)
    common = [key for key in cells_b if key in cells_a]
    if not common:
        raise Incomparable(
            f"{names[0]} and {names[1]} have no cell in common: the first has "
            f"{_example(cells_a)}, the second {_example(cells_b)}; measure the same grid twice"
        )
    margin = max(MARGIN, *(_floor(header.get("noise")) for header in headers))
    found = [_compared(cells_a[key], cells_b[key], headers, margin) for key in common]
    telling = [c for c in found if c.status_b is not c.status_a or c.status_b is Status.MEASURED]
    return RunsComparison(
        *names,
        tuple(differences(*headers)),
        tuple(_together(telling)),
        alike=len(found) - len(telling),
        margin=margin,
        only_a=tuple(_name(r) for key, r in cells_a.items() if key not in cells_b),
        only_b=tuple(_name(r) for key, r in cells_b.items() if key not in cells_a),
    )


def _refuse_unlike_protocols(
    names: Sequence[str], headers: Sequence[Header], records: Sequence[Sequence[Record]]
) -> None:
    headed = [header.get("protocol") for header in headers]
    timed = [sorted({r.protocol for r in some if r.time}) for some in records]
    if len({*headed, *timed[0], *timed[1]}) > 1:
        said = "; ".join(dict.fromkeys(map(_protocols_said, names, headed, timed)))
        raise Incomparable(
            f"{said}: numbers of unlike protocols are never compared; measure again with one "
            "attnbench"
        )


def _protocols_said(run: str, headed: Any, timed: Sequence[int]) -> str:
    """What a run was measured with, or which of its files says what."""
    if headed is not None and set(timed) <= {headed}:
        return f"{run} was measured with protocol {headed}"
    header = f"{HEADER} says {'no protocol' if headed is None else f'protocol {headed}'}"
    if not timed:
        return f"in {run}, {header}"
    times = f"the times in {RECORDS} are of {' and '.join(map(str, timed))}"
    return f"the files of {run} do not agree: {header}, {times}"


def _by_cell(a: Sequence[Record], b: Sequence[Record]) -> tuple[dict[str, Record], ...]:
    """Each run's records by cell, the last of each; without the device where the two share none."""
    devices = [{r.problem.device for r in some} for some in (a, b)]
    unlike = devices[0].isdisjoint(devices[1])

    def key(record: Record) -> str:
        problem = record.problem.with_(device="cpu") if unlike else record.problem
        return cell_key(record.variant, problem)

    return {key(r): r for r in a}, {key(r): r for r in b}


def _compared(a: Record, b: Record, headers: Sequence[Header], margin: float) -> ComparedCell:
    comparison, notes = _timed(a.time, b.time, margin) if a.time and b.time else (None, [])
    peaks = [r.memory.peak_bytes if r.memory else None for r in (a, b)]
    across = _device(a, headers[0]) != _device(b, headers[1])
    said = (f"{side}: {r.reason}" for side, r in zip("ab", (a, b), strict=True) if r.reason)
    return ComparedCell(
        b.variant,
        b.problem,
        a.status,
        b.status,
        comparison,
        memory_ratio=peaks[1] / peaks[0] if peaks[0] and peaks[1] is not None else None,
        across_devices=across,
        reason="; ".join(said),
        notes=tuple(notes),
    )


def _timed(a: Time, b: Time, margin: float) -> tuple[Comparison | None, list[str]]:
    """Their samples, held against each other, and what was amiss."""
    notes = [f"{side}: {flag}" for side, time in (("a", a), ("b", b)) for flag in time.flags]
    doubt = bool(notes)
    if a.clock != b.clock:
        notes.append(f"the clocks are not the same: {a.clock} and {b.clock}")
    of_a, of_b = _usable(a), _usable(b)
    if not of_a or not of_b:
        return None, [*notes, "one has no samples above nought"]
    comparison = unpaired(of_a, of_b, margin)
    if doubt and comparison.verdict is not Verdict.INCONCLUSIVE:
        comparison = replace(comparison, verdict=Verdict.INCONCLUSIVE)
        notes.append("so nothing is decided")
    if comparison.n < LEAST_PAIRS:
        notes.append(f"fewer than {LEAST_PAIRS} samples on a side decide nothing")
    return comparison, notes


def _usable(time: Time) -> list[float]:
    """Samples that have a logarithm."""
    return [s for s in time.samples_s if s > 0 and math.isfinite(s)]


def _together(cells: Sequence[ComparedCell]) -> Iterator[ComparedCell]:
    """The cells with Holm's correction over all that have a comparison."""
    corrected = iter(holm([c.comparison for c in cells if c.comparison is not None]))
    for cell in cells:
        yield cell if cell.comparison is None else replace(cell, comparison=next(corrected))


def _device(record: Record, header: Header) -> tuple[str, ...]:
    """What the cell ran on: the kind of device and the names that the machine gives it."""
    kind, machine = record.problem.device.split(":")[0], header.get("machine") or {}
    if kind == "cpu":
        return kind, str(machine.get("cpu"))
    return kind, *sorted(str(gpu.get("name")) for gpu in machine.get("gpus", ()))


def _floor(noise: Any) -> float:
    """The largest noise floor that a header holds, whatever it is filed under."""
    if isinstance(noise, Mapping):
        inner = [noise["floor"]] if "floor" in noise else list(noise.values())
    elif isinstance(noise, list):
        inner = noise
    else:
        number = isinstance(noise, int | float) and math.isfinite(noise)
        return float(noise) if number else 0.0
    return max((_floor(each) for each in inner), default=0.0)


def _rank(status: Status) -> int:
    return next(rank for rank, some in enumerate(WORSE) if status in some)


def _name(record: Record) -> str:
    return f"{record.variant} on {regime_on_device(record.problem)}"


def _example(cells: Mapping[str, Record]) -> str:
    return next(map(_name, cells.values()), "no record")
