"""Start or resume a run."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attnbench
import impls
from attnbench.core.checkout import code
from attnbench.core.disk import StoreError, long, name_from_here, short, table_words
from attnbench.core.evidence import stored_floors, stored_selfcheck
from attnbench.core.format import counted, duration
from attnbench.core.machine import Machine, this_machine, version_of
from attnbench.core.record import PROTOCOL, Record, Status, Time
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import PLAIN, Settings
from attnbench.core.store import read_header, read_records
from attnbench.sweep.outside import code_files, origins, outside_rows
from attnbench.sweep.plan import Plan, make_plan
from attnbench.sweep.presets import PRESETS, Preset
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem

if TYPE_CHECKING:
    import argparse

MEASURING = ("core", "gate", "meter", "sweep")
"""The folders of this package whose code is at work while something is measured."""
APART = "#"
"""In the name of a node, between the kind of machine and the number of a later leg."""
ALIKE = ("system", "cpu", "cores", "python", "torch_cuda")
"""Of a machine, what may not change within a leg; its versions and GPUs besides."""


def leg_facts(plan: Plan, tables: Sequence[str | Path], machine: Machine) -> dict[str, Any]:
    """The code, the files and the versions that a plan's records depend on, for a header."""
    names = {word.partition(">")[0] for cell in plan.cells for word in cell.variant.requires}
    outside = outside_rows(cell.variant for cell in plan.cells)
    files = dict.fromkeys([*code_files(outside, tables), *_files_of_leg(plan)])
    return {
        "code": {**code(), **{name: digest(files) for name, files in sources().items()}},
        "outside": {short(origin): facts for origin, facts in origins(outside).items()},
        "files": {short(str(f)): digest([f]) for f in files},
        "requires": {name: version for name in sorted(names) if (version := version_of(name))},
        "tuned": plan.tuned,
        "machine": machine.to_dict(),
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the facts of a leg differ now, each in a few words."""
    code = then["code"]
    if "files" not in then or "ruler" not in code:
        return ["an earlier attnbench measured it, which didn't write down with which code"]
    commit = f"commit {code['commit'][:8]}" if code.get("commit") else "an unknown commit"
    commit += " with changes" * bool(code.get("commit") and code.get("dirty"))
    what = {"impls": "the code of the variants", "ruler": "the code that measures"}
    changes = [
        f"{what[name]} is not that of {commit}" for name in what if code[name] != now["code"][name]
    ]
    before, after = then["files"], now["files"]
    same = {*before.values()} & {*after.values()}  # the file may have moved
    for file in dict.fromkeys([*before, *after]):
        if file in before and before[file] not in same:
            change = "holds something else" if file in after else "is not read any more"
            changes.append(f"{file} {change}")
        elif file not in before and after[file] not in same:
            changes.append(f"{file} is read too")
    tuned, tuned_now = (leg.get("tuned") or {} for leg in (then, now))
    for label in dict.fromkeys([*tuned, *tuned_now]):
        if tuned.get(label) != tuned_now.get(label):
            changes.append(f"the options tuned for {label} are others")
    versions, versions_now = _versions(then), _versions(now)
    for name in dict.fromkeys([*versions, *versions_now]):
        was, has = versions.get(name, "nothing"), versions_now.get(name, "nothing")
        if was != has:
            changes.append(f"{name} was {was} and is {has}")
    return changes


def _versions(leg: Mapping[str, Any]) -> dict[str, str]:
    machine = leg["machine"]
    versions = {name: str(machine.get(name)) for name in ALIKE}
    versions |= {**leg.get("requires", {}), **machine.get("versions", {})}
    for number, gpu in enumerate(machine.get("gpus", ())):
        versions[f"GPU {number}"] = f"{gpu['name']} with driver {gpu['driver']}"
    versions.pop("asv", None)  # no measurement depends on it
    return versions


class Unchanged:
    """Notices changes to what a leg depends on while the leg is measured, by the files' times."""

    def __init__(self, folder: RunFolder) -> None:
        leg = {**folder.header, **[{}, *folder.header.get("legs", ())][-1]}
        self._folder = folder
        self._files = [long(file) for file in leg.get("files") or ()]
        if leg.get("code"):
            self._files += chain.from_iterable(sources().values())
        self._stamps = self._now()

    def _now(self) -> dict[Path, tuple[int, int]]:
        stamps = dict.fromkeys(self._files, (0, 0))
        for file in stamps:
            with suppress(OSError):
                status = file.stat()
                stamps[file] = status.st_mtime_ns, status.st_size
        return stamps

    def check(self) -> None:
        """Raise CantBeDone for a change."""
        now = self._now()
        if changed := [str(file) for file in now if now[file] != self._stamps[file]]:
            raise CantBeDone(
                f"{', '.join(map(short, changed[:3]))} was changed while the run went "
                "on, so the measurement at hand may be of either and is dropped; what was "
                f"measured before is kept. Put it back, then {self._folder.resumed_by}, or add "
                "--anyway to go on apart"
            )


def sources() -> dict[str, list[Path]]:
    """The files of the code that is measured, and of the code that measures."""
    variants, own = (Path(str(package.__file__)).parent for package in (impls, attnbench))
    ruler = [*own.glob("*.py"), *(f for room in MEASURING for f in (own / room).rglob("*.py"))]
    return {"impls": sorted(variants.rglob("*.py")), "ruler": sorted(ruler)}


def _files_of_leg(plan: Plan) -> Iterator[Path]:
    """Files that records depend on besides code: masks, inputs, options' files."""
    for problem in dict.fromkeys(cell.problem for cell in plan.cells):
        files = [part.file for part in problem.mask.parts if part.file]
        kind, _, file = problem.inputs.partition(":")
        files += [file] if kind == "captured" else []
        yield from (Path(name).expanduser().resolve() for name in files)
    for variant in {cell.variant.label: cell.variant for cell in plan.cells}.values():
        for value in variant.given.values():
            if isinstance(value, str) and Path(value).is_file():
                yield Path(value).resolve()


def digest(files: Iterable[Path]) -> str:
    """A digest of some files' names and contents."""
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(b"\0" + file.name.encode() + b"\0")
        try:
            with file.open("rb") as opened:
                hasher.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError:
            hasher.update(b"missing")
    return hasher.hexdigest()[:16]


LESS = 0.9
"""Of a forward pass's least sample: the whole interval of a training step may not be under it."""
WORK_GROWS, TIME_STANDS = 3.0, 1.05
"""Work that grows by so much, in a time that grows by less than so much."""
OVERHEAD_S = {"cpu": 1e-3, "cuda": 1e-4}
"""A call as long as this is not all overhead."""


class _TimeSoFar(NamedTuple):
    """What is kept of a record to hold others against: a long run has many thousands."""

    problem: Problem
    time: Time
    """Without its samples."""
    flops: float | None
    """None too where ranks wait for each other, which is no work."""


class RunRecords:
    """What a run has so far: which cells, and the times that others are held against."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._cells: set[str] = set()
        self._times: dict[tuple[Any, ...], list[_TimeSoFar]] = {}
        for record in records:
            self._cells.add(record.key)
            self.doubt(record)

    def __contains__(self, key: str) -> bool:
        return key in self._cells

    def __len__(self) -> int:
        return len(self._cells)

    def doubt(self, record: Record) -> Record:
        """The record as it is, whose time is kept; or as one that contradicts another's time, and
        is not believed.
        """
        if record.time is None:
            return record
        p, flops = record.problem, record.cost.flops if record.cost and not record.ranks else None
        entry = _TimeSoFar(p, record.time.with_(samples_s=[]), flops)
        # its mask may fit one length alone
        alike = p.with_(phase="forward", q_len=1, kv_len=1, mask=Mask())
        others = self._times.setdefault((record.variant, record.node, str(p.mask), alike), [])
        if why := next(filter(None, (_contradiction(entry, other) for other in others)), ""):
            return record.with_(status=Status.IMPLAUSIBLE, reason=why, time=None)
        others.append(entry)
        return record


def _contradiction(one: _TimeSoFar, other: _TimeSoFar) -> str:
    """Why two times can't both be true; empty where they can."""
    less, more = sorted((one, other), key=lambda entry: entry.problem.kv_len)
    p, q, short_s, long_s = less.problem, more.problem, less.time, more.time
    if (p.q_len, p.kv_len) == (q.q_len, q.kv_len):
        times = {p.phase: short_s, q.phase: long_s}
        train, forward = times.get("train"), times.get("forward")
        if train and forward and train.high_s < LESS * forward.min_s:
            return (
                f"a training step took {duration(train.median_s)} and its forward pass alone "
                f"{duration(forward.median_s)}"
            )
        return ""
    if p.phase != q.phase or short_s.median_s < OVERHEAD_S[p.device.split(":")[0]]:
        return ""
    grows = more.flops / max(less.flops, 1) if less.flops is not None and more.flops else 0.0
    if grows < WORK_GROWS or long_s.high_s >= TIME_STANDS * short_s.low_s:
        return ""
    return (
        f"its time stands still from {p.kv_len} to {q.kv_len} tokens "
        f"({duration(short_s.median_s)}, {duration(long_s.median_s)}) while its work grows "
        f"{grows:.2g}-fold"
    )


@dataclass
class Run:
    """A plan, the folder its records go to, and what that folder already holds."""

    plan: Plan
    folder: RunFolder
    done: RunRecords
    settings: Settings

    @property
    def left(self) -> int:
        """How many cells are to be measured."""
        return sum(cell.key not in self.done for cell in self.plan.to_run)


def find_preset(name: str | None, machine: Machine) -> Preset:
    """A preset by name, or the default for what is there; raises CantBeDone for no such name."""
    name = name or machine.devices[-1]
    if name not in PRESETS:
        raise CantBeDone(f"there is no preset {name!r}; the presets are {', '.join(PRESETS)}")
    return PRESETS[name]


def pinned(threads: int | None, machine: Machine) -> int:
    """How many threads a measurement takes; raises InvalidProblem for more than there are cores."""
    if threads is not None and threads > machine.cores:
        raise InvalidProblem(
            f"--threads {threads} on {counted(machine.cores, 'core')}: threads would wait for each "
            f"other; start a run with {machine.cores} at the most"
        )
    return threads or machine.threads


def settings_of(arguments: argparse.Namespace, machine: Machine) -> Settings:
    """What ``--threads`` and ``--allocator`` ask for."""
    threads, allocator = pinned(arguments.threads, machine), arguments.allocator or PLAIN
    return Settings(threads=threads, allocator=allocator)


def _now(command: str | None = None) -> dict[str, str]:
    """What repeats a leg, and when it begins."""
    command = command or shlex.join(["attnbench", *sys.argv[1:]])
    return {"command": command, "started": datetime.now(UTC).isoformat(timespec="seconds")}


def begin(
    names: Sequence[str],
    grid: Preset,
    tables: Sequence[str],
    out: Path,
    *,
    seed: int,
    threads: int | None,
    allocator: str | None = None,
    energy: bool = False,
    machine: Machine | None = None,
    command: str | None = None,
    problems: Sequence[Problem] = (),
) -> Run:
    """A new run. Everything that can be refused raises CantBeDone before the folder is made.

    ``machine``: where it is measured, if that is another than this. ``command``: what repeats it,
    where that is not how this process was called. ``problems``: in place of the grid's, which then
    only says in short what they are.
    """
    machine = machine or this_machine()
    settings = Settings(threads=pinned(threads, machine), allocator=allocator or PLAIN)
    grid = _with_files_named(grid)
    problems = [as_recorded(p) for p in problems]
    plan = make_plan(impls.table(tables), names, grid, machine, problems, tuned=True)
    selfcheck = stored_selfcheck(out, machine.name)
    header = {
        "protocol": PROTOCOL,
        "seed": seed,
        "budget_s": grid.budget,
        "variants": list(names),
        "energy": energy,
        "noise": stored_floors(out, machine, settings),
        "selfcheck": selfcheck and {k: selfcheck.get(k) for k in ("line", "date")},
        "grid": asdict(grid),
        "problems": [p.to_dict() for p in problems],
        "cells": len({cell.key for cell in plan.cells}),
        "tables": [str(Path(t).resolve()) for t in tables],
        "settings": settings.to_dict(),
        **leg_facts(plan, tables, machine),
        "folder": str(Path.cwd()) if _files(asdict(grid)) else "",
        **_now(command),
    }
    return Run(plan, RunFolder.create(out, machine.name, header), RunRecords(), settings)


def resume(
    path: Path, machine: Machine | None = None, tables: Sequence[str] = (), *, anyway: bool = False
) -> Run:
    """A run to go on with: the same grid, without the cells that have a record.

    ``tables``: the files of rows that the run was given, named again. A header alone makes no file
    run: the folder may come from somebody else. Raises CantBeDone where it can't go on here; also
    where the code, a file or a version is not what it was, unless ``anyway``: then what is measured
    from here on is another leg of the run, and ranked apart.
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
        _check_same(path, header, tables)
        problems = [Problem.from_dict(values) for values in header.get("problems", ())]
        grid = Preset.from_dict(header["grid"])
        table = impls.table(tables)
        plan = make_plan(table, header["variants"], grid, machine, problems, tuned=True)
        settings = Settings(**{k: v for k, v in header["settings"].items() if k != "environment"})
        pinned(settings.threads, machine)
        now = leg_facts(plan, tables, machine)
        changed = differences({**header, **[{}, *header.get("legs", ())][-1]}, now)
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"the header of {path} is damaged ({error}); start a new run") from None
    done = RunRecords(read_records(path)) if changed else RunRecords()
    if all(cell.key in done for cell in plan.cells):
        changed = []  # nothing is left to be measured, so nothing is mixed
    if changed and not anyway:
        raise StoreError(
            f"{path} can't go on as it began: {'; '.join(changed)}. Put that back, start a new "
            "run, or add --anyway, which measures the rest as another leg of this run, ranked apart"
        )
    folder = RunFolder.reopen(path)
    if changed:
        folder.header.setdefault("legs", []).append({**now, "changes": changed, **_now()})
        folder.save_header()
    return Run(plan, folder, RunRecords(read_records(path)), settings)


def _check_same(path: Path, header: Mapping[str, Any], tables: Sequence[str]) -> None:
    """Raise where a header lacks something, other files of rows are named, or masks' and inputs'
    files would be looked for in another folder.
    """
    for needed in ("seed", "budget_s"):
        header[needed]
    files = _files(header["grid"])
    if files and long(header["folder"]) != Path.cwd():
        raise StoreError(f"the run reads {files[0]}: resume it from {header['folder']}")
    before = header["tables"]
    if sorted(Path(table).name for table in before) != sorted(Path(table).name for table in tables):
        again = shlex.join(table_words(header))
        raise StoreError(
            f"{path} has rows of {', '.join(before)}, whose code a resumed run executes: if you "
            f"trust it, go on with {again}"
            if before
            else f"{path} was measured without --table; leave it out"
        )


def _with_files_named(grid: Preset) -> Preset:
    """The grid, with its masks' and inputs' files as :func:`name_from_here` spells them."""
    return replace(
        grid,
        mask=tuple(str(_mask_named(Mask.parse(text))) for text in grid.mask),
        inputs=tuple(map(_inputs_named, grid.inputs)),
        parts=tuple(map(_with_files_named, grid.parts)),
    )


def as_recorded(problem: Problem) -> Problem:
    """The problem with its files named as a run's records name them."""
    return problem.with_(mask=_mask_named(problem.mask), inputs=_inputs_named(problem.inputs))


def _mask_named(mask: Mask) -> Mask:
    parts = (
        replace(part, file=name_from_here(part.file)) if part.file else part for part in mask.parts
    )
    return replace(mask, parts=tuple(parts))


def _inputs_named(inputs: str) -> str:
    kind, colon, file = inputs.partition(":")
    return f"{kind}:{name_from_here(file)}" if colon else inputs


def _files(grid: Mapping[str, Any]) -> list[str]:
    """What a grid reads: masks and inputs that are files."""
    each = grid.get("parts") or [grid]
    masks = [x for one in each for x in one["mask"] if "dense:" in x or "bias:" in x]
    return masks + [x for one in each for x in one["inputs"] if x.startswith("captured:")]
