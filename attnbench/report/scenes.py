"""The runs of a report, and their regimes in the order of the page."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from attnbench.answer.layers import LayerChoice, layer_choices
from attnbench.answer.ranking import margin_of, margin_reason, ran_the_same, torch_rank
from attnbench.answer.regimes import Regime, regimes
from attnbench.answer.standings import Crossing, Standing, crossings, standings
from attnbench.core.disk import RECORDS, StoreError
from attnbench.core.format import counted, duration, percent, size
from attnbench.core.lock import collector_off
from attnbench.core.record import FINDINGS, Record
from attnbench.core.settings import KEPT, allocator_of
from attnbench.core.store import StoredRecords, read_header, some_runs
from impls.errors import CantBeDone


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
    """Sentences on the run as a whole: lines that can't be read, measurements that are missing."""
    again: int = 0
    """Measurements that were repeated, as the machine had drifted."""

    @cached_property
    def margin(self) -> float:
        """The largest lead that counts as none in this run."""
        return margin_of(self.records)

    @cached_property
    def coverage(self) -> tuple[int, int] | None:
        """Measurements that have a record, and all of them; None where all have one."""
        cells, there = self.header.get("cells"), len({record.key for record in self.records})
        return (there, cells) if isinstance(cells, int) and there < cells else None

    @cached_property
    def layers(self) -> list[LayerChoice]:
        """The answers for each kind of layer, where the run is of a model and its rows are here."""
        try:
            return layer_choices(self.records, self.header)
        except CantBeDone:
            return []

    @property
    def selfcheck(self) -> str:
        """What the self-check had said on its machine when it began."""
        found = self.header.get("selfcheck")
        if not isinstance(found, Mapping) or not found.get("line"):
            return "ruler self-check: not run here yet; 'attnbench selfcheck' takes some minutes"
        return f"{found['line']} ({str(found.get('date', ''))[:10] or 'no date'})"

    @property
    def machine(self) -> str:
        """The name of its machine."""
        return str((self.header.get("machine") or {}).get("name") or self.path.parent.name)

    @property
    def name(self) -> str:
        """``20261122-015809 on amd-epyc-2c``, with its folder's name where that differs."""
        run, folder = str(self.header.get("run") or ""), self.path.name
        name = f"{folder} ({run})" if run and run != folder else folder
        return f"{name} on {self.machine}"

    @property
    def machine_line(self) -> str:
        """``AMD EPYC, 2 cores, 23.5 GiB · torch 2.13.0+cpu · 1 thread · 22 November 2026``"""
        machine, settings = part(self.header, "machine"), part(self.header, "settings")
        words = [", ".join(hardware(machine)) or self.machine]
        if version := part(machine, "versions").get("torch"):
            words.append(f"torch {version}")
        if threads := settings.get("threads"):
            words.append(counted(threads, "thread"))
        if allocator_of(self.header) == KEPT:
            words.append("freed pages kept")
        if started := self.header.get("started"):
            day = datetime.fromisoformat(started)
            words.append(f"{day.day} {day:%B %Y}")
        return " · ".join(words)

    @cached_property
    def margin_reason(self) -> str:
        """The largest difference that counts as a tie, and why; empty where nothing has a time."""
        return margin_reason(self.records) if any(r.time for r in self.records) else ""

    @property
    def trust(self) -> list[str]:
        """Sentences: the margin, the self-check, the noise floor, what was noisy."""
        return [*filter(None, [self.margin_reason]), *_trust(self)]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The first facts of the header; run.json has all."""
        return list(_facts(self))

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that repeat the run, without the folders of its machine, and this report."""
        path = self.path.resolve()
        report = f"attnbench report {shlex.quote(f'results/{path.parent.name}/{path.name}')}"
        words = shlex.split(str(self.header.get("command") or ""))
        repeat = shlex.join(FOLDERS.sub(r"\1", word) for word in words)
        return (repeat, report) if repeat else (report,)


