"""The functions that are recorded, put in the place of the originals, and taken out again.

An original is held in a slot, where nobody who looks for its users finds it. In a process that
runs already a program may have it under names of its own (``from torch.nn.functional import …``, an
attribute of a model, a closure): the collector knows who refers to it, and so they are found, at
the beginning and at the end alike.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from attnbench.meter.audit import Owner, owner_of

Function = Callable[..., Any]
COMPILED = "_torchdynamo_orig_callable"


class Original:
    """A function that another stands for."""

    __slots__ = ("__weakref__", "call", "inherited")

    def __init__(self, call: Function, *, inherited: bool = False) -> None:
        self.call, self.inherited = call, inherited
        """``inherited``: a class has it from another, and not among its own names."""


Make = Callable[[Original], Function]
"""What makes a stand-in of an original."""


class Stands:
    """Functions in the place of others, until :meth:`close`."""

    def __init__(self) -> None:
        self._placed: list[tuple[Any, str, Original, Function]] = []
        self._around: dict[Original, Make] = {}
        self._compiled: list[tuple[Original, Function]] = []
        self._away: list[tuple[Any, str, Original, Function]] = []
        self._pauses = 0

    def put(self, owner: Any, name: str, make: Make) -> Original:
        """What is made of the original stands for it from now on.

        A class's attribute is looked up there and nowhere else, and may be of a class above it.
        """
        found = getattr(owner, name)
        original = Original(found, inherited=isinstance(owner, type) and name not in vars(owner))
        stand = make(original)
        _named_alike(stand, found, owner, name)
        self._placed.append((owner, name, original, stand))
        self._around[original] = make
        setattr(owner, name, stand)
        return original

    def compiled(self, stand: Any, compile_: Function) -> Function | None:
        """Where a stand-in is to be compiled: one of what the original becomes by that."""
        for _, _, original, placed in self._placed:
            if placed is stand:
                made = Original(compile_(original.call))
                self._compiled.append((made, self._around[original](made)))
                return self._compiled[-1][1]
        return None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The originals are back, for a moment; a moment may hold others."""
        self._pauses += 1
        self._away += self._taken_out()
        try:
            yield
        finally:
            self._pauses -= 1
            while self._away and not self._pauses:
                owner, name, original, stand = self._away.pop()
                if getattr(owner, name, None) is original.call:
                    setattr(owner, name, stand)

    def _taken_out(self) -> list[tuple[Any, str, Original, Function]]:
        """The originals put back where theirs still stand: what the program put there stays."""
        found = [one for one in self._placed if getattr(one[0], one[1], None) is one[3]]
        for owner, name, original, _ in found:
            setattr(owner, name, original.call)
            if original.inherited:
                delattr(owner, name)
        return found

    def spread(self) -> None:
        """Put what stands for an original wherever else it is, and around what was compiled."""
        known = {id(original.call): original for _, _, original, _ in self._placed}
        for function, compiled in _compiled():
            if (original := known.get(id(function))) is not None:
                made = Original(compiled)
                self._compiled.append((made, self._around[original](made)))
        pairs = [(o.call, stand) for _, _, o, stand in self._placed if not o.inherited]
        _replace([*pairs, *((o.call, stand) for o, stand in self._compiled)])

    def close(self) -> None:
        """Put the originals back, under whatever name they are used by now."""
        self._taken_out()
        pairs = [(stand, o.call) for _, _, o, stand in self._placed if not o.inherited]
        _replace([*pairs, *((stand, o.call) for o, stand in self._compiled)])
        self._placed.clear()


def _compiled() -> Iterator[tuple[Any, Any]]:
    """Functions that torch.compile was given, and what it made of them."""
    if "torch._dynamo" in sys.modules:
        for found in gc.get_objects():
            if type(found) is types.FunctionType and COMPILED in vars(found):
                yield vars(found)[COMPILED], found


def _named_alike(stand: Any, found: Any, owner: Any, name: str) -> None:
    """By the name that it is found under, so that a model that holds it is pickled with that."""
    for word in ("__module__", "__name__", "__qualname__", "__doc__"):
        if (value := getattr(found, word, None)) is not None:
            setattr(stand, word, value)
    if isinstance(owner, types.ModuleType):
        stand.__module__, stand.__qualname__ = owner.__name__, name
    stand.__attnbench__ = True


def _replace(pairs: list[tuple[Any, Any]]) -> None:
    """Put the second of each pair wherever the program refers to the first."""
    new = {id(old): made for old, made in pairs}
    own = {id(x) for x in (pairs, *pairs)}
    users = [x for x in gc.get_referrers(*(old for old, _ in pairs)) if id(x) not in own]
    loose = [x for x in users if isinstance(x, dict | list | types.CellType) and not _names(x)]
    owners = _owners(loose)
    torchs = _torchs(users, loose, owners)
    for user in users:
        if id(user) not in torchs:
            _replace_in(user, owners.get(id(user), ()), new)


