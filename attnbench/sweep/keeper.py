"""Whoever stands between an engine and its worker, and sees to it that nothing is left behind.

The keeper forks the worker off before anything heavy is loaded, and adopts whatever the worker's
children leave behind when they die. It ends them all when the worker ends, when the engine lets go
of it, when the engine's process is gone however it went, and when there are more processes than any
compiler starts. It needs no torch and holds nothing open that a worker writes to.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

MOST_PROCESSES = 512
"""More than this at once is no compiler at work."""
LOOK_S, LOOK_OFTEN_S = 1.0, 0.05
"""Between two looks, and where the system does not tell of the worker's end."""
END_S = 10.0
"""So long processes that were killed may take to go."""
DIE_WITH_PARENT, ADOPT = 1, 36
"""prctl's PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER."""


def keep(life: int, report: int, others: tuple[int, ...]) -> None:
    """Return in the worker, a process of its own; the keeper itself never returns.

    ``life`` ends when the engine does. To ``report`` goes the worker's number, then how it ended:
    ``status N``, or ``processes N`` where there were too many. ``others`` are the worker's alone.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(ADOPT, 1)
    worker = os.fork()
    if worker == 0:
        prctl(DIE_WITH_PARENT, signal.SIGKILL)
        os.setsid()
        os.close(life)
        os.close(report)
        return
    for number in (0, 1, 2, *others):
        os.close(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _say(report, f"worker {worker}")
        said = _watch(worker, life)
        end(worker)
        _say(report, said)
    finally:
        os._exit(0)


def _watch(worker: int, life: int) -> str:
    """Until the worker has ended or has to be; how that was."""
    try:
        gone = [os.pidfd_open(worker)]
    except (OSError, AttributeError):  # a sandbox refuses it, or this Python has none
        gone = []
    look = time.monotonic() + LOOK_S
    while True:
        ready, _, _ = select.select([life, *gone], [], [], LOOK_S if gone else LOOK_OFTEN_S)
        if _has_ended(worker):
            return f"status {os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])}"
        if life in ready:
            return f"status {-signal.SIGKILL}"
        if time.monotonic() < look:
            continue
        look = time.monotonic() + LOOK_S
        if len(descendants(worker, MOST_PROCESSES)) >= MOST_PROCESSES:
            return f"processes {MOST_PROCESSES}"
        _reap(worker)


def _has_ended(worker: int) -> bool:
    return os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(worker: int) -> None:
    """Kill the worker, what it started, and what those started, until there is none."""
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        for process in children(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not _reap():
            return
        time.sleep(0.001)


def _reap(but: int | None = None) -> bool:
    """Let go of all that have ended, but one; whether any child is left."""
    with suppress(ChildProcessError):
        while True:
            look = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if look is None or look.si_pid == but:
                return True
            os.waitpid(look.si_pid, 0)
    return False


def descendants(process: int, most: int) -> list[int]:
    """What a process has started, and what those have, up to so many."""
    found = children(process)
    for each in found:  # it grows meanwhile
        if len(found) >= most:
            break
        found += children(each)
    return found


def children(process: int) -> list[int]:
    """The processes that a process has started and that are there, whichever thread it was."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def marked(word: str) -> list[int]:
    """The processes that carry a word in their environment, wherever they have gone."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and word.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def _say(report: int, words: str) -> None:
    with suppress(OSError):  # nobody is there any more to hear it
        os.write(report, words.encode() + b"\n")
