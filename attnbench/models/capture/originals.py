"""Stand-ins: functions that are put in the place of the originals, and taken out again.

An original is held in a slot, where a search for its users does not find it. A program that runs
already may have it under names of its own (``from torch.nn.functional import …``, an attribute of
a model, a closure). The garbage collector knows these references, so they are found and replaced,
at the start and at the end alike.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from attnbench.meter.audit import Owner, owner_of

Function = Callable[..., Any]


class Original:
    """A function that another stands for."""

    __slots__ = ("call",)

    def __init__(self, call: Function) -> None:
        self.call = call


Make = Callable[[Original], Function]
"""What makes a stand-in of an original."""


class Stand(NamedTuple):
    """A stand-in at its place."""

    owner: Any
    name: str
    original: Original
    function: Function
    make: Make
    inherited: bool
    """Whether a class has the original from another, and not among its own names."""


class Stands:
    """Functions in the place of others, until :meth:`close`."""

    def __init__(self) -> None:
        self._placed: list[Stand] = []
        self._compiled: list[tuple[Original, Function]] = []
        self._away: list[Stand] = []
        self._pauses = 0

    def put(self, owner: Any, name: str, make: Make) -> Original:
        """Let what is made of the original stand for it from now on.

        A class's attribute is looked up there and nowhere else, and may be of a class above it.
        """
        found = getattr(owner, name)
        inherited = isinstance(owner, type) and name not in vars(owner)
        original = Original(found)
        function = make(original)
        _name_like(function, found, owner, name)
        self._placed.append(Stand(owner, name, original, function, make, inherited))
        setattr(owner, name, function)
        return original

    def compiled(self, function: Any, compile_: Function) -> Function | None:
        """Where a stand-in is to be compiled: a stand-in of the compiled original."""
        stand = next((each for each in self._placed if each.function is function), None)
        if stand is None:
            return None
        original = Original(compile_(stand.original.call))
        made = stand.make(original)
        self._compiled.append((original, made))
        return made

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put the originals back for a moment; pauses may be nested."""
        self._pauses += 1
        self._away += self._take_out()
        try:
            yield
        finally:
            self._pauses -= 1
            while self._away and not self._pauses:
                stand = self._away.pop()
                if getattr(stand.owner, stand.name, None) is stand.original.call:
                    setattr(stand.owner, stand.name, stand.function)

    def _take_out(self) -> list[Stand]:
        """Put the originals back where a stand-in is still there, and return those."""
        there = [s for s in self._placed if getattr(s.owner, s.name, None) is s.function]
        for stand in there:
            setattr(stand.owner, stand.name, stand.original.call)
            if stand.inherited:
                delattr(stand.owner, stand.name)
        return there

    def _pairs(self) -> list[tuple[Function, Function]]:
        """The originals that may have other names, and what stands for each."""
        placed = [(s.original.call, s.function) for s in self._placed if not s.inherited]
        return [*placed, *((o.call, function) for o, function in self._compiled)]

    def spread(self) -> None:
        """Put stand-ins wherever else the originals are."""
        replace(self._pairs())

    def close(self) -> None:
        """Put the originals back, under whatever name they are used by now."""
        self._take_out()
        replace([(function, original) for original, function in self._pairs()])
        self._placed.clear()


def _name_like(stand: Any, found: Any, owner: Any, name: str) -> None:
    """Name it as it is found, so that a model that holds it is pickled with that name."""
    for word in ("__module__", "__name__", "__qualname__", "__doc__"):
        if (value := getattr(found, word, None)) is not None:
            setattr(stand, word, value)
    if isinstance(owner, types.ModuleType):
        stand.__module__, stand.__qualname__ = owner.__name__, name
    stand.__attnbench__ = True


def replace(pairs: list[tuple[Any, Any]]) -> None:
    """Put the second of each pair wherever the program refers to the first."""
    new = {id(old): made for old, made in pairs}
    own = {id(x) for x in (pairs, *pairs)}
    users = [x for x in gc.get_referrers(*(old for old, _ in pairs)) if id(x) not in own]
    loose = [x for x in users if isinstance(x, dict | list | types.CellType) and not _is_names(x)]
    owners = _owners(loose)
    closures = _owners([x for some in owners.values() for x in some if isinstance(x, tuple)])
    for user in users:
        mine = owners.get(id(user), [])
        around = [x for owner in mine for x in (owner, *closures.get(id(owner), ()))]
        if not any(map(_in_torch, (user, *around))):  # else torch's table, or what it compiled
            _replace_in(user, mine, new)


def _replace_in(user: Any, owners: Iterable[Any], new: dict[int, Any]) -> None:
    """In one thing that refers to an original: a cell, a list, a dictionary, or what has one."""
    if isinstance(user, types.CellType):
        user.cell_contents = new[id(user.cell_contents)]
    elif isinstance(user, list):
        _replace_items(user, range(len(user)), new)
    elif isinstance(user, dict):
        # a class's own names are set, which empties the cache of methods
        classes = [
            x for x in owners if isinstance(x, type) and gc.get_referents(vars(x))[0] is user
        ]
        for name in [n for n, value in list(user.items()) if id(value) in new]:
            if classes:
                setattr(classes[0], name, new[id(user[name])])
            else:
                user[name] = new[id(user[name])]
    elif hasattr(user, "__dict__") and not isinstance(user, types.MappingProxyType):
        _replace_items(vars(user), list(vars(user)), new)


def _replace_items(user: Any, places: Iterable[Any], new: dict[int, Any]) -> None:
    for place in places:
        if id(user[place]) in new:
            user[place] = new[id(user[place])]


def _owners(some: list[Any]) -> dict[int, list[Any]]:
    """By identity, what refers to each."""
    wanted, found = {id(x) for x in some}, dict[int, list[Any]]()
    for user in gc.get_referrers(*some) if some else ():
        if user is not some:
            for x in gc.get_referents(user):
                if id(x) in wanted:
                    found.setdefault(id(x), []).append(user)
    return found


def _is_names(x: Any) -> bool:
    """Whether it is what a module's names are kept in."""
    return isinstance(x, dict) and "__name__" in x


def _in_torch(x: Any) -> bool:
    """A function, a module, its names or an object that torch's own code made."""
    if isinstance(x, types.FunctionType):
        return owner_of(x.__code__.co_filename) is Owner.TORCH
    if isinstance(x, dict | types.ModuleType):
        name = x.get("__name__") if isinstance(x, dict) else x.__name__
    else:
        name = x.__module__ if isinstance(x, type) else type(x).__module__
    return str(name).partition(".")[0] == "torch"
