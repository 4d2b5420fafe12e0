"""Locks: who holds a file's, and one run at a time on each GPU.

Two runs on one GPU would both measure wrong. The system releases a lock when its holder ends,
however it ends, so a lock is never left behind; the file stays, and means nothing by itself. It
lies where every user of the machine may write, so that two users see each other.
"""

from __future__ import annotations

import fcntl
import gc
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from attnbench.core import gpu
from impls.errors import CantBeDone

SHARED = (Path("/run/lock"), Path("/var/lock"))
"""Where a system's locks are, if everybody may write there."""
PROC = Path("/proc")


class DeviceBusy(CantBeDone):
    """Another process holds the GPU, or it can't be known whether one does; a sentence."""


@contextmanager
def device_lock(uuids: Sequence[str], where: Path | None = None) -> Iterator[None]:
    """Exclusive use of the GPUs with these UUIDs, all or none; raises :class:`DeviceBusy`."""
    with ExitStack() as locks:
        for uuid in sorted(set(uuids)):
            path = path_of(uuid, where or shared_folder())
            common = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                # in a shared folder Linux may refuse to open another user's file with O_CREAT
                try:
                    descriptor = os.open(path, common | os.O_CREAT | os.O_EXCL, 0o666)
                except FileExistsError:
                    descriptor = os.open(path, common)
                else:
                    with suppress(OSError):
                        os.fchmod(descriptor, 0o666)  # for every user, whatever the umask says
                locks.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DeviceBusy(
                    f"GPU {uuid} is being measured by {holder(path)}; two runs on one GPU would "
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


def shared_folder() -> Path:
    """The same for every user: the first of the shared ones that all may write to."""
    for place in SHARED:
        with suppress(OSError):
            if place.stat().st_mode & stat.S_IWOTH:
                return place
    return Path(tempfile.gettempdir())


def path_of(uuid: str, where: Path) -> Path:
    """The lock file of a GPU."""
    return where / f"attnbench-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"


def holder(path: Path) -> str:
    """The process that holds a file's lock: ``process 12 (attnbench run)``, as far as the system's
    table of locks tells; another container's is in no table.
    """
    with suppress(OSError, ValueError, IndexError):
        file = path.stat()
        device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        for line in (PROC / "locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 fe:00:2646216 0 EOF
            if words[1] == "FLOCK" and words[5] == device:
                command = (PROC / words[4] / "cmdline").read_bytes().replace(b"\0", b" ")
                text = " ".join(command.decode(errors="replace").split())
                return f"process {words[4]} ({text})" if text else f"process {words[4]}"
    return "another process"


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
