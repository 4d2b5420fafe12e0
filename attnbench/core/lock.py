"""One run a GPU: a lock by its UUID, held as long as the run.

Two runs on one GPU would both measure wrong. The system lets go of the lock when whoever holds it
ends, however it ends, so a lock is never left behind; the file stays, and says nothing by itself.
It lies where every user of the machine may write, so that two users see each other.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attnbench.core import gpu
from impls.asked import CantBeDone

SHARED = (Path("/run/lock"), Path("/var/lock"))
"""Where locks of a system are, if everybody may write there."""
SAID = 500
"""Characters of a command that are kept."""


class DeviceBusy(CantBeDone):
    """Somebody holds the GPU. The message is a sentence that says who."""


class LockDenied(DeviceBusy):
    """Nobody can tell whether somebody holds it."""


def folder() -> Path:
    """The same for every user: the first of the shared ones that all may write to."""
    for place in SHARED:
        with suppress(OSError):
            if place.stat().st_mode & stat.S_IWOTH:
                return place
    return Path(tempfile.gettempdir())


class DeviceLock:
    """Exclusive use of the GPUs with these UUIDs, for the length of a ``with`` block."""

    def __init__(self, uuids: Sequence[str], where: Path | None = None) -> None:
        self._uuids, self._where = sorted(set(uuids)), where or folder()
        self._held: list[int] = []

    def __enter__(self) -> Self:
        """All of them or none; raise :class:`DeviceBusy` where one is held."""
        try:
            for uuid in self._uuids:
                self._held.append(_take(uuid, path_of(uuid, self._where)))
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    def _release(self) -> None:
        for descriptor in self._held:
            with suppress(OSError):  # opened only to read: nothing was written
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
        self._held = []


def lock_for(devices: Iterable[str]) -> DeviceLock:
    """The lock of the GPUs among some devices, as torch writes them; the CPU needs none.

    Where nobody can tell which GPU ``cuda`` is, all of them are taken.
    """
    uuids: list[str] = []
    for device in devices:
        if device != "cpu":
            found = gpu.uuid_of(device)
            uuids += [found] if isinstance(found, str) else [b.uuid for b in gpu.boards()]
    return DeviceLock(uuids)


def path_of(uuid: str, where: Path) -> Path:
    """The lock file of a GPU."""
    return where / f"attnbench-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"


def _take(uuid: str, path: Path) -> int:
    """A descriptor that holds the lock."""
    descriptor = _opened(uuid, path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            os.close(descriptor)
            raise LockDenied(_denied(uuid, path, error)) from error
        holder = os.pread(descriptor, 1 << 16, 0)
        os.close(descriptor)
        raise DeviceBusy(
            f"GPU {uuid} is being measured by {_who(holder)}; two runs on one GPU would both be "
            "wrong: wait until that one ends, or choose another GPU with CUDA_VISIBLE_DEVICES"
        ) from None
    with suppress(OSError):  # somebody else's file that may only be read is locked all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _myself(), 0)
    return descriptor


def _opened(uuid: str, path: Path) -> int:
    """The file, made so that every user may lock it, whoever came first.

    In a shared folder Linux may refuse to open another's file with the flag that would create it,
    so creating and opening are kept apart.
    """
    common = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | common, 0o666)
        with suppress(OSError):
            os.fchmod(descriptor, 0o666)  # whatever the umask says
        return descriptor
    except FileExistsError:
        pass
    except OSError as error:
        raise LockDenied(_denied(uuid, path, error)) from error
    try:
        return os.open(path, os.O_RDWR | common)
    except PermissionError:
        pass
    except OSError as error:
        raise LockDenied(_denied(uuid, path, error)) from error
    try:
        return os.open(path, os.O_RDONLY | common)
    except OSError as error:
        raise LockDenied(_denied(uuid, path, error)) from error


def _denied(uuid: str, path: Path, error: OSError) -> str:
    return (
        f"can't tell whether another run is using GPU {uuid}: the lock file {path} can't be used "
        f"({error.strerror}); have its owner remove it, or make its folder writable"
    )


def _myself() -> bytes:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    command = " ".join(sys.orig_argv)[:SAID]
    return json.dumps({"pid": os.getpid(), "command": command, "since": now}).encode()


def _who(said: bytes) -> str:
    """Who holds a lock, in words; what is not as we write it is not repeated."""
    try:
        holder: Any = json.loads(said)
        pid, command, since = int(holder["pid"]), str(holder["command"]), str(holder["since"])
    except (ValueError, KeyError, TypeError):
        return "another process, which doesn't say who it is"
    command = "".join(c if c.isprintable() else "?" for c in command[:SAID])
    return f"process {pid} ({command}), since {since[:40]}"


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
