"""Where in a program a call comes from: the line of a model's code, and the user's own line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

from attnbench.meter.audit import Owner, owner_of

Place = tuple[str, int, str]
"""File, line, and the function's name."""
Where = tuple[Place | None, Place | None]
"""The model's line and the user's; None where there is no such, or it is the same."""

INSIDE, MODEL, USER = range(3)
KINDS = {Owner.LIBRARY: MODEL, Owner.OTHER: USER}


def where() -> Where:
    """Where the call comes from that is being recorded."""
    return first_of(_callers())


def _callers() -> Iterator[Place]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield place_of(frame.f_code, frame.f_lineno)
        frame = frame.f_back


def first_of(places: Iterable[Place]) -> Where:
    """The first line of a model among these, the innermost first, and the first of the user's."""
    model: Place | None = None
    for place in places:
        kind = kind_of(place[0])
        if kind == USER:
            return model, place
        if kind == MODEL and model is None:
            model = place
    return model, None


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
    return KINDS.get(owner_of(file), INSIDE)


def place_text(found: Where) -> str:
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
