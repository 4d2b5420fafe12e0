"""Places in a program: where calls come from, and where torch's compiler met them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from attnbench.meter.audit import owner_of

Place = tuple[str, int, str]  # file, line, and the function's name
Where = tuple[Place | None, Place | None]
"""The model's line and the user's; None where there is no such, or it is the same."""
USER_CODE = ("<stdin>", "<ipython", "<string>")
"""Beginnings of names of files that hold a user's own code, and are none."""


def locate() -> Where:
    """The place of the call that is being recorded."""
    return _first_lines(_places(sys._getframe(1)))


def locate_traced(context: Any) -> Where:
    """The place of the call that torch's compiler is tracing."""
    return _first_lines(_traced_places(context))


def _places(frame: FrameType | None) -> Iterable[Place]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname
        frame = frame.f_back


def _traced_places(context: Any) -> Iterable[Place]:
    frame = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    while frame is not None:
        yield frame.f_code.co_filename, frame.lineno, frame.f_code.co_qualname
        frame = getattr(frame, "parent", None)


def _first_lines(places: Iterable[Place]) -> Where:
    """The first line of a model among these, the innermost first, and the first of the user's."""
    model: Place | None = None
    for place in places:
        owner = _owner(place[0])
        if owner == "other":
            return model, place
        if owner == "library" and model is None:
            model = place
    return model, None


@cache
def _owner(file: str) -> str:
    """The owner of a file; of transformers, its models alone count as a library's."""
    generated = file.startswith("<") and not file.startswith(USER_CODE)
    of_transformers = "/transformers/" in file and "/diffusers/" not in file
    machinery = of_transformers and "/transformers/models/" not in file
    if generated or machinery or is_generated(file):
        return "torch"
    return "library" if of_transformers else owner_of(file)


def of_user(place: Place) -> bool:
    """True for a place in the user's own code."""
    return _owner(place[0]) == "other"


def place_text(where: Where) -> str:
    """``modeling_llama.py:262 LlamaAttention.forward from train.py:30``"""
    lines = [f"{Path(place[0]).name}:{place[1]}" for place in where if place is not None]
    if not lines:
        return "a place that is not known"
    name = next(place[2] for place in where if place is not None).replace("<locals>.", "")
    first = lines[0] + (f" {name}" if name != "<module>" else "")
    return " from ".join([first, *lines[1:]])


def is_generated(file: str) -> bool:
    """True for code that torch.compile or torch.export wrote."""
    cache = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    return file.startswith("<eval_with_key>") or bool(cache and file.startswith(cache.cache_dir()))


def in_generated(frame: FrameType | None) -> bool:
    """True where such code called the stand-in that is running."""
    between = (str(Path(__file__).parent), str(Path(torch.__file__).parent / "_ops.py"))
    while frame is not None and frame.f_code.co_filename.startswith(between):
        frame = frame.f_back
    return frame is not None and is_generated(frame.f_code.co_filename)


Heads = tuple[int, ...]
PADDED = 8  # a kernel may pad a width to a multiple of this


class CompiledCalls:
    """The calls that torch's compiler met, by place, and which places were seen to run since.

    A call whose operator stays one of its own in the compiled code is seen each time that it runs,
    and its place is known by its heads. Of the others it is not known how often they run.
    """

    def __init__(self) -> None:
        self.met: Counter[Place | None] = Counter()
        self._places: dict[Heads, Place] = {}
        self._ran: set[Place] = set()

    def meet(self, place: Place | None, heads: Heads | None) -> None:
        """The compiler met a call; its heads are None where they are not known."""
        self.met[place] += 1
        if place is not None and heads is not None:
            self._places[heads] = place

    def ran(self, heads: Heads) -> Place | None:
        """The likeliest place at which the compiler met a call that has run as an operator."""
        place = self._places.get(heads)
        if place is not None:
            self._ran.add(place)
        return place

    @property
    def unknown(self) -> Counter[Place | None]:
        """Counts by place of calls that became part of code that can't be counted."""
        return Counter({place: n for place, n in self.met.items() if place not in self._ran})


def heads_of(q: Any, v: Any) -> Heads:
    """Their number and padded widths. To ask a length of the compiler's own for its value would tie
    the code to that value, so its hint is taken.
    """
    sizes = (n if isinstance(n, int) else n.node.hint for n in (q[-3], q[-1], v[-1]))
    count, *widths = sizes
    return count, *(-(-width // PADDED) for width in widths)
