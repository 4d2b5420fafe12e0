"""Start or resume a run."""

from __future__ import annotations

import ast
import hashlib
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError, structs

import attnbench
import impls
from attnbench.core.checkout import code
from attnbench.core.disk import StoreError, long, name_from_here, short, table_words
from attnbench.core.evidence import stored_floors, stored_selfcheck
from attnbench.core.format import counted
from attnbench.core.machine import Machine, this_machine, version_of
from attnbench.core.record import PROTOCOL
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import PLAIN, Settings, allocator_of
from attnbench.core.store import read_header
from attnbench.core.wire import convert, plain
from attnbench.sweep.plan import Cell, Plan, ceilings_s, make_plan
from attnbench.sweep.presets import PRESETS, Preset
from impls import own_rows
from impls.errors import CantBeDone
from impls.loading import file_of
from impls.masks import Mask
from impls.problem import INPUTS, InvalidProblem, Problem
from impls.spec import Variant

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
        "machine": machine.facts(),
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the facts of a leg differ now, each in a few words."""
    code = then["code"]
    what = {"impls": "the code of the variants", "ruler": "the code that measures"}
    changes = [f"{what[name]} has changed" for name in what if code[name] != now["code"][name]]
    before, after = (  # by their names alone, for they may have moved
        {(Path(file).name, digest) for file, digest in leg["files"].items()} for leg in (then, now)
    )
    changes += [f"{name} has changed" for name in sorted({name for name, _ in before ^ after})]
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


def latest_leg(header: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of what was measured last."""
    return {**header, **[{}, *header.get("legs", ())][-1]}


def check_unchanged(folder: RunFolder, since: float) -> None:
    """Raise CantBeDone where a file that the run's leg depends on was changed since a moment."""
    leg = latest_leg(folder.header)
    code = chain.from_iterable(sources().values()) if leg.get("code") else ()
    for file in (*map(long, leg.get("files", ())), *code):
        if not file.exists() or file.stat().st_mtime > since:
            raise CantBeDone(
                f"{short(str(file))} was changed while the run went on, so the measurement at hand "
                "may be of either and is dropped; what was measured before is kept. Put it back, "
                f"then {folder.resumed_by}, or add --anyway to go on apart"
            )


def sources() -> dict[str, list[Path]]:
    """The files of the code that is measured, and of the code that measures."""
    variants, own = (Path(str(package.__file__)).parent for package in (impls, attnbench))
    ruler = [*own.glob("*.py"), *(f for room in MEASURING for f in (own / room).rglob("*.py"))]
    return {"impls": sorted(variants.rglob("*.py")), "ruler": sorted(ruler)}


CODE = frozenset(
    ".py .so .c .cc .cpp .cxx .h .hpp .cu .cuh .cl .hip .metal .ptx .cubin".split()  # noqa: SIM905
)
"""Files of a package that are code, though it be compiled when it is first called."""
OURS = {"attnbench", "impls"}
"""Never a folder beside a file of rows, though one there has the name."""


def outside_rows(variants: Iterable[Variant]) -> list[Variant]:
    """The rows among some variants, and their cores, that are not attnbench's, one a name."""
    both = (row for variant in variants for row in (variant, variant.core) if row is not None)
    return list({row.name: row for row in both if row.name not in own_rows()}.values())


def origins(rows: Iterable[Variant]) -> dict[str, dict[str, Any]]:
    """By distribution or row file: its rows, and its commit where that can be told."""
    by_origin: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.origin not in by_origin:
            file = file_of(row.origin if row.origin.endswith(".py") else row.build)
            facts = code(file.resolve().parent) if file else {"commit": None, "dirty": None}
            by_origin[row.origin] = {"rows": [], **facts}
        by_origin[row.origin]["rows"].append(row.name)
    return by_origin


def code_files(rows: Sequence[Variant], tables: Sequence[str | Path]) -> list[Path]:
    """The files of rows' code: the row files, the packages that hold what rows name, and what
    files beside the row files these import in turn.
    """
    left = [Path(table).resolve() for table in tables]
    beside = sorted({table.parent for table in left})
    paths = [x for row in rows for x in (row.build, row.definition, row.cost, row.shares) if x]
    for place in dict.fromkeys(path.rpartition(":")[0] for path in paths):
        left += [Path(place).resolve()] if place.endswith(".py") else _package(place)
    files = dict.fromkeys(left)
    while left:
        for top in sorted(_imports(left.pop()) - OURS):
            new = [f for folder in beside for f in _modules(folder, top) if f not in files]
            files.update(dict.fromkeys(new))
            left += new
    return list(files)


