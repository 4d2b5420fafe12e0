"""Whose code a file holds: the ruler's, torch's, Python's own, another library's, or none of these.

Python, its packages or the checkout may lie behind symbolic links, and a file may then be spelled
in several ways. So files are compared with every link followed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from enum import StrEnum
from functools import lru_cache
from types import FrameType

import torch

import attnbench


class Owner(StrEnum):
    """To whom a file of code belongs."""

    RULER = "attnbench"
    TORCH = "torch"
    PYTHON = "Python"
    LIBRARY = "a library"
    OTHER = "other"


def _folders(*paths: str | None) -> tuple[str, ...]:
    return tuple({os.path.realpath(path) + os.sep for path in paths if path})


PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_PATHS = sysconfig.get_paths()
_LIBRARIES = _folders(_PATHS["purelib"], _PATHS["platlib"])
_PYTHON = _folders(_PATHS["stdlib"], _PATHS["platstdlib"], os.path.dirname(contextlib.__file__))  # noqa: PTH120
_KNOWN = {Owner.RULER: _folders(*attnbench.__path__), Owner.TORCH: _folders(*torch.__path__)}


@lru_cache(maxsize=4096)
def real(file: str) -> str:
    """The file with every link followed; a cache, since hooks ask at each call of a function."""
    return os.path.realpath(file)


@lru_cache(maxsize=4096)
def owner_of(file: str) -> Owner:
    """Whose file it is, spelled as ``co_filename`` or ``__file__`` have it.

    A Python without a virtual environment has its packages inside its own folder: they are
    libraries all the same. A linked package is one too, wherever the link leads.
    """
    if file.startswith("<frozen "):
        name = file.removeprefix("<frozen ").rstrip(">").partition(".")[0]
        return Owner.PYTHON if name in sys.stdlib_module_names else Owner.OTHER
    found = real(file)
    for owner, folders in _KNOWN.items():
        if found.startswith(folders):
            return owner
    if found.startswith(_LIBRARIES) or any(name in file + found for name in PACKAGES):
        return Owner.LIBRARY
    return Owner.PYTHON if found.startswith(_PYTHON) else Owner.OTHER


def owner_of_frame(frame: FrameType) -> Owner:
    """Whose code runs in a frame.

    Code without its source names the file that it was compiled from, wherever that was: where there
    is no such file, its module says where it was loaded from.
    """
    file = frame.f_code.co_filename
    found = owner_of(file)
    if found is Owner.OTHER and file.endswith(".py") and not os.path.exists(file):  # noqa: PTH110
        names = frame.f_globals
        module = sys.modules.get(str(names.get("__name__")))
        if module is not None and vars(module) is names:
            return owner_of(str(names.get("__file__", "")))
    return found
