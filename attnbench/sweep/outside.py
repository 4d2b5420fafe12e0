"""The code of rows from outside attnbench, as a run depends on it: its files, and its commit."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnbench.core.checkout import code, commit_installed
from impls import own_rows
from impls.loading import file_of
from impls.outside import GROUP
from impls.spec import Variant

CODE = frozenset(
    ".py .so .c .cc .cpp .cxx .h .hpp .cu .cuh .cl .hip .metal .ptx .cubin".split()  # noqa: SIM905
)
"""Files of a package that are code, though it be compiled when it is first called."""
OURS = {"attnbench", "impls"}
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, of this Python or of one that it shares them with."""


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
            if facts["commit"] is None and (dist := _distribution(row.origin)):
                facts = commit_installed(dist)
            by_origin[row.origin] = {"rows": [], **facts}
        by_origin[row.origin]["rows"].append(row.name)
    return by_origin


def code_files(rows: Sequence[Variant], tables: Sequence[str | Path]) -> list[Path]:
    """The files of rows' code: the row files, the packages and the distributions that hold it, and
    what these import in turn that is not installed as others' packages are.
    """
    left = [Path(table).resolve() for table in tables]
    paths = [x for row in rows for x in (row.build, row.definition, row.cost, row.shares) if x]
    places = [path.rpartition(":")[0] for path in paths]
    for origin in {row.origin for row in rows}:
        if dist := _distribution(origin):
            places += [x.module for x in dist.entry_points if x.group == GROUP]
            files = (Path(str(dist.locate_file(file))) for file in dist.files or ())
            left += [
                f.resolve() for f in files if f.suffix in CODE and "__editable__" not in f.name
            ]
    for place in dict.fromkeys(places):
        left += [Path(place).resolve()] if place.endswith(".py") else _package(place)
    beside = {Path(table).resolve().parent for table in tables}
    all_files, met = dict.fromkeys(left), set[str]()
    while left:
        tops = set(_imports(left.pop(0))) - met
        met |= tops
        for top in sorted(tops):
            near = [file for folder in sorted(beside) for file in _modules(folder, top)]
            new = [file for file in near or _editable(top) if file not in all_files]
            all_files.update(dict.fromkeys(new))
            left += new
    return list(all_files)


def _distribution(origin: str) -> importlib.metadata.Distribution | None:
    name, _, version = origin.partition(" ")
    try:
        dist = importlib.metadata.distribution(name) if version else None
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    return dist if dist and dist.version == version else None


def _imports(file: Path) -> Iterator[str]:
    """The first words of all that a file imports."""
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))] if file.suffix == ".py" else []
    except (OSError, SyntaxError, ValueError):
        return
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    yield from {name.partition(".")[0] for name in names} - {""}


def _modules(folder: Path, top: str) -> list[Path]:
    """The files of a module or a package that lies in a folder."""
    if (module := folder / f"{top}.py").is_file():
        return [module]
    return sorted(f for f in (folder / top).rglob("*") if f.suffix in CODE and f.is_file())


def _package(place: str) -> list[Path]:
    """The files of the package that a module belongs to."""
    if (file := file_of(place)) is None:
        return []
    file, deep = file.resolve(), place.count(".") + (file.name == "__init__.py")
    return _modules(file.parents[deep], place.partition(".")[0])


def _editable(top: str) -> list[Path]:
    """The files of a package that lies where somebody works on it."""
    if top in OURS or top in sys.stdlib_module_names or (file := file_of(top)) is None:
        return []
    return [] if INSTALLED & {*file.resolve().parts} else _package(top)
