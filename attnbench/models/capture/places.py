"""Places in a program: where calls come from, and where torch's compiler met them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from attnbench.meter.audit import owner_of
from attnbench.models.capture.calls import Site
from impls.problem import Problem

Place = tuple[str, int, str]  # file, line, and the function's name
Where = tuple[Place | None, Place | None]
"""The model's line and the user's; None where there is no such, or it is the same."""
USER_CODE = ("<stdin>", "<ipython", "<string>")
"""Beginnings of names of files that hold a user's own code, and are none."""
OWNERS: dict[str, str] = {}
"""Whose a file is, for each that was asked about."""


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
        owner = OWNERS.get(place[0]) or _owner(place[0])
        if owner == "other":
            return model, place
        if owner == "library" and model is None:
            model = place
    return model, None


def _owner(file: str) -> str:
    """The owner of a file; of transformers, its models alone count as a library's."""
    if file not in OWNERS:
        generated = file.startswith("<") and not file.startswith(USER_CODE)
        of_transformers = "/transformers/" in file and "/diffusers/" not in file
        machinery = of_transformers and "/transformers/models/" not in file
        if generated or machinery or is_generated(file):
            OWNERS[file] = "torch"
        else:
            OWNERS[file] = "library" if of_transformers else owner_of(file)
    return OWNERS[file]


def of_user(place: Place) -> bool:
    """True for a place in the user's own code."""
    return _owner(place[0]) == "other"


def place_text(where: Where) -> str:
    """``modeling_llama.py:262 LlamaAttention.forward from train.py:30``"""
    lines = [f"{Path(place[0]).name}:{place[1]}" for place in where if place is not None]
    if not lines:
        return "nowhere that could be told"
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


MOST, PADDED = 256, 8  # sites; a width is padded to a multiple of this


class CompiledCalls:
    """The calls that torch's compiler met, by place, and which of them were seen to run since.

    A call whose operator stays one of its own in the compiled code is seen again each time that it
    runs, and is then counted there. Of the others it is not known how often they run.
    """

    def __init__(self) -> None:
        self._met: Counter[Place | None] = Counter()
        self._sites: dict[Site, Place | None] = {}
        self._places: dict[Any, Place] = {}
        self._ran: set[Place] = set()

    def meet(self, site: Site | None = None, place: Place | None = None) -> None:
        """The compiler met a call; ``site`` without calls where it is known which."""
        self._met[place] += 1
        if site is None or len(self._sites) >= MOST:
            return
        self._sites.setdefault(site, place)
        if place is not None:
            self._places |= dict.fromkeys(_forms(site.problem), place)

    def ran(self, problem: Problem) -> Place | None:
        """The likeliest place at which the compiler met a call that has run as an operator."""
        place = next((self._places[x] for x in _forms(problem) if x in self._places), None)
        if place is not None:
            self._ran.add(place)
        return place

    @property
    def met(self) -> int:
        """The number of calls that the compiler met."""
        return sum(self._met.values())

    @property
    def unknown(self) -> Counter[Place | None]:
        """Counts by place of calls that became part of code that can't be counted."""
        return Counter({place: n for place, n in self._met.items() if place not in self._ran})

    def sites(self) -> list[Site]:
        """Those that are not known to have run."""
        return [site for site, place in self._sites.items() if place not in self._ran]


def _forms(p: Problem) -> tuple[Any, ...]:
    """By what a call that runs is recognised: its lengths may be others, where they are dynamic,
    and its width that to which a kernel pads it.
    """
    width = p.heads, -(-p.head_dim // PADDED), -(-p.v_head_dim // PADDED)
    return (*width, p.batch, p.q_len, p.kv_len), width