def _replace_in(user: Any, owners: Iterable[Any], new: dict[int, Any]) -> None:
    """In one thing that refers to one of them: a cell, a list, a dictionary, or what has one."""
    if isinstance(user, types.CellType):
        user.cell_contents = new[id(user.cell_contents)]
    elif isinstance(user, list):
        _held(user, range(len(user)), new)
    elif isinstance(user, dict):
        classes = [x for x in owners if isinstance(x, type) and _attributes(x) is user]
        for name in [n for n, value in list(user.items()) if id(value) in new]:
            if classes:  # whose methods are looked up in a cache, which setattr empties
                setattr(classes[0], name, new[id(user[name])])
            else:
                user[name] = new[id(user[name])]
    elif hasattr(user, "__dict__") and not isinstance(user, types.MappingProxyType):
        _held(vars(user), list(vars(user)), new)


def _attributes(found: type) -> Any:
    """The dictionary behind a class's ``__dict__``."""
    return gc.get_referents(vars(found))[0]


def _held(user: Any, places: Iterable[Any], new: dict[int, Any]) -> None:
    for place in places:
        if id(user[place]) in new:
            user[place] = new[id(user[place])]


def _torchs(users: list[Any], loose: list[Any], owners: dict[int, list[Any]]) -> set[int]:
    """Which of them are torch's own business: its tables, what its compiler made. By identity."""
    closures = _owners([x for some in owners.values() for x in some if isinstance(x, tuple)])
    found = {id(x) for x in users if _in_torch(x)}
    for user in loose:
        for owner in owners.get(id(user), ()):
            if any(map(_in_torch, (owner, *closures.get(id(owner), ())))):
                found.add(id(user))
    return found


def _owners(some: list[Any]) -> dict[int, list[Any]]:
    """By identity, what refers to each."""
    wanted, found = {id(x) for x in some}, dict[int, list[Any]]()
    for user in gc.get_referrers(*some) if some else ():
        if user is not some:
            for x in gc.get_referents(user):
                if id(x) in wanted:
                    found.setdefault(id(x), []).append(user)
    return found


def _names(x: Any) -> bool:
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


Place = tuple[str, int, str]
"""File, line, and the function's name."""
Where = tuple[Place | None, Place | None]
"""The model's line and the user's; one of them where they are the same, or there is no other."""

INSIDE, MODEL, USER = range(3)
KINDS = {
    Owner.RULER: INSIDE,
    Owner.TORCH: INSIDE,
    Owner.PYTHON: INSIDE,
    Owner.LIBRARY: MODEL,
    Owner.OTHER: USER,
}


def where() -> Where:
    """Where the call comes from that is being recorded."""
    frame: FrameType | None = sys._getframe(1)
    model: Place | None = None
    while frame is not None:
        code = frame.f_code
        kind = kind_of(code.co_filename)
        if kind == USER:
            return model, place_of(code, frame.f_lineno)
        if kind == MODEL and model is None:
            model = place_of(code, frame.f_lineno)
        frame = frame.f_back
    return model, None


def found_in(places: Iterable[Place]) -> Where:
    """The same of places that are no frames, the innermost first."""
    some = [(kind_of(place[0]), place) for place in places]
    user = next((n for n, (kind, _) in enumerate(some) if kind == USER), len(some))
    model = next((place for kind, place in some[:user] if kind == MODEL), None)
    return model, some[user][1] if user < len(some) else None


def place_of(code: CodeType, line: int) -> Place:
    """A line of some code."""
    return code.co_filename, line, code.co_qualname


@lru_cache(maxsize=4096)
def kind_of(file: str) -> int:
    """Whose file it is."""
    if file.startswith("<") and not file.startswith(("<stdin>", "<ipython", "<string>")):
        return INSIDE
    if "/transformers/" in file:
        return MODEL if "/transformers/models/" in file else INSIDE
    return KINDS[owner_of(file)]


def told(found: Where) -> str:
    """``modeling_llama.py:262 LlamaAttention.forward from train.py:30``"""
    model, user = found
    if model is None:
        return _line(user) if user else "nowhere that could be told"
    return _line(model) + (f" from {_file(user)}" if user else "")


def _line(place: Place) -> str:
    name = place[2].replace("<locals>.", "")
    return _file(place) + (f" {name}" if name != "<module>" else "")


def _file(place: Place) -> str:
    return f"{Path(place[0]).name}:{place[1]}"