def hardware(machine: Mapping[str, Any]) -> list[str]:
    """The GPUs, the CPU, its cores and the memory of a machine."""
    each = (f"{g['name']}, {size(g['memory_bytes'])}" for g in machine.get("gpus") or ())
    parts = [f"{count} × {gpu}" if count > 1 else gpu for gpu, count in Counter(each).items()]
    cpu, cores, memory = (machine.get(name) for name in ("cpu", "cores", "memory_bytes"))
    parts += [str(cpu) if cpu else "", counted(cores, "core") if cores else ""]
    return [part for part in (*parts, size(memory) if memory else "") if part]


def part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a header; empty where it has none."""
    return values.get(name) or {}


# ---- the provenance of a run ---------------------------------------------------------------------

FOLDERS = re.compile(r"(^|[=:])/(?:[^/]*/)*")
"""The folders of an absolute path, alone or behind the name of an option."""
UNKNOWN = "not said"


def _trust(run: ReportRun) -> Iterator[str]:
    timed = [r.time for r in run.records if r.time is not None]
    yield run.selfcheck
    floors = []
    for each in run.header.get("noise") or ():
        floors.append(f"{percent(each['floor'])} for calls of {duration(each['call_s'])}")
    of = "noise floor, by which a variant in pairs seems to differ from itself"
    none = "noise floor: not measured on this machine yet; 'attnbench env' does it"
    yield f"{of}: {', '.join(floors)}" if floors else none
    refused = Counter(str(r.status) for r in run.records if r.status in FINDINGS)
    each = "; ".join(f"{count} {word}" for word, count in sorted(refused.items()))
    have = "has" if len(timed) == 1 else "have"
    passed = f"{counted(len(timed), 'measurement')} passed the correctness checks and {have} a time"
    yield f"{passed}; {each or 'none was wrong, implausible or failed'}"
    flags = Counter(word for t in timed for word in {flag.split(":")[0] for flag in t.doubts})
    if flags:
        each = ", ".join(f"{flag} ({count})" for flag, count in sorted(flags.items()))
        noisy = sum(bool(t.doubts) for t in timed)
        more = ", some for several reasons" if sum(flags.values()) > noisy else ""
        yield f"{noisy} of {len(timed)} timings were noisy{more}: {each}"
    else:
        yield "no timing was noisy"
    if run.again:
        yield f"{counted(run.again, 'measurement')} made while the machine drifted were repeated"
    yield from run.notes


def _facts(run: ReportRun) -> Iterator[tuple[str, str]]:
    header, machine = run.header, part(run.header, "machine")
    records, code = run.path / RECORDS, part(header, "code")
    digest = hashlib.sha256(records.read_bytes()).hexdigest() if records.exists() else "of no file"
    dirty = ", with uncommitted changes" if code.get("dirty") is True else ""
    ceilings = part(header, "ceilings")
    rates = [f"{x / 1e12:.3g} TFLOP/s in {of}" for of, x in part(ceilings, "flops").items() if x]
    copies = {int(copied): rate for copied, rate in part(ceilings, "copy").items() if rate}
    rates += [f"{rate / 1e9:.3g} GB/s copying {size(copied)}" for copied, rate in copies.items()]
    clocks = Counter(record.time.clock for record in run.records if record.time)
    yield "run", f"{header.get('run') or run.path.name}, started {header.get('started') or UNKNOWN}"
    yield "machine", ", ".join([run.machine, *hardware(machine)])
    yield "system", f"{machine.get('system', UNKNOWN)}, Python {machine.get('python', '?')}"
    yield "versions", _pairs(part(machine, "versions"))
    yield "settings", _pairs(part(header, "settings"))
    yield "clocks", ", ".join(f"{x} ({n} measurements)" for x, n in clocks.items()) or "none"
    yield "code", f"commit {code.get('commit') or 'not known'}{dirty}"
    yield "protocol", f"{header.get('protocol', UNKNOWN)} (records of form {header['schema']})"
    yield "ceilings", "; ".join(rates) or "not measured"
    yield "records", f"{len(run.records)}, sha256 {digest}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items()) or UNKNOWN


# ---- regimes ------------------------------------------------------------------------------------


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
    def crossings(self) -> list[Crossing]:
        """The lengths between which one variant overtakes another."""
        return crossings(self.regime, self.standings, self.run.margin)

    @cached_property
    def one_kernel(self) -> dict[str, list[str]]:
        """Variants with others that ran the same kernel at every length, which figures leave out.

        What leads at some length under its own name stands for itself.
        """
        timed = {n: self.regime.timed(n) for n in self.regime.lengths}
        lead = {name for s in self.standings for name in s.leaders}
        names = dict.fromkeys(name for cells in timed.values() for name in cells)
        groups: dict[str, list[str]] = {}
        for name in sorted(names, key=lambda name: (name not in lead, torch_rank(name))):
            for first, others in groups.items() if name not in lead else ():
                both = [(x[first], x[name]) for x in timed.values() if {first, name} <= x.keys()]
                if both and all(ran_the_same(*pair) for pair in both):
                    others.append(name)
                    break
            else:
                groups[name] = []
        return {name: others for name, others in groups.items() if others}

    @property
    def timed(self) -> bool:
        """True where anything at all has a time."""
        return any(standing.timed for standing in self.standings)


def scenes(runs: Sequence[ReportRun]) -> list[Scene]:
    """Every regime of every run, numbered through."""
    pairs = [(run, regime) for run in runs for regime in regimes(run.records)]
    return [Scene(number, run, regime) for number, (run, regime) in enumerate(pairs)]


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no name may have: ends of lines, commands to a terminal, half a letter."""


