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


def mathematics(path: str) -> str:
    """The text at the top of the file that a path names, read without running it."""
    place = path.rpartition(":")[0]
    if not place.endswith(".py"):
        spec = importlib.util.find_spec(place)
        if spec is None or spec.origin is None:
            return f"(the module {place} is not there)"
        place = spec.origin
    text = ast.get_docstring(ast.parse(Path(place).read_text()))
    return text or f"({Path(place).name} says nothing of its mathematics)"
