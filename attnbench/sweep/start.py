"""A run begun, or gone on with."""

from __future__ import annotations

import ast
import hashlib
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Self

import attnbench
import impls
from attnbench.core.checkout import code
from attnbench.core.disk import StoreError, long, named, short
from attnbench.core.evidence import stored_floors, stored_selfcheck
from attnbench.core.format import milliseconds
from attnbench.core.machine import Machine, this_machine, version_of
from attnbench.core.record import PROTOCOL, Record, Status, Time
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import Settings
from attnbench.core.store import read_header, read_records
from attnbench.sweep.plan import Plan, make_plan
from attnbench.sweep.presets import PRESETS, Preset, default_preset
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem

MEASURING = ("core", "gate", "meter", "sweep")
"""The folders of this package whose code is at work while something is measured."""
APART = "#"
"""In the name of a node, between the kind of machine and the number of a later leg."""
ALIKE = ("system", "cpu", "cores", "python", "torch_cuda")
"""Of a machine, what may not change within a leg; its versions and GPUs besides."""
OF_NO_ACCOUNT = ("asv",)
"""Versions that no measurement depends on."""
NAMED = 3


class CodeChanged(CantBeDone):
    """Code or a file that a measurement depends on was changed while the run went on."""


def leg_facts(plan: Plan, tables: Sequence[str | Path], machine: Machine) -> dict[str, Any]:
    """The code, the files and the versions that a plan's records depend on, for a header."""
    wanted = {word.partition(">")[0] for cell in plan.cells for word in cell.variant.requires}
    return {
        "code": {**code(), **{name: _digest(files) for name, files in _sources().items()}},
        "files": {short(str(f)): _digest([f]) for f in _files_of_leg(plan, tables)},
        "requires": {name: found for name in sorted(wanted) if (found := version_of(name))},
        "machine": machine.to_dict(),
    }