def gather(paths: Sequence[Path]) -> list[ReportRun]:
    """The runs at or below these paths, each once, in the order given; raises StoreError where none
    holds a record.
    """
    read, empty = list[ReportRun](), list[Path]()
    for path in some_runs(paths):
        with collector_off():
            run = read_run(path, len(read))
        if run.records:
            read.append(run)
        else:
            empty.append(path)
    if not read:
        raise StoreError(
            f"{', '.join(map(str, empty))} holds no record: nothing has been measured there; go on "
            f"with it by 'attnbench run --resume {empty[0]}'"
        )
    if empty:
        left_out = f"left out, for there is no record in it: {', '.join(p.name for p in empty)}"
        read[0] = replace(read[0], notes=(*read[0].notes, left_out))
    return read


def read_run(path: Path, number: int = 0, stored: StoredRecords | None = None) -> ReportRun:
    """A run; its records are without control characters in their names and reasons. Raises
    StoreError for what is no run.

    ``stored``: its records, where they were read before.
    """
    header, stored = read_header(path), stored or StoredRecords.read(path)
    records = []
    for record in stored.records:
        if CONTROL.search(record.variant + record.reason):
            variant, reason = (CONTROL.sub("\ufffd", x) for x in (record.variant, record.reason))
            record = record.with_(variant=variant, reason=reason)
        records.append(record)
    run = ReportRun(number, path, header, records, stored.lines, again=stored.again)
    legs = (
        f"leg {n} of the run, whose measurements are ranked apart: {'; '.join(leg['changes'])}"
        for n, leg in enumerate(header.get("legs", ()), 2)
    )
    return replace(run, notes=(*_notes(run), *stored.faults(), *legs))


def not_advised(records: Iterable[Record]) -> Iterator[str]:
    """Each variant that has a time and is wrong on other kinds of inputs, with the first reason."""
    reasons: dict[str, str] = {}
    for record in records:
        if record.wrong_on and record.time:
            reasons.setdefault(record.variant, record.wrong_on)
    for name, why in reasons.items():
        yield f"never advised: {name}, wrong on other inputs, {why}"


def _notes(run: ReportRun) -> Iterator[str]:
    """Sentences on what a run lacks, and on what torch chose."""
    if run.coverage:
        there, cells = run.coverage
        yield (
            f"{there} of the {cells} measurements asked for have a record: the rest was not "
            "begun, or not ended; 'attnbench run --resume' with its folder goes on"
        )
    yield from not_advised(run.records)
    ran: dict[str, Counter[str]] = {}
    for record in run.records:
        for name in re.findall(r"torch chose ([^(]+) \(", record.note):
            ran.setdefault(record.variant, Counter())[name] += 1
    for variant, backends in ran.items():
        counts = ", ".join(f"{name} in {n}" for name, n in backends.most_common())
        yield f"torch chose what {variant} ran: {counts} measurements"
