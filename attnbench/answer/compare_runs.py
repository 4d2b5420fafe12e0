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
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.answer.ranking import MARGIN
from attnbench.core.disk import HEADER, RECORDS, StoreError
from attnbench.core.format import doubt_words, key_values
from attnbench.core.lock import collector_off
from attnbench.core.record import Record, Status, cell_key
from attnbench.core.stats import LEAST_PAIRS, Comparison, Verdict, holm, tally, unpaired
from attnbench.core.store import read_header, read_records
from impls.problem import Problem

Header = Mapping[str, Any]
COMPARED = ("machine", "settings", "code", "seed", "budget_s", "tables", "tuned")
"""Of a header: what numbers may depend on."""
SAID_SHORT = {
    "machine.name": "machine",
    "machine.torch_cuda": "torch's CUDA",
    "budget_s": "budget",
    "machine.memory_bytes": "memory, bytes",
    "code.dirty": "uncommitted changes",
}
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


@dataclass(frozen=True)
class Difference:
    """One thing that the two headers have otherwise."""

    what: str
    a: str
    b: str


@dataclass(frozen=True)
class ComparedCell:
    """One cell of both runs, its problem as run b has it; ``memory_ratio`` is b's peak over a's.
    ``reason``: why the side that has no time has none; ``notes``: what disturbed the timing.
    """

    variant: str
    problem: Problem
    status_a: Status
    status_b: Status
    comparison: Comparison | None
    memory_ratio: float | None
    across_devices: bool
    reason: str
    notes: tuple[str, ...]
    computes: str

    @property
    def change(self) -> str:
        """``worse`` or ``better`` by status, or nothing."""
        a, b = (
            next(n for n, some in enumerate(WORSE) if status in some)
            for status in (self.status_a, self.status_b)
        )
        return "worse" if b > a else "better" if b < a else ""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **asdict(self),
            "problem": self.problem.to_dict(),
            "status_a": str(self.status_a),
            "status_b": str(self.status_b),
            "comparison": self.comparison and self.comparison.to_dict(),
            "change": self.change,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class RunsComparison:
    """What can be said of run b against run a: of the cells that have a time in both, or another
    status in one than in the other; ``alike`` more ended alike and without a time.
    """

    a: str
    b: str
    differences: tuple[Difference, ...]
    cells: tuple[ComparedCell, ...]
    alike: int
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
        middle, most = np.quantile([max(x, 1.0 / x) - 1.0 for x in ratios], [0.5, 0.9])
        return float(middle), float(most)

    @property
    def exit_status(self) -> int:
        """1 where something is slower or ended worse."""
        counts = self.counts()
        return int(bool(counts[Verdict.SLOWER] or counts["worse"]))

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        names = ("a", "b", "margin", "across_devices", "alike", "apart")
        return {
            **{name: getattr(self, name) for name in names},
            "paired": False,
            "differences": [asdict(d) for d in self.differences],
            "cells": [cell.to_dict() for cell in self.cells],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "counts": self.counts(),
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
    telling = [c for c in cells if c.status_b is not c.status_a or c.status_b is Status.MEASURED]
    corrected = iter(holm([c.comparison for c in telling if c.comparison is not None]))
    return RunsComparison(
        *names,
        tuple(differences(*headers)),
        tuple(
            c if c.comparison is None else replace(c, comparison=next(corrected)) for c in telling
        ),
        alike=len(cells) - len(telling),
        margin=margin,
        only_a=only_a,
        only_b=only_b,
    )


def differences(a: Header, b: Header) -> Iterator[Difference]:
    """Each value that two headers have otherwise, one at a time."""
    flat_a, flat_b = (dict(_flat({k: h.get(k) for k in COMPARED})) for h in (a, b))
    for path in dict.fromkeys([*flat_a, *flat_b]):
        one, other = (flat.get(path, "nothing") for flat in (flat_a, flat_b))
        if one != other:
            words = " ".join(part for part in path.split(".") if part not in GROUPS)
            yield Difference(SAID_SHORT.get(path, words.replace("gpus", "gpu")), one, other)
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
    protocols, sentences = set(), {}
    for name, header, some in zip(names, headers, records, strict=True):
        headed, timed = header.get("protocol"), {r.protocol for r in some if r.time}
        protocols |= {headed, *timed}
        words = f"{name} was measured with protocol {headed or 'none'}"
        if timed - {headed}:
            words += f" by {HEADER}, and with {' and '.join(map(str, sorted(timed)))} by {RECORDS}"
        sentences[name] = words
    if len(protocols) > 1:
        raise Incomparable(
            f"{'; '.join(sentences.values())}: numbers of unlike protocols are never compared; "
            "measure again with one attnbench"
        )


def _compared(a: Record, b: Record, headers: Sequence[Header], margin: float) -> ComparedCell:
    comparison, notes = None, []
    if a.time and b.time:
        notes = [
            f"{x}: {doubt_words(f)}" for x, t in (("a", a.time), ("b", b.time)) for f in t.doubts
        ]
        doubt = bool(notes)
        if a.time.clock != b.time.clock:
            notes.append(f"the clocks are not the same: {a.time.clock} and {b.time.clock}")
        of_a, of_b = ([s for s in t.samples_s if math.isfinite(s)] for t in (a.time, b.time))
        comparison = unpaired(of_a, of_b, margin)
        if doubt and comparison.verdict is not Verdict.INCONCLUSIVE:
            comparison = replace(comparison, verdict=Verdict.INCONCLUSIVE)
            notes.append(UNDECIDED)
        if comparison.n < LEAST_PAIRS:
            notes.append(f"fewer than {LEAST_PAIRS} samples on a side decide nothing")
        if differ := [k for k, v in b.options.items() if a.options.get(k, v) != v]:
            each = (key_values({k: r.options[k] for k in differ}) for r in (a, b))
            notes.append(f"the options are not the same: {' and '.join(each)}")
    peaks = [r.memory.peak_bytes if r.memory else None for r in (a, b)]
    reasons = (f"{side}: {r.reason}" for side, r in zip("ab", (a, b), strict=True) if r.reason)
    return ComparedCell(
        b.variant,
        b.problem,
        a.status,
        b.status,
        comparison,
        memory_ratio=peaks[1] / peaks[0] if peaks[0] and peaks[1] is not None else None,
        across_devices=_device(a, headers[0]) != _device(b, headers[1]),
        reason="; ".join(reasons),
        notes=tuple(notes),
        computes=b.computes or a.computes,
    )


def _device(record: Record, header: Header) -> tuple[str, ...]:
    """What the cell ran on: the kind of device and the names that the machine gives it."""
    kind, machine = record.problem.device.split(":")[0], header.get("machine") or {}
    if kind == "cpu":
        return kind, str(machine.get("cpu"))
    return kind, *sorted(str(gpu.get("name")) for gpu in machine.get("gpus", ()))
