"""Is there room? What a call is expected to take against the memory that is free."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit

import torch

FREE_SHARE = 0.9
"""Of the free memory, how much may be asked for."""
GIB = 2**30


def insist(need: int, device: str, what: str, beside: str) -> None:
    """Raise where so many bytes would not fit, rather than find out.

    ``what`` needs them, ``beside`` (above, or with) its inputs. What torch keeps of a GPU for later
    is given back first where the driver itself has too little: not everybody asks torch for memory.
    """
    if device != "cpu" and need > FREE_SHARE * torch.cuda.mem_get_info(device)[0]:
        let_go(device)
    free = free_bytes(device)
    if need > FREE_SHARE * free:
        raise MemoryError(
            f"predicted, not run: {what} needs {need / GIB:.1f} GiB {beside} its inputs and "
            f"{free / GIB:.1f} GiB are free"
        )


def free_bytes(device: str) -> int:
    """What can be had: of the machine, and of what this process may hold."""
    if device != "cpu":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused  # which torch keeps for what comes
    free, limit = _told("/proc/meminfo", "MemAvailable"), getrlimit(RLIMIT_DATA)[0]
    if limit == RLIM_INFINITY:
        return free
    return min(free, limit - _told("/proc/self/status", "VmData"))


def let_go(device: str) -> None:
    """Collect what nothing refers to any more; of a GPU's memory, give back what lies unused."""
    gc.collect()
    if device != "cpu":
        with suppress(RuntimeError):  # of a context that is gone, with all that lay there
            torch.cuda.empty_cache()


def _told(file: str, name: str) -> int:
    """Bytes, as the system tells them in kilobytes."""
    with Path(file).open() as lines:
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(name))
