"""One run at a time on each GPU: two would both measure wrong.

The system releases a lock when its holder ends, however it ends. The file stays, and means nothing
by itself. It lies where every user of the machine may write, so that two users see each other.
"""

from __future__ import annotations

import fcntl
import gc
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from attnbench.core import gpu
from impls.errors import CantBeDone

SHARED = (Path("/run/lock"), Path("/tmp"))
"""Where a system's locks are; the first that everybody may write to."""


class DeviceBusy(CantBeDone):
    """Another process holds the GPU, or it can't be known whether one does; a sentence."""


@contextmanager
def device_lock(uuids: Sequence[str], where: Path | None = None) -> Iterator[None]:
    """Exclusive use of the GPUs with these UUIDs, all or none; raises :class:`DeviceBusy`."""
    where = where or next((p for p in SHARED if os.access(p, os.W_OK)), SHARED[-1])
    with ExitStack() as locks:
        for uuid in sorted(set(uuids)):
            path = where / f"attnbench-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
            try:
                descriptor = _opened(path)
                locks.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DeviceBusy(
                    f"GPU {uuid} is being measured by another process; two runs on one GPU would "
                    "both be wrong: wait until that one ends, or choose another GPU with "
                    "CUDA_VISIBLE_DEVICES"
                ) from None
            except OSError as error:
                raise DeviceBusy(
                    f"can't tell whether another run is using GPU {uuid}: the lock file {path} "
                    f"can't be used ({error.strerror}); have its owner remove it, or make its "
                    "folder writable"
                ) from error
        yield


def _opened(path: Path) -> int:
    """A lock file, made for every user; another's is not opened to be created, as Linux refuses."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    except FileExistsError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.fchmod(descriptor, 0o666)
    return descriptor


def lock_for(devices: Iterable[str]) -> AbstractContextManager[None]:
    """The lock of the GPUs among some devices, as torch writes them; the CPU needs none.

    Where it can't be known which GPU ``cuda`` is, all of them are locked. Entering it raises
    :class:`DeviceBusy`.
    """
    uuids: list[str] = []
    for device in devices:
        if device != "cpu":
            uuid = gpu.uuid_of(device)
            uuids += [uuid] if isinstance(uuid, str) else [b.uuid for b in gpu.boards()]
    return device_lock(uuids)


@contextmanager
def collector_off() -> Iterator[None]:
    """Nothing is collected inside the block."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
