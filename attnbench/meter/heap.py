"""What the C library does with freed pages while a call is timed: what it does in a program that
makes this call alone.

glibc takes large memory from the system and gives it back at once; so does it with the free end of
its heap, from twice that size on. From which size on memory is large, it learns: from the largest
piece, of 32 MiB at the most, that was freed before. In a worker that would be any piece of any
variant, and pages would stay or go by what was measured ahead. So a worker says the size: the least
while anything is checked, and a call's own largest piece while it is timed.

Whether the free end of a heap reaches twice that size hangs on where its pieces happen to lie, so
that a plain process takes either of two times for as long as it lives. Here a call that holds as
much at its worst instant has given all of it back before the next one, and any other has not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from mmap import PAGESIZE
from typing import Any, NamedTuple

from torch.autograd.profiler import profile

from attnbench.meter.memory import MEMORY, highest

LEAST, MOST = 128 << 10, 32 << 20
"""The size that glibc starts with, and the largest that it learns."""
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""mallopt's names."""
TRIM = 2
"""So many times the size of free memory at the heap's end is given back, as glibc has it."""
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Where one of these is set, the allocator is somebody else's business."""


class Pages(NamedTuple):
    """From which size on pieces go back to the system as they are freed, and whether all that a
    call has freed has gone back before the next one.
    """

    size: int = LEAST
    all: bool = False

    def set(self) -> None:
        """Let it be so from now on."""
        if (library := _glibc()) is not None:
            library.mallopt(MMAP_THRESHOLD, self.size)
            library.mallopt(TRIM_THRESHOLD, TRIM * self.size)

    def give_back(self) -> None:
        """After a call: give back what it has freed."""
        if self.all and (library := _glibc()) is not None:
            library.malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library; None where it is another, or where it is told already."""
    if any(name in os.environ for name in VARIABLES):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def learned(run: Callable[[], object]) -> Pages:
    """What glibc does with the pages of a call that it sees again and again."""
    if _glibc() is None:
        return Pages()
    with profile(use_kineto=True, profile_memory=True) as seen:
        kept = run()
    del kept
    events = [(e.name(), e) for e in seen.kineto_results.events()]
    pieces = (e.nbytes() for name, e in events if name == MEMORY)
    largest = max((piece for piece in pieces if piece <= MOST - PAGESIZE), default=0)
    size = max(LEAST, -(-largest // PAGESIZE) * PAGESIZE + PAGESIZE)
    return Pages(size, size > LEAST and highest(events) >= TRIM * largest)
