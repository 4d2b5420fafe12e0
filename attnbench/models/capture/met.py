"""What torch's compiler met while it traced a program: the calls are known, their runs are not.

A call whose operator stays one of its own in the compiled code is seen again each time that it
runs, and is then counted there.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from attnbench.models.capture.calls import Site
from impls.problem import Problem

Place = tuple[str, int, str]  # file, line, and the function's name


def is_generated(file: str) -> bool:
    """Whether torch.compile or torch.export wrote it."""
    cache = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    return file.startswith("<eval_with_key>") or bool(cache and file.startswith(cache.cache_dir()))


def in_generated(frame: FrameType | None) -> bool:
    """Whether a stand-in that is running was called by such code."""
    passed = (str(Path(__file__).parent), str(Path(torch.__file__).parent / "_ops.py"))
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    return frame is not None and is_generated(frame.f_code.co_filename)


MOST, PADDED = 256, 8  # sites; a width is padded to a multiple of this


class CompiledCalls:
    """The calls that torch's compiler met, by place, and which of them were seen to run since."""

    def __init__(self) -> None:
        self._met: Counter[Place | None] = Counter()
        self._sites: dict[Site, Place | None] = {}
        self._places: dict[Any, Place] = {}
        self._ran: set[Place] = set()
        self.runs, self.seconds = 0, 0.0  # of graphs that torch's own backend made, on a CPU

    def meet(self, site: Site | None = None, place: Place | None = None) -> None:
        """The compiler met a call; ``site`` without calls where it is known which."""
        self._met[place] += 1
        if site is None or len(self._sites) >= MOST:
            return
        self._sites.setdefault(site, place)
        if place is not None:
            self._places |= dict.fromkeys(_forms(site.problem), place)

    def ran(self, problem: Problem) -> Place | None:
        """Where the compiler met a call that has run as an operator: the likeliest place."""
        place = next((self._places[x] for x in _forms(problem) if x in self._places), None)
        if place is not None:
            self._ran.add(place)
        return place

    def took(self, seconds: float) -> None:
        """A compiled graph ran for so long."""
        self.runs, self.seconds = self.runs + 1, self.seconds + seconds

    @property
    def met(self) -> int:
        """How many the compiler met."""
        return sum(self._met.values())

    @property
    def unknown(self) -> Counter[Place | None]:
        """How many of those became part of code that can't be counted, by their places."""
        left = {place: n for place, n in self._met.items() if place not in self._ran}
        return Counter(left)

    def sites(self) -> list[Site]:
        """Those that are not known to have run."""
        return [site for site, place in self._sites.items() if place not in self._ran]


def _forms(p: Problem) -> tuple[Any, ...]:
    """By what a call that runs is recognised: its lengths may be others, where they are dynamic,
    and its width that to which a kernel pads it.
    """
    width = p.heads, -(-p.head_dim // PADDED), -(-p.v_head_dim // PADDED)
    return (*width, p.batch, p.q_len, p.kv_len), width
