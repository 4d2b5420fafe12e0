"""Who holds the lock on a file, as the system tells it; a run leaves no file behind to say so."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

SAID = 500
"""Characters of a command that are kept."""
PROC = Path("/proc")


def holder(path: Path) -> str:
    """``process 12 (attnbench run), since …``; as much of it as can be known."""
    try:
        pid = _pid(path.stat())
    except (OSError, ValueError, IndexError):
        pid = None
    if pid is None or not (PROC / str(pid)).exists():
        return "another process"
    command, since = _command(pid), _since(pid)
    return f"process {pid}" + f" ({command})" * bool(command) + f", since {since}" * bool(since)


def _pid(file: os.stat_result) -> int | None:
    """The process in the table of locks; none where another container holds it, or no table is."""
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
    said = b" ".join(words).decode(errors="replace").strip()[:SAID]
    return "".join(c if c.isprintable() else "?" for c in said)


def _since(pid: int) -> str:
    """When the process was started."""
    try:
        after = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks = int(after[19])  # the 22nd of all, of which two stand before the last bracket
        (booted,) = (int(line.split()[1]) for line in (PROC / "stat").read_text().splitlines()
                     if line.startswith("btime "))  # fmt: skip
    except (OSError, ValueError, IndexError):
        return ""
    started = booted + ticks / os.sysconf("SC_CLK_TCK")
    return datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds")
