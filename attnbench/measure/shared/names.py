"""Names that all variants share, and what stands behind them: functions of torch, NumPy and Python,
and the ruler itself, its functions, what is inside them, its classes and its numbers.
"""

from __future__ import annotations

import builtins
import gc
import json
import math
import os
import random
import statistics
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from operator import is_
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.profiler

OTHERS = (
    builtins, gc, json, math, os, random, statistics, sys, threading, time, tracemalloc, np,
    np.linalg, np.random, torch, torch.autograd, torch.cuda, torch.linalg, F, torch.profiler,
    torch.random, torch.special,
)  # fmt: skip
"""Modules whose functions the ruler and the variants call; only what is public counts."""
CLASSES = {"torch.Tensor": torch.Tensor, "torch.Tensor's base": torch._C.TensorBase,
           "pathlib.Path": Path, "threading.Thread": threading.Thread}  # fmt: skip
OWN = ("attnbench", "impls")
"""Packages in which everything counts."""
TABLES = "attnbench."
"""Where a module's lists and dicts are numbers of the ruler, and not somebody's memory."""
FOLLOWS = {"torch.Storage"}
"""Names that come to stand for something else when a setting changes, which is named already."""
BY_COMPILER = torch._disable_dynamo(torch.is_tensor).__code__
"""Inside what torch puts around functions of its own when its compiler is first loaded."""
_GONE = object()
_EVERY, _PAIRED = all, map
"""Python's own, whatever comes to stand behind their names."""


def snapshot() -> dict[str, Any]:
    """Who stands behind which name."""
    namespaces = list(_namespaces())
    functions = dict.fromkeys(_functions(namespaces))  # each once, however many names it has
    return {
        "names": [(where, live, dict(live)) for where, live in namespaces],
        "modules": {m.__name__: m for m in (*OTHERS, *_own_modules())},
        "insides": [(f, f.__code__, f.__defaults__, f.__kwdefaults__) for f in functions],
        "tables": [(where, table, table.copy()) for where, table in _tables(namespaces)],
        "loaded": len(sys.modules),
    }


def grown(before: Mapping[str, Any]) -> bool:
    """Whether there are names or modules that were not there."""
    return len(sys.modules) != before["loaded"] or any(
        len(live) != len(was) for _, live, was in before["names"]
    )


def renumbered(before: Mapping[str, Any]) -> Iterator[str]:
    """The ruler's numbers that are not as they were."""
    for where, table, was in before["tables"]:
        if table != was:
            yield where


def _own_modules() -> list[ModuleType]:
    return [
        module for name, module in list(sys.modules.items())
        if module is not None and name.partition(".")[0] in OWN
    ]  # fmt: skip


def _namespaces() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every module and every class that counts, by its name: the names in it, live."""
    for module in OTHERS:
        yield module.__name__, vars(module)
    for where, cls in CLASSES.items():
        yield where, vars(cls)
    for module in _own_modules():
        yield module.__name__, vars(module)
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield f"{module.__name__}.{name}", vars(value)


def _functions(namespaces: list[tuple[str, Mapping[str, Any]]]) -> Iterator[FunctionType]:
    """The functions of the ruler's modules and classes, methods and properties among them."""
    for where, names in namespaces:
        if where.partition(".")[0] not in OWN and where != F.__name__:
            continue
        for value in names.values():
            kind = type(value)
            if kind is FunctionType:
                yield value
            elif kind in (classmethod, staticmethod, property):
                function = value.fget if kind is property else value.__func__
                if type(function) is FunctionType:
                    yield function


def _tables(namespaces: list[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, Any]]:
    for where, names in namespaces:
        if where.startswith(TABLES):
            for name, value in names.items():
                if type(value) in (dict, list, set) and name.isupper():
                    yield f"{where}.{name}", value


def replaced(before: Mapping[str, Any]) -> Iterator[str]:
    """The names that stand for something else, and the functions that have another inside."""
    for name, module in before["modules"].items():
        if sys.modules.get(name) is not module:
            yield name
    for where, live, was in before["names"]:
        if live.keys() == was.keys() and _EVERY(_PAIRED(is_, live.values(), was.values())):
            continue
        own = where.partition(".")[0] in OWN
        get = live.get
        for name, value in was.items():
            now = get(name, _GONE)
            if now is not value and _counts(name, value, own) and not _by_compiler(now, value):
                yield from {f"{where}.{name}"} - FOLLOWS
        if len(live) != len(was):
            yield from (
                f"{where}.{name}" for name in live if name not in was and _hides(where, name)
            )
    for f, code, defaults, by_name in before["insides"]:
        if (
            f.__code__ is not code
            or f.__defaults__ is not defaults
            or f.__kwdefaults__ is not by_name
        ):
            yield f"the inside of {f.__module__}.{f.__qualname__}"


def _counts(name: str, value: object, own: bool) -> bool:
    """Whether this name may not come to stand for something else."""
    if name.startswith("__"):  # torch's compiler keeps names with two strokes, and takes them away
        return name.endswith("__") and isinstance(value, FunctionType)
    return own or (callable(value) and not name.startswith("_"))


def _by_compiler(now: object, was: object) -> bool:
    inside = getattr(now, "__code__", None)
    return inside is BY_COMPILER and getattr(now, "__wrapped__", None) is was


def _hides(where: str, name: str) -> bool:
    """Whether a new name stands before one that was found without it."""
    if where == "torch.Tensor":
        return hasattr(torch._C.TensorBase, name)
    return where.partition(".")[0] in OWN and hasattr(builtins, name) and not name.startswith("__")
