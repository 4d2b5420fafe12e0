"""What the records of a run are taken with: code, versions, files; and whether that has changed.

The header of a run says all of it. A run goes on as another *leg* where something has changed since
and the user says ``--anyway``: the header gets a list ``legs``, and the records of a later leg name
a node of their own, so that no ranking, table or history puts them beside the earlier ones.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attnbench
import impls
from attnbench.machine import Machine, version_of
from attnbench.paths import long, short
from attnbench.sweep.checkout import code
from attnbench.sweep.plan import Plan
from impls.asked import CantBeDone

MEASURING = ("measure", "truth", "sweep")
"""The rooms of this package whose code is at work while something is measured."""
APART = "#"
"""In the name of a node, between the kind of machine and the number of a later leg."""
ALIKE = ("system", "cpu", "cores", "python", "torch_cuda")
"""Of a machine, what may not change within a leg; its versions and GPUs besides."""
OF_NO_ACCOUNT = ("asv",)
"""Versions that no measurement depends on."""
NAMED = 3


class CodeChanged(CantBeDone):
    """Something that is measured, or that measures, was changed while the run went on."""


def taken_with(plan: Plan, tables: Sequence[str | Path], machine: Machine) -> dict[str, Any]:
    """What stands in a header about the code, the files and the versions of a plan's records."""
    wanted = {word.partition(">")[0] for cell in plan.cells for word in cell.variant.requires}
    return {
        "code": {**code(), **{name: _digest(files) for name, files in _sources().items()}},
        "files": {short(str(f)): _digest([f]) for f in _files(plan, tables)},
        "requires": {name: found for name in sorted(wanted) if (found := version_of(name))},
        "machine": machine.to_dict(),
    }


def latest(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the header says of the run's last leg."""
    return {**header, **(legs[-1] if (legs := header.get("legs")) else {})}


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is otherwise now than in a leg, each in a few words."""
    if "files" not in then or "ruler" not in then["code"]:
        return ["an earlier attnbench measured it, which didn't write down with which code"]
    found = []
    for name, what in (("impls", "the code of the variants"), ("ruler", "the code that measures")):
        if then["code"][name] != now["code"][name]:
            found.append(f"{what} is not that of {_commit(then)} (now {_commit(now)})")
    same = {*then["files"].values()} & {*now["files"].values()}  # though it may lie elsewhere
    for file, digest in then["files"].items():
        if digest not in same:
            found.append(f"{file} holds something else" if file in now["files"] else
                         f"{file} is not read any more")  # fmt: skip
    found += [f"{file} is read too" for file, digest in now["files"].items()
              if digest not in same and file not in then["files"]]  # fmt: skip
    for what, before in _versions(then).items():
        if (after := _versions(now).get(what, "nothing")) != before:
            found.append(f"{what} was {before} and is {after}")
    found += [f"{what} is {after} and was not there"
              for what, after in _versions(now).items() if what not in _versions(then)]  # fmt: skip
    return found


class Unchanged:
    """Notices that what a leg is taken with is changed while it goes on."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        leg = latest(header)
        known = leg.get("code") or {}
        self._digests = {name: known[name] for name in ("impls", "ruler") if name in known}
        self._files: Mapping[str, str] = leg.get("files") or {}
        self._watched = [*map(long, self._files)]
        self._watched += [f for some in _sources().values() for f in some] if self._digests else []
        self._stamps: dict[Path, tuple[int, int]] | None = None

    def check(self) -> None:
        """Raises :class:`CodeChanged`; where no file was written since, it only looks at times."""
        stamps = dict(self._now())
        if stamps == self._stamps:
            return
        sources = _sources() if self._digests else {}
        found = [name for name, digest in self._digests.items() if _digest(sources[name]) != digest]
        found += [f for f, digest in self._files.items() if _digest([long(f)]) != digest]
        if found:
            before = self._stamps or {}
            touched = [short(str(file)) for file, stamp in stamps.items()
                       if before and before.get(file) != stamp]  # fmt: skip
            raise CodeChanged(
                f"{', '.join((touched or found)[:NAMED])} was changed while the run went on, so "
                "the cell at hand may be of the one or the other and is dropped"
            )
        self._stamps = stamps

    def _now(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for file in self._watched:
            try:
                about = file.stat()
            except OSError:
                yield file, (0, 0)
            else:
                yield file, (about.st_mtime_ns, about.st_size)


def _sources() -> dict[str, list[Path]]:
    """The files of the code that is measured, and of the code that measures."""
    variants, own = (Path(str(package.__file__)).parent for package in (impls, attnbench))
    ruler = [*own.glob("*.py"), *(f for room in MEASURING for f in (own / room).rglob("*.py"))]
    return {"impls": sorted(variants.rglob("*.py")), "ruler": sorted(ruler)}


def _files(plan: Plan, tables: Sequence[str | Path]) -> Iterator[Path]:
    """Files that records depend on: tables and what they import, masks, inputs, and options'."""
    yield from _imported([Path(table).resolve() for table in tables])
    for problem in dict.fromkeys(cell.problem for cell in plan.cells):
        named = [part.file for part in problem.mask.parts if part.file]
        kind, _, file = problem.inputs.partition(":")
        named += [file] if kind == "captured" else []
        yield from (Path(name).expanduser().resolve() for name in named)
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
        for table in tables:
            for top in {name.partition(".")[0] for name in names} - {""}:
                module = table.parent / f"{top}.py"
                package = module.with_suffix("")
                found = [module] if module.is_file() else sorted(package.rglob("*.py"))
                left += [each for each in found if each not in seen]
                seen.update(found)


def _digest(files: Iterable[Path]) -> str:
    """A word that is another where one of the files is, by its name or by what it holds."""
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
    about = leg["code"]
    dirty = " with changes" if about.get("dirty") else ""
    return f"commit {about['commit'][:8]}{dirty}" if about.get("commit") else "an unknown commit"


def _versions(leg: Mapping[str, Any]) -> dict[str, str]:
    machine = leg["machine"]
    found = {name: str(machine.get(name)) for name in ALIKE}
    packages = {**leg.get("requires", {}), **machine.get("versions", {})}
    found |= {name: v for name, v in packages.items() if name not in OF_NO_ACCOUNT}
    for number, gpu in enumerate(machine.get("gpus", ())):
        found[f"GPU {number}"] = f"{gpu['name']} with driver {gpu['driver']}"
    return found
