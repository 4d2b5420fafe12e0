"""State of a process that the next cell would suffer from; a worker that changed it is replaced.

No variant is judged by it. A working folder that is gone, signals that are ignored, open files,
memory and threads that are never released would make the next variant fail.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

FILES = 64
"""More open files than before by this number are a leak."""
SHARE = 1 / 8
"""The share of a process's memory limit that a cell may leave in use."""
COMPILER = b"torch/_inductor"
"""In the command line of torch's compiler processes, which stay for its next call."""
MALLOC_INFO = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip
LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


class _MallocInfo(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in MALLOC_INFO]


def now() -> dict[str, Any]:
    """That state, as it is now."""
    folder, streams = None, []
    with suppress(OSError):
        folder = str(Path.cwd())
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        at = None
        with suppress(OSError):
            at = os.fstat(number)
        streams.append((id(stream), at and (at.st_dev, at.st_ino)))
    return {
        "folder": folder,
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "limits": [resource.getrlimit(limit) for limit in LIMITS],
        "streams": streams,
        "variables": set(os.environ.items()),
        "import path": set(sys.path),
        "threads": {t for t in threading.enumerate() if not _of_compiler(t)},
        "children": _children(),
        "recursion": sys.getrecursionlimit(),
        "warnings": sum(each[0] == "error" for each in warnings.filters),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - the names are all that is asked
        "memory": _memory(),
    }


def _of_compiler(thread: threading.Thread) -> bool:
    """Whether it is one that torch's compiler leaves for its next call; tqdm's wakes at times."""
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, str(getattr(target, "__module__", "")))
    return any(module.startswith(("torch.", "concurrent.", "tqdm.")) for module in modules)


def disturbed(before: Mapping[str, Any]) -> list[str]:
    """The names of what the next cell would suffer from."""
    at = now()
    suffers = {
        **{n: at[n] != before[n] for n in ("folder", "signals", "limits", "streams")},
        **{n: before[n] - at[n] for n in ("variables", "import path")},
        **{n: at[n] - before[n] for n in ("threads", "children")},
        "recursion": at["recursion"] < before["recursion"],
        "warnings": at["warnings"] > before["warnings"],
        "files": at["files"] > before["files"] + FILES,
        "memory": at["memory"] > before["memory"] + SHARE,
    }
    return [name for name, is_so in suffers.items() if is_so]


def _memory() -> float:
    """The memory in use as a share of the limit, but for what the C library holds free; 0 without
    a limit."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if most == resource.RLIM_INFINITY:
        return 0.0
    with Path("/proc/self/status").open() as lines:
        held = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmData"))
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:  # another library
        return held / most
    mallinfo.restype = _MallocInfo
    return float((held - mallinfo().fordblks) / most)


def _children() -> set[int]:
    """Children of this process, and those that its parent has adopted; none of the compiler's."""
    found: set[int] = set()
    for owner in (os.getpid(), os.getppid()):
        with suppress(OSError):
            for task in Path(f"/proc/{owner}/task").iterdir():
                found.update(map(int, (task / "children").read_text().split()))
    for child in found.copy():
        with suppress(OSError):
            if COMPILER in Path(f"/proc/{child}/cmdline").read_bytes():
                found.remove(child)
    return found - {os.getpid()}
