"""A row's code by its path: ``package.module:function``, or a file's."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def load_function(path: str) -> Callable[..., Any]:
    """The function at ``package.module:function`` or ``/folder/file.py:function``; raises
    AttributeError where the module defines none.
    """
    place, _, name = path.rpartition(":")
    module = load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    if not hasattr(module, name):
        raise AttributeError(f"{Path(place).name} defines no {name}")
    function: Callable[..., Any] = getattr(module, name)
    return function


def load_file(file: Path) -> ModuleType:
    """A file as a module, run once a process; files beside it can be imported by it."""
    name = "attnbench_table_" + "".join(c if c.isalnum() else "_" for c in str(file.resolve()))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        if (folder := str(file.resolve().parent)) not in sys.path:
            sys.path.append(folder)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def import_roots(folder: Path) -> tuple[Path, Path]:
    """The folders that may hold a project's modules: ``src``, and the top."""
    return folder / "src", folder


def module_file(module: str, root: Path) -> Path | None:
    """The file of a module under a root, found without importing anything."""
    place = root.joinpath(*module.split("."))
    files = place.with_name(f"{place.name}.py"), place / "__init__.py"
    return next((file for file in files if file.is_file()), None)


def file_of(path: str) -> Path | None:
    """The file that holds what a path names, or a module's; nothing is imported to find it."""
    place = path.rpartition(":")[0] or path
    if place.endswith(".py"):
        return Path(place) if Path(place).is_file() else None
    top = place.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)  # of a name without dots this runs no code
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if place == top and spec.origin and Path(spec.origin).is_file():
        return Path(spec.origin)
    roots = [Path(folder).parent for folder in spec.submodule_search_locations or ()]
    return next(filter(None, (module_file(place, root) for root in roots)), None)


def mathematics(path: str) -> str:
    """The text at the top of the file that a path names, read without running it."""
    if (file := file_of(path)) is None:
        return f"(the module {path.rpartition(':')[0]} is not there)"
    text = ast.get_docstring(ast.parse(file.read_text()))
    return text or f"({file.name} says nothing of its mathematics)"
