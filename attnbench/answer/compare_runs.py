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
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from attnbench.answer.ranking import MARGIN
from attnbench.core.disk import StoreError
from attnbench.core.format import doubt_words, key_values
from attnbench.core.lock import collector_off
from attnbench.core.record import Record, Status, cell_key
from attnbench.core.settings import allocator_of
from attnbench.core.stats import LEAST_PAIRS, Verdict, unpaired
from attnbench.core.store import read_header, read_records
from attnbench.core.wire import plain
from attnbench.sweep.compare import Compared, corrected

Header = Mapping[str, Any]
COMPARED = ("machine", "settings", "code", "seed", "budget_s", "tables", "tuned")
"""Of a header: what numbers may depend on."""
GROUPS = ("machine", "settings", "code", "versions", "environment")
WORSE = (
    {Status.MEASURED},
    {Status.UNSUPPORTED, Status.UNAVAILABLE},
    {Status.OUT_OF_MEMORY, Status.TIMED_OUT},
    {Status.FAILED, Status.CRASHED},
    {Status.IMPLAUSIBLE, Status.WRONG},
)
"""Statuses, each set worse than the one before."""
UNDECIDED = "so nothing is decided"
"""What a note says where another one casts doubt."""


class Incomparable(StoreError):
    """Two runs of which nothing can be said together; a sentence with what to do."""


class Difference(msgspec.Struct, frozen=True):
    """One thing that the two headers have otherwise."""

    what: str
    a: str
    b: str


def change_of(cell: Compared) -> str:
    """``worse`` or ``better`` by status, or nothing."""
    a, b = (
        next(n for n, some in enumerate(WORSE) if status in some)
        for status in (cell.status_a, cell.status)
    )
    return "worse" if b > a else "better" if b < a else ""


class RunsComparison(msgspec.Struct, frozen=True):
    """What can be said of run b against run a: of the cells that have a time in both, or another
    status in one than in the other; ``alike`` more ended alike and without a time.
    """

    a: str
    b: str
    differences: Sequence[Difference]
    cells: Sequence[Compared]
    alike: int
    only_a: Sequence[str]
    only_b: Sequence[str]
    margin: float

    def counts(self) -> dict[str, int]:
        """How often each verdict was given, and how often a status changed for worse or better."""
        verdicts = [str(cell.comparison.verdict) for cell in self.cells if cell.comparison]
        verdicts += [change_of(cell) for cell in self.cells]
        return {word: verdicts.count(word) for word in (*map(str, Verdict), "worse", "better")}

    @property
    def apart(self) -> tuple[float, float] | None:
        """How far the two runs' times lie apart, as shares: of the middle cell, and nine in ten."""
        ratios = [cell.comparison.ratio for cell in self.cells if cell.comparison]
        if not ratios:
            return None
        middle, most = np.quantile([max(x, 1.0 / x) - 1.0 for x in ratios], [0.5, 0.9])
        return float(middle), float(most)

    @property
    def exit_status(self) -> int:
        """1 where something is slower or ended worse."""
        counts = self.counts()
        return int(bool(counts[Verdict.SLOWER] or counts["worse"]))

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        cells = [{**plain(cell), "change": change_of(cell)} for cell in self.cells]
        values = msgspec.to_builtins(replace(self, cells=()))
        return {**values, "cells": cells, "apart": self.apart, "counts": self.counts()}


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
    _refuse_unlike_methods(names, headers, records)
    devices = [{r.problem.device for r in some} for some in records]
    unlike = devices[0].isdisjoint(devices[1])  # then cells are alike without their device

    def by_cell(some: Sequence[Record]) -> dict[str, Record]:
        problems = [r.problem.with_(device="cpu") if unlike else r.problem for r in some]
        return {cell_key(r.variant, p): r for r, p in zip(some, problems, strict=True)}

    cells_a, cells_b = map(by_cell, records)
    common = [key for key in cells_b if key in cells_a]
    only_a, only_b = (
        tuple(f"{r.variant} on {r.problem}" for key, r in some.items() if key not in other)
        for some, other in ((cells_a, cells_b), (cells_b, cells_a))
    )
    if not common:
        has = [next(iter(only), "no record") for only in (only_a, only_b)]
        raise Incomparable(
            f"{names[0]} and {names[1]} have no measurement in common: the first has {has[0]}, the "
            f"second {has[1]}; measure the same grid twice"
        )
    noise = chain.from_iterable(header.get("noise") or () for header in headers)
    margin = max([MARGIN, *(each["floor"] for each in noise)])
    cells = [_compared(cells_a[key], cells_b[key], headers, margin) for key in common]
    telling = [c for c in cells if c.status_a != c.status or c.status == Status.MEASURED]
    return RunsComparison(
        *names,
        differences=list(differences(*headers)),
        cells=corrected(telling),
        alike=len(cells) - len(telling),
        only_a=only_a,
        only_b=only_b,
        margin=margin,
    )