def last_leg(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's header, with the facts of its last leg."""
    legs = header.get("legs")
    return {**header, **legs[-1]} if legs else header


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the facts of a leg differ now, each in a few words."""
    if "files" not in then or "ruler" not in then["code"]:
        return ["an earlier attnbench measured it, which didn't write down with which code"]
    found = []
    for name, what in (("impls", "the code of the variants"), ("ruler", "the code that measures")):
        if then["code"][name] != now["code"][name]:
            found.append(f"{what} is not that of {_commit(then)} (now {_commit(now)})")
    before, after = then["files"], now["files"]
    same = {*before.values()} & {*after.values()}  # the file may have moved
    for file in dict.fromkeys([*before, *after]):
        if file in before and before[file] not in same:
            change = "holds something else" if file in after else "is not read any more"
            found.append(f"{file} {change}")
        elif file not in before and after[file] not in same:
            found.append(f"{file} is read too")
    versions, versions_now = _versions(then), _versions(now)
    for what in dict.fromkeys([*versions, *versions_now]):
        has = versions_now.get(what, "nothing")
        if what not in versions:
            found.append(f"{what} is {has} and was not there")
        elif has != versions[what]:
            found.append(f"{what} was {versions[what]} and is {has}")
    return found


class Unchanged:
    """Notices changes to what a leg depends on while the leg is measured."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        leg = last_leg(header)
        recorded = leg.get("code") or {}
        self._digests = {name: recorded[name] for name in ("impls", "ruler") if name in recorded}
        self._files: Mapping[str, str] = leg.get("files") or {}
        self._watched = [long(file) for file in self._files]
        if self._digests:
            self._watched += [file for files in _sources().values() for file in files]
        self._stamps: dict[Path, tuple[int, int]] | None = None

    def check(self) -> None:
        """Raises :class:`CodeChanged`. While no file is written, only their times are compared."""
        stamps = {file: _stamp(file) for file in self._watched}
        if stamps == self._stamps:
            return
        sources = _sources() if self._digests else {}
        changed = [n for n, digest in self._digests.items() if _digest(sources[n]) != digest]
        changed += [f for f, digest in self._files.items() if _digest([long(f)]) != digest]
        if changed:
            known = self._stamps or stamps
            written = [short(str(f)) for f, stamp in stamps.items() if known.get(f) != stamp]
            raise CodeChanged(
                f"{', '.join((written or changed)[:NAMED])} was changed while the run went on, so "
                "the cell at hand may be of the one or the other and is dropped"
            )
        self._stamps = stamps


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _sources() -> dict[str, list[Path]]:
    """The files of the code that is measured, and of the code that measures."""
    variants, own = (Path(str(package.__file__)).parent for package in (impls, attnbench))
    ruler = [*own.glob("*.py"), *(f for room in MEASURING for f in (own / room).rglob("*.py"))]
    return {"impls": sorted(variants.rglob("*.py")), "ruler": sorted(ruler)}


def _files_of_leg(plan: Plan, tables: Sequence[str | Path]) -> Iterator[Path]:
    """Files that records depend on: tables and what they import, masks, inputs, options' files."""
    yield from _imported([Path(table).resolve() for table in tables])
    for problem in dict.fromkeys(cell.problem for cell in plan.cells):
        files = [part.file for part in problem.mask.parts if part.file]
        kind, _, file = problem.inputs.partition(":")
        files += [file] if kind == "captured" else []
        yield from (Path(name).expanduser().resolve() for name in files)
    for variant in {cell.variant.label: cell.variant for cell in plan.cells}.values():
        for value in variant.given.values():
            if isinstance(value, str) and Path(value).is_file():
                yield Path(value).resolve()


def _imported(tables: Sequence[Path]) -> Iterator[Path]:
    """The tables, the modules beside them that they import, and what those import in turn."""
    left, seen = [*tables], {*tables}
    while left:
        yield (file := left.pop(0))
        try:
            nodes = [*ast.walk(ast.parse(file.read_bytes()))]
        except (OSError, SyntaxError, ValueError):
            continue
        names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        tops = {name.partition(".")[0] for name in names} - {""}
        for folder, top in product({table.parent for table in tables}, sorted(tops)):
            module = folder / f"{top}.py"
            files = [module] if module.is_file() else sorted((folder / top).rglob("*.py"))
            left += [each for each in files if each not in seen]
            seen.update(files)


def _digest(files: Iterable[Path]) -> str:
    """A digest of some files' names and contents."""
    found = hashlib.sha256()
    for file in files:
        found.update(b"\0" + file.name.encode() + b"\0")
        try:
            with file.open("rb") as opened:
                found.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError:
            found.update(b"missing")
    return found.hexdigest()[:16]


def _commit(leg: Mapping[str, Any]) -> str:
    facts = leg["code"]
    if not facts.get("commit"):
        return "an unknown commit"
    return f"commit {facts['commit'][:8]}" + (" with changes" if facts.get("dirty") else "")


def _versions(leg: Mapping[str, Any]) -> dict[str, str]:
    machine = leg["machine"]
    found = {name: str(machine.get(name)) for name in ALIKE}
    packages = {**leg.get("requires", {}), **machine.get("versions", {})}
    found |= {name: v for name, v in packages.items() if name not in OF_NO_ACCOUNT}
    for number, gpu in enumerate(machine.get("gpus", ())):
        found[f"GPU {number}"] = f"{gpu['name']} with driver {gpu['driver']}"
    return found


LESS = 0.9
"""Of a forward pass's least sample: the whole interval of a training step may not be under it."""
WORK_GROWS, TIME_STANDS = 3.0, 1.05
"""Work that grows by so much, in a time that grows by less than so much."""
OVERHEAD_S = {"cpu": 1e-3, "cuda": 1e-4}
"""A call as long as this is not all overhead."""


Kin = tuple[str, str, str, Problem]
"""A variant, a kind of machine, a mask, and a problem but for its lengths, phase and mask."""


class RunRecords:
    """What a run has so far: which cells, and the times that others are held against."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._cells: set[str] = set()
        self._times: dict[Kin, list[_Kept]] = {}
        for record in records:
            self._cells.add(record.key)
            if record.time is not None:
                self._kin(record).append(_Kept.of(record, record.time))

    def __contains__(self, key: str) -> bool:
        return key in self._cells

    def __len__(self) -> int:
        return len(self._cells)

    def doubt(self, record: Record) -> Record:
        """The record as it is, or as one that is not believed."""
        if record.time is None:
            return record
        kept, others = _Kept.of(record, record.time), self._kin(record)
        for other in others:
            if why := _contradiction(kept, other):
                return record.with_(status=Status.IMPLAUSIBLE, reason=why, time=None)
        others.append(kept)
        return record

    def _kin(self, record: Record) -> list[_Kept]:
        """Those that a record may contradict."""
        p = record.problem  # its mask may fit one length alone
        alike = p.with_(phase="forward", q_len=1, kv_len=1, mask=Mask())
        return self._times.setdefault((record.variant, record.node, str(p.mask), alike), [])


class _Kept(NamedTuple):
    """What is kept of a record to hold others against: a long run has many thousands."""

    phase: str
    lengths: tuple[int, int]
    flops: float | None
    overhead_s: float
    waits: bool
    """For other ranks, which is no work, and may be most of its time."""
    min_s: float
    low_s: float
    median_s: float
    high_s: float

    @classmethod
    def of(cls, record: Record, time: Time) -> Self:
        """From a record with a time."""
        problem, cost = record.problem, record.cost
        return cls(
            phase=problem.phase,
            lengths=(problem.q_len, problem.kv_len),
            flops=None if cost is None else cost.flops,
            overhead_s=OVERHEAD_S[problem.device.split(":")[0]],
            waits=bool(record.ranks),
            min_s=time.min_s,
            low_s=time.low_s,
            median_s=time.median_s,
            high_s=time.high_s,
        )


def _contradiction(one: _Kept, other: _Kept) -> str:
    """Why two times can't both be true; empty where they can."""
    if one.lengths == other.lengths:
        phases = {one.phase: one, other.phase: other}
        train, forward = phases.get("train"), phases.get("forward")
        if train and forward and train.high_s < LESS * forward.min_s:
            return (
                f"a training step took {milliseconds(train.median_s)} and its forward pass alone "
                f"{milliseconds(forward.median_s)}"
            )
        return ""
    short, long = sorted((one, other), key=lambda kept: kept.lengths[1])
    if one.phase != other.phase or one.waits or other.waits:
        return ""
    if short.flops is None or long.flops is None or short.median_s < short.overhead_s:
        return ""
    grows = long.flops / max(short.flops, 1)
    if grows < WORK_GROWS or long.high_s >= TIME_STANDS * short.low_s:
        return ""
    return (
        f"its time stands still from {short.lengths[1]} to {long.lengths[1]} tokens "
        f"({milliseconds(short.median_s)}, {milliseconds(long.median_s)}) while its work grows "
        f"{grows:.2g}-fold"
    )


class UnknownPreset(CantBeDone):
    """No preset has this name; a sentence."""


@dataclass
class Run:
    """A plan, the folder its records go to, and what that folder already holds."""

    plan: Plan
    folder: RunFolder
    done: RunRecords
    settings: Settings


def find_preset(name: str | None, machine: Machine) -> Preset:
    """A preset by name; the default for what is there if no name is given."""
    name = name or default_preset(machine.devices)
    if name not in PRESETS:
        raise UnknownPreset(f"there is no preset {name!r}; the presets are {', '.join(PRESETS)}")
    return PRESETS[name]


def pinned(threads: int | None, machine: Machine) -> int:
    """How many threads a measurement takes; refuses more than there are cores."""
    if threads is not None and threads > machine.cores:
        raise InvalidProblem(
            f"--threads {threads} on {machine.cores} cores: threads would wait for each other; "
            f"start a run with {machine.cores} at the most"
        )
    return threads or machine.threads


def begin(
    names: Sequence[str],
    grid: Preset,
    tables: Sequence[str],
    out: Path,
    *,
    seed: int,
    threads: int | None,
    energy: bool = False,
    machine: Machine | None = None,
    command: str | None = None,
    problems: Sequence[Problem] = (),
) -> Run:
    """A new run. Everything that can be refused is refused before the folder is made.

    ``machine``: where it is measured, if that is another than this. ``command``: what repeats it,
    where that is not how this process was called. ``problems``: in place of the grid's, which then
    only says in short what they are.
    """
    machine = machine or this_machine()
    settings = Settings(threads=pinned(threads, machine))
    grid, problems = _with_files_named(grid), [_with_file_named(problem) for problem in problems]
    plan = make_plan(impls.table(tables), names, grid, machine, problems)
    header = {
        "protocol": PROTOCOL,
        "seed": seed,
        "budget_s": grid.budget,
        "variants": list(names),
        "energy": energy,
        "noise": stored_floors(out, machine, settings.threads),
        "selfcheck": _told(stored_selfcheck(out, machine.name)),
        "grid": asdict(grid),
        "problems": [p.to_dict() for p in problems],
        "cells": len({cell.key for cell in plan.cells}),
        "tables": [str(Path(t).resolve()) for t in tables],
        "settings": settings.to_dict(),
        **leg_facts(plan, tables, machine),
        "folder": str(Path.cwd()) if _files(asdict(grid)) else "",
        "command": command or shlex.join(["attnbench", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return Run(plan, RunFolder.create(out, machine.name, header), RunRecords(), settings)


def resume(
    path: Path, machine: Machine | None = None, tables: Sequence[str] = (), *, anyway: bool = False
) -> Run:
    """A run to go on with: the same grid, without the cells that have a record.

    ``tables``: the files of rows that the run was given, named again. A header alone makes no file
    run: the folder may come from somebody else. Where the code, a file or a version is not what it
    was, that is refused in a sentence, unless ``anyway``: then what is measured from here on is
    another leg of the run, and ranked apart.
    """
    header, machine = read_header(path), machine or this_machine()
    try:
        if header["protocol"] != PROTOCOL:
            raise StoreError(
                f"{path} was measured with protocol {header['protocol']} and this attnbench has "
                f"{PROTOCOL}: numbers of unlike protocols can't share a run; start a new one"
            )
        if header["machine"]["name"] != machine.name:
            raise StoreError(
                f"{path} was measured on {header['machine']['name']}, and this is {machine.name}; "
                "start a new run"
            )
        grid = Preset.from_dict(header["grid"])
        for needed in ("seed", "budget_s"):
            header[needed]
        if not isinstance(header.get("noise") or [], list):
            raise TypeError(f"noise is {str(header['noise'])[:50]!r}")
        _same_folder(header)
        _named_again(path, header["tables"], tables)
        table = impls.table(tables)
        given = [Problem.from_dict(values) for values in header.get("problems", ())]
        plan = make_plan(table, header["variants"], grid, machine, given)
        settings = Settings(**{k: v for k, v in header["settings"].items() if k != "environment"})
        pinned(settings.threads, machine)
        now = leg_facts(plan, tables, machine)
        changed = differences(last_leg(header), now)
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"the header of {path} is damaged ({error}); start a new run") from None
    if (
        changed
        and (done := RunRecords(read_records(path)))
        and all(c.key in done for c in plan.cells)
    ):
        changed = []  # nothing is left to be measured, so nothing is mixed
    if changed and not anyway:
        raise StoreError(
            f"{path} can't go on as it began: {'; '.join(changed)}. Put that back, start a new "
            "run, or add --anyway, which measures the rest as another leg of this run, ranked apart"
        )
    folder = RunFolder.reopen(path)
    if changed:
        _begin_leg(folder, now, changed)
    return Run(plan, folder, RunRecords(read_records(path)), settings)


def _named_again(path: Path, before: Sequence[str], tables: Sequence[str]) -> None:
    """Raise unless the files of rows that a run was given are those that are named now."""
    if sorted(Path(table).name for table in before) == sorted(Path(table).name for table in tables):
        return
    files = shlex.join(word for table in before for word in ("--table", table))
    raise StoreError(
        f"{path} has rows of {', '.join(before)}, whose code a resumed run executes: if you trust "
        f"it, go on with {files}"
        if before
        else f"{path} was measured without --table; leave it out"
    )


def _begin_leg(folder: RunFolder, now: dict[str, Any], changed: list[str]) -> None:
    """Write down that records from here on are taken with other code, files or versions."""
    leg = {
        **now,
        "changes": changed,
        "command": shlex.join(["attnbench", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    folder.header.setdefault("legs", []).append(leg)
    folder.save_header()


def _with_files_named(grid: Preset) -> Preset:
    """The grid, with its masks' and inputs' files as :func:`named` spells them."""
    return replace(
        grid,
        mask=tuple(str(_mask_named(Mask.parse(text))) for text in grid.mask),
        inputs=tuple(map(_inputs_named, grid.inputs)),
        parts=tuple(map(_with_files_named, grid.parts)),
    )


def _with_file_named(problem: Problem) -> Problem:
    return problem.with_(mask=_mask_named(problem.mask), inputs=_inputs_named(problem.inputs))


def _mask_named(mask: Mask) -> Mask:
    parts = (replace(part, file=named(part.file)) if part.file else part for part in mask.parts)
    return replace(mask, parts=tuple(parts))


def _inputs_named(inputs: str) -> str:
    kind, colon, file = inputs.partition(":")
    return f"{kind}:{named(file)}" if colon else inputs


def _told(selfcheck: dict[str, Any] | None) -> dict[str, Any] | None:
    """Of the ruler's self-check on that machine, what a reader of the run asks for."""
    return selfcheck and {k: selfcheck.get(k) for k in ("line", "date")}


def _files(grid: dict[str, Any]) -> list[str]:
    """What a grid reads: masks and inputs that are files."""
    each = grid.get("parts") or [grid]
    masks = [x for one in each for x in one["mask"] if "dense:" in x or "bias:" in x]
    return masks + [x for one in each for x in one["inputs"] if x.startswith("captured:")]


def _same_folder(header: dict[str, Any]) -> None:
    """Refuse to look for a mask's or an input's file in another folder than the run did."""
    files = _files(header["grid"])
    if files and long(header["folder"]) != Path.cwd():
        raise StoreError(f"the run reads {files[0]}: resume it from {header['folder']}")
