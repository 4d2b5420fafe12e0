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
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from attnbench.core import gpu
from impls.asked import CantBeDone

SHARED = (Path("/run/lock"), Path("/var/lock"))
"""Where a system's locks are, if everybody may write there."""
LONGEST_COMMAND = 500
"""Characters of a command that are shown."""
PROC = Path("/proc")


class DeviceBusy(CantBeDone):
    """Another process holds the GPU; a sentence that names it."""


class LockDenied(DeviceBusy):
    """Whether another process holds the GPU can't be known."""


@contextmanager
def device_lock(uuids: Sequence[str], where: Path | None = None) -> Iterator[None]:
    """Exclusive use of the GPUs with these UUIDs, all or none; raises :class:`DeviceBusy`."""
    held: list[int] = []
    try:
        for uuid in sorted(set(uuids)):
            held.append(_take(uuid, path_of(uuid, where or shared_folder())))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def lock_for(devices: Iterable[str]) -> AbstractContextManager[None]:
    """The lock of the GPUs among some devices, as torch writes them; the CPU needs none.

    Where it can't be known which GPU ``cuda`` is, all of them are locked.
    """
    uuids: list[str] = []
    for device in devices:
        if device != "cpu":
            found = gpu.uuid_of(device)
            uuids += [found] if isinstance(found, str) else [b.uuid for b in gpu.boards()]
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


def _take(uuid: str, path: Path) -> int:
    """A descriptor that holds the lock."""
    descriptor = -1
    try:
        descriptor = _open(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise DeviceBusy(
                f"GPU {uuid} is being measured by {holder(path)}; two runs on one GPU would both "
                "be wrong: wait until that one ends, or choose another GPU with "
                "CUDA_VISIBLE_DEVICES"
            ) from None
        raise LockDenied(
            f"can't tell whether another run is using GPU {uuid}: the lock file {path} can't be "
            f"used ({error.strerror}); have its owner remove it, or make its folder writable"
        ) from error


def _open(path: Path) -> int:
    """The file, made so that every user may lock it, whoever came first.

    In a shared folder Linux may refuse to open another user's file with the flag that would create
    it, so creating and opening are kept apart.
    """
    common = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | common, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDONLY | common)
    with suppress(OSError):
        os.fchmod(descriptor, 0o666)  # whatever the umask says
    return descriptor


def holder(path: Path) -> str:
    """The process that holds a file's lock: ``process 12 (attnbench run), since …``, as far as the
    system's table of locks tells; another container's is in no table.
    """
    try:
        pid = _pid(path.stat())
    except (OSError, ValueError, IndexError):
        pid = None
    if pid is None or not (PROC / str(pid)).exists():
        return "another process"
    command, since = _command(pid), _since(pid)
    return f"process {pid}" + f" ({command})" * bool(command) + f", since {since}" * bool(since)


def _pid(file: os.stat_result) -> int | None:
    device, inode = (os.major(file.st_dev), os.minor(file.st_dev)), file.st_ino
    for line in (PROC / "locks").read_text().splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 fe:00:2646216 0 EOF
        if len(words) < 8 or words[1] != "FLOCK" or not int(words[4]):
            continue
        major, minor, number = words[5].split(":")
        if (int(major, 16), int(minor, 16)) == device and int(number) == inode:
            return int(words[4])
    return None


def _command(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    command = b" ".join(words).decode(errors="replace").strip()[:LONGEST_COMMAND]
    return "".join(c if c.isprintable() else "?" for c in command)


def _since(pid: int) -> str:
    """When the process was started."""
    try:
        after = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks = int(after[19])  # the 22nd field, of which two stand before the last bracket
        (booted,) = (
            int(line.split()[1])
            for line in (PROC / "stat").read_text().splitlines()
            if line.startswith("btime ")
        )
    except (OSError, ValueError, IndexError):
        return ""
    started = booted + ticks / os.sysconf("SC_CLK_TCK")
    return datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds")


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