def _imports(file: Path) -> set[str]:
    """The first words of all that a file imports."""
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))] if file.suffix == ".py" else []
    except (OSError, SyntaxError, ValueError):
        return set()
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - {""}


def _modules(folder: Path, top: str) -> list[Path]:
    """The files of a module or a package that lies in a folder."""
    if (module := folder / f"{top}.py").is_file():
        return [module]
    files = (folder / top).rglob("*")
    hidden = len(folder.parts)
    return sorted(
        file
        for file in files
        if file.suffix in CODE
        and not any(part.startswith(".") for part in file.parts[hidden:])
        and file.is_file()
    )


def _package(place: str) -> list[Path]:
    """The files of the package that a module belongs to."""
    if (file := file_of(place)) is None:
        return []
    file, deep = file.resolve(), place.count(".") + (file.name == "__init__.py")
    return _modules(file.parents[deep], place.partition(".")[0])


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


@dataclass
class Run:
    """A plan, and the folder that its records go to."""

    plan: Plan
    folder: RunFolder
    settings: Settings

    @property
    def left(self) -> list[Cell]:
        """The cells that are to be measured."""
        return [cell for cell in self.plan.to_run if cell.key not in self.folder]

    @property
    def about_s(self) -> float:
        """A guess at the seconds of the worker's start, the ceilings, and these cells."""
        return ceilings_s() + sum(cell.guess_s for cell in self.left)


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
    """The settings that ``--threads`` and ``--allocator`` ask for."""
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
    same_bits: bool = False,
    machine: Machine | None = None,
    command: str | None = None,
    problems: Sequence[Problem] = (),
) -> Run:
    """A new run. Everything that can be refused raises CantBeDone before the folder is made.

    ``same_bits``: each cell is tried for them, and not each variant's first alone.
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
        "same_bits": same_bits,
        "noise": stored_floors(out, machine, settings),
        "checked_inputs": list(INPUTS),
        "selfcheck": selfcheck and {k: selfcheck.get(k) for k in ("line", "date")},
        "grid": plain(grid),
        "problems": [plain(p) for p in problems],
        "cells": len({cell.key for cell in plan.cells}),
        "tables": [str(Path(t).resolve()) for t in tables],
        "settings": settings.facts(),
        **leg_facts(plan, tables, machine),
        **_now(command),
    }
    return Run(plan, RunFolder.create(out, machine.name, header), settings)


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
        _check_same(path, header, machine, tables)
        problems = [convert(values, Problem) for values in header.get("problems", ())]
        grid = convert(header["grid"], Preset)
        table = impls.table(tables)
        plan = make_plan(table, header["variants"], grid, machine, problems, tuned=True)
        threads = pinned(header["settings"]["threads"], machine)
        settings = Settings(threads=threads, allocator=allocator_of(header))
        now = leg_facts(plan, tables, machine)
        changed = differences(latest_leg(header), now)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise StoreError(f"the header of {path} is damaged ({error}); start a new run") from None
    run = Run(plan, RunFolder.reopen(path), settings)
    if not run.left:
        changed = []  # nothing is left to be measured, so nothing is mixed
    if changed and not anyway:
        run.folder.close()
        raise StoreError(
            f"{path} can't go on as it began: {'; '.join(changed)}. Put that back, start a new "
            "run, or add --anyway, which measures the rest as another leg of this run, ranked apart"
        )
    if changed:
        run.folder.header.setdefault("legs", []).append({**now, "changes": changed, **_now()})
        run.folder.save_header()
    return run


def _check_same(
    path: Path, header: Mapping[str, Any], machine: Machine, tables: Sequence[str]
) -> None:
    """Raise where a header lacks something, or is of another protocol, machine or files of rows."""
    for needed in ("seed", "budget_s"):
        header[needed]
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
    """The grid, with its masks' and inputs' files as records name them."""
    return structs.replace(
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
    return mask.of(parts)


def _inputs_named(inputs: str) -> str:
    kind, colon, file = inputs.partition(":")
    return f"{kind}:{name_from_here(file)}" if colon else inputs
