"""Where in a program a call comes from: the line of the model, and the user's line that led there.

Frames inside torch, inside this package and inside the machinery of transformers say nothing of a
program. The first frame of any other library, or of transformers' own models, is the model's line;
the first of the user's own files ends the walk, and is all that is said where it is the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

from attnbench.measure.owner import Owner, owner_of

Place = tuple[str, int, str]
"""File, line, and the function's name."""
Where = tuple[Place | None, Place | None]
"""The model's line and the user's; one of them where they are the same, or there is no other."""

INSIDE, MODEL, USER = range(3)
KINDS = {
    Owner.RULER: INSIDE, Owner.TORCH: INSIDE, Owner.PYTHON: INSIDE, Owner.LIBRARY: MODEL,
    Owner.OTHER: USER,
}  # fmt: skip


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
