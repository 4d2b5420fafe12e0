"""Another folder's modules in this process: there while they are at work, gone while they aren't.

A worker imports what it measures from one folder. Of a second, with modules of the same names, it
sees these only inside :meth:`Beside.there`; outside it sees the first folder's. So two commits of
one variant stand in one process, where the heap, the caches and whatever else makes a process
faster or slower than its like are the same for both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

RULER = "attnbench"
"""Stands in both folders as a link to the same, and stays."""


class Beside:
    """The modules of a folder that has the place of another's for a while."""

    def __init__(self, folder: str, instead_of: str) -> None:
        self._folder, self._instead_of = folder, instead_of
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def there(self) -> Iterator[None]:
        """What is imported now comes from this folder, and so does what was imported from it."""
        away = _taken(self._instead_of)
        sys.modules.update(self._modules)
        _repath(self._instead_of, self._folder)
        try:
            yield
        finally:
            self._modules = _taken(self._folder)
            sys.modules.update(away)
            _repath(self._folder, self._instead_of)


def _taken(folder: str) -> dict[str, ModuleType]:
    """The modules that came from a folder, no longer among those that are loaded."""
    found = {
        name: module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] != RULER and _lies_in(module, folder)
    }
    for name in found:
        del sys.modules[name]
    return found


def _lies_in(module: ModuleType, folder: str) -> bool:
    """By its own dictionary: asking some modules for a name loads what has it.

    Nobody keeps what is among the modules from being something else, without one.
    """
    said = getattr(module, "__dict__", {})
    places = [said.get("__file__"), *list(said.get("__path__") or ())]
    return any(str(place).startswith(folder + "/") for place in places)


def _repath(old: str, new: str) -> None:
    sys.path[:] = [
        new + place.removeprefix(old) if (place + "/").startswith(old + "/") else place
        for place in sys.path
    ]
