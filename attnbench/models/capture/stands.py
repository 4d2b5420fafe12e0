"""Functions in the place of others: stand-ins, put in and taken out again."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from attnbench.models.capture.recorder import NOW

Function = Callable[..., Any]


class Stands:
    """Functions in the place of others, until :meth:`close`."""

    def __init__(self) -> None:
        self._placed: list[tuple[Any, str, Function, Any]] = []
        """Owner, name, original and what stands for it."""
        self._paused = False

    def put(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        """Let what is made of the original stand for it from now on.

        It is named as it is found, so that a model that holds it is pickled with that name. A
        class's attribute is looked up there and nowhere else, and may be of a class above it.
        """
        original = getattr(owner, name)
        function: Any = make(original)
        if not hasattr(function, "__attnbench__"):  # else it stands elsewhere too
            for word in ("__module__", "__name__", "__qualname__", "__doc__"):
                if (value := getattr(original, word, None)) is not None:
                    setattr(function, word, value)
            if isinstance(owner, types.ModuleType):
                function.__module__, function.__qualname__ = owner.__name__, name
            function.__attnbench__ = original, make
            function.inherited = isinstance(owner, type) and name not in vars(owner)
        self._placed.append((owner, name, original, function))
        setattr(owner, name, function)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put the originals back for a moment."""
        away, before, self._paused = self._take_out(), self._paused, True
        try:
            yield
        finally:
            self._paused = before
            for owner, name, original, function in away:
                if getattr(owner, name, None) is original:
                    setattr(owner, name, function)

    def _take_out(self) -> list[tuple[Any, str, Function, Any]]:
        there = [x for x in self._placed if getattr(x[0], x[1], None) is x[3]]
        for owner, name, original, function in there:
            setattr(owner, name, original)
            if function.inherited:
                delattr(owner, name)
        return there

    def replaced(self) -> list[str]:
        """Those in whose place something else is now, and what."""
        if self._paused:
            return []
        now_there = [(x, getattr(x[0], x[1], None)) for x in list(self._placed)]
        return [
            f"{owner.__name__}.{name} by {getattr(now, '__module__', '')}.{_name(now)}"
            for (owner, name, original, function), now in now_there
            if now is not function and now is not original and hasattr(owner, "__name__")
        ]

    def spread(self) -> None:
        """Put stand-ins wherever else a module has the originals among its names."""
        _rename({id(old): new for _, _, old, new in self._placed if not new.inherited})

    def close(self) -> None:
        """Put the originals back, under whatever names of modules they are used by now."""
        self._take_out()
        _rename({id(new): old for _, _, old, new in self._placed})
        self._placed.clear()


def _name(x: Any) -> str:
    return str(getattr(x, "__qualname__", type(x).__name__))


def _rename(new: dict[int, Function]) -> None:
    for name_of_module, module in list(sys.modules.items()):
        if name_of_module.partition(".")[0] != "torch":
            names = getattr(module, "__dict__", {})
            for name, value in list(names.items()):
                if id(value) in new:
                    names[name] = new[id(value)]


def as_itself(make: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Make a stand-in that ``__torch_function__`` gets where torch would give the original.

    A tensor's class or a mode compares what it gets with the function as the module has it.
    """

    def outer(original: Function) -> Function:
        inner = make(original)

        def function(*args: Any, **more: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return inner(*args, **more)
            values = (*args, *more.values()) if more else args
            if has_torch_function(values) and not any(map(_nested, values)):
                state = NOW.state()
                before = state.bias
                state.bias = next(filter(None, map(_bias_class, values)), before)
                try:
                    return handle_torch_function(function, values, *args, **more)
                finally:
                    state.bias = before
            return inner(*args, **more)

        return function

    return outer


def _bias_class(x: Any) -> str:
    """The class of a bias of torch's, which calls the function with what it stands for."""
    of_torch = type(x).__module__.startswith("torch.nn.attention.")
    return type(x).__name__ if of_torch and isinstance(x, Tensor) else ""


def _nested(x: Any) -> bool:
    """True for a nested tensor, whose class compares with functions of ``torch._C``."""
    return isinstance(x, Tensor) and x.is_nested
