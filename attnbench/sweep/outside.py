"""The code of rows from outside attnbench, as a run depends on it: its files, and its commit."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attnbench.core.checkout import code
from impls import own_rows
from impls.loading import file_of
from impls.spec import Variant

CODE = frozenset(
    ".py .so .c .cc .cpp .cxx .h .hpp .cu .cuh .cl .hip .metal .ptx .cubin".split()  # noqa: SIM905
)
"""Files of a package that are code, though it be compiled when it is first called."""


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
        for top in sorted(_imports(left.pop())):
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
    return sorted(f for f in (folder / top).rglob("*") if f.suffix in CODE and f.is_file())


def _package(place: str) -> list[Path]:
    """The files of the package that a module belongs to."""
    if (file := file_of(place)) is None:
        return []
    file, deep = file.resolve(), place.count(".") + (file.name == "__init__.py")
    return _modules(file.parents[deep], place.partition(".")[0])
