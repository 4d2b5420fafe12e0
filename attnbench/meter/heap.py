"""What the C library does with freed pages while a call is timed: what it does in a program that
makes this call alone.

glibc takes large memory from the system and gives it back at once; so does it with the free end of
its heap. From which size on, it learns: from the largest piece, of 32 MiB at the most, that was
freed before. In a worker that would be any piece of any variant, and a variant's pages would stay
or go by what was measured ahead of it. So a worker says the size: the least while anything is
checked, which leaves no large holes in the heap, and a call's own largest piece while it is timed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from mmap import PAGESIZE
from typing import Any

from torch.autograd.profiler import profile

from attnbench.meter.memory import MEMORY

LEAST, MOST = 128 << 10, 32 << 20
"""The size that glibc starts with, and the largest that it learns."""
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""mallopt's names."""
TRIM = 2
"""So many times the size of free memory at the heap's end is given back, as glibc has it."""
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Where one of these is set, the allocator is somebody else's business."""


@cache
def _mallopt() -> Any:
    """glibc's function; None where there is another library, or where it is told already."""
    if any(name in os.environ for name in VARIABLES):
        return None
    library = ctypes.CDLL(None)
    glibc = hasattr(library, "gnu_get_libc_version")
    return library.mallopt if glibc else None


def learned(run: Callable[[], object]) -> int:
    """The size that glibc learns from a call."""
    if _mallopt() is None:
        return LEAST
    with profile(use_kineto=True, profile_memory=True) as seen:
        kept = run()
    del kept
    pieces = (e.nbytes() for e in seen.kineto_results.events() if e.name() == MEMORY)
    whole = (-(-piece // PAGESIZE) * PAGESIZE + PAGESIZE for piece in pieces)
    return max([LEAST, *(size for size in whole if size <= MOST)])


def give_back_from(size: int = LEAST) -> None:
    """Pieces of this size on are the system's again as soon as they are freed."""
    if (mallopt := _mallopt()) is not None:
        mallopt(MMAP_THRESHOLD, size)
        mallopt(TRIM_THRESHOLD, TRIM * size)
