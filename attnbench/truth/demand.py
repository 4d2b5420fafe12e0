"""How much processor time the threads of this process had, and how much they waited for.

What a thread waits for while somebody else has the processor tells as much of what it wants as what
it gets: on a busy machine two threads may have no more than one processor between them. Linux
counts both for every thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

THREADS_CLOCK = 6
"""What Linux adds to a thread's number to name the clock of its processor time."""


def spent_elsewhere() -> float:
    """Seconds of processor that all threads had but the one that asks."""
    myself = threading.get_native_id()
    return sum(_had(thread) for thread in _threads() if thread != myself)


def demanded() -> float:
    """Seconds of processor that all threads had or waited for.

    Over a stretch of time: as many times as long as threads wanted to run at once, on average.
    """
    return sum(_had(thread) + _waited(thread) for thread in _threads())


def _threads() -> Iterator[int]:
    return (int(task.name) for task in Path("/proc/self/task").iterdir())


def _had(thread: int) -> float:
    try:
        return time.clock_gettime(~thread << 3 | THREADS_CLOCK)
    except OSError:  # it has ended
        return 0.0


def _waited(thread: int) -> float:
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):  # it has ended, or the system does not count it
        return 0.0