def differences(a: Header, b: Header) -> Iterator[Difference]:
    """Each value that two headers have otherwise, one at a time."""
    flat_a, flat_b = (dict(_flat({k: h.get(k) for k in COMPARED})) for h in (a, b))
    for path in dict.fromkeys([*flat_a, *flat_b]):
        one, other = (flat.get(path, "nothing") for flat in (flat_a, flat_b))
        if one != other:
            words = " ".join(part for part in path.split(".") if part not in GROUPS)
            words = "machine" if path == "machine.name" else words.replace("gpus", "gpu")
            yield Difference(words.replace("_", " "), one, other)
    files_a, files_b = (h.get("files") or {} for h in (a, b))
    same = {*files_a.values()} & {*files_b.values()}  # though it may lie elsewhere
    for file in dict.fromkeys([*files_a, *files_b]):
        if not {h[file] for h in (files_a, files_b) if file in h} <= same:
            yield Difference(file, *(h.get(file, "not read") for h in (files_a, files_b)))
    legs = [[c for leg in h.get("legs") or () for c in leg["changes"]] for h in (a, b)]
    if any(h.get("legs") for h in (a, b)):
        yield Difference("later legs", *("; ".join(changes) or "none" for changes in legs))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every single value with the path to it."""
    if isinstance(value, list) and any(isinstance(x, Mapping) for x in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        yield path, ", ".join(map(str, value)) or "nothing"
    else:
        yield path, "nothing" if value is None else str(value)


def _refuse_unlike_methods(
    names: Sequence[str], headers: Sequence[Header], records: Sequence[Sequence[Record]]
) -> None:
    protocols = [
        {header.get("protocol"), *(r.protocol for r in some if r.time)}
        for header, some in zip(headers, records, strict=True)
    ]
    if len(set().union(*protocols)) > 1:
        each = (" and ".join(sorted(map(str, some))) for some in protocols)
        runs = map("{} was measured with protocol {}".format, names, each)
        raise Incomparable(
            f"{'; '.join(runs)}: numbers of unlike protocols are never compared; measure again "
            "with one attnbench"
        )
    allocators = [allocator_of(header) for header in headers]
    if len(set(allocators)) > 1:
        runs = map("{} was measured with --allocator {}".format, names, allocators)
        raise Incomparable(
            f"{'; '.join(runs)}: a dense variant may take half as long with freed pages kept, so "
            "such runs are never compared; measure one of them again"
        )


def _compared(a: Record, b: Record, headers: Sequence[Header], margin: float) -> Compared:
    comparison, notes = None, []
    if a.time and b.time:
        notes = [
            f"{x}: {doubt_words(f)}" for x, t in (("a", a.time), ("b", b.time)) for f in t.doubts
        ]
        of_a, of_b = ([s for s in t.samples_s if math.isfinite(s)] for t in (a.time, b.time))
        comparison = unpaired(of_a, of_b, margin)
        if notes and comparison.verdict is not Verdict.INCONCLUSIVE:
            comparison = replace(comparison, verdict=Verdict.INCONCLUSIVE)
            notes.append(UNDECIDED)
        if comparison.n < LEAST_PAIRS:
            notes.append(f"fewer than {LEAST_PAIRS} samples on a side decide nothing")
        differ = [k for k, v in b.options.items() if a.options.get(k, v) != v]
        for what, one, other in (
            ("clocks", a.time.clock, b.time.clock),
            ("devices", _device(a, headers[0]), _device(b, headers[1])),
            ("options", *(key_values({k: r.options[k] for k in differ}) for r in (a, b))),
        ):
            if one != other:
                notes.append(f"the {what} are not the same: {one} and {other}")
    peaks = [r.memory.peak_bytes if r.memory else None for r in (a, b)]
    return Compared(
        problem=b.problem,
        variant=b.variant,
        computes=b.computes or a.computes,
        comparison=comparison,
        status=b.status,
        why=b.reason,
        status_a=a.status,
        why_a=a.reason,
        memory_ratio=peaks[1] / peaks[0] if peaks[0] and peaks[1] is not None else None,
        notes=tuple(notes),
    )


def _device(record: Record, header: Header) -> str:
    """The name that the machine gives to what the cell ran on."""
    kind, machine = record.problem.device.split(":")[0], header.get("machine") or {}
    if kind == "cpu":
        return str(machine.get("cpu"))
    return ", ".join(sorted({str(gpu.get("name")) for gpu in machine.get("gpus", ())})) or kind
