"""The other side of :mod:`attnbench.core.process`: the one start of a process, its keeper, and the
answers to questions. Only the standard library is loaded, since a commit's code may be broken.

The keeper runs this file. It starts a command, adopts whatever that starts, and ends it all when
the command ends or the parent does. A worker's module calls :func:`serve`: each question is a JSON
object on a line, with its number as ``asked``. Messages about it carry that number too:
``{"doing": …}`` and ``{"stage": …}`` before the answer, then the answer itself.
``{"settle": word}`` is answered with the word.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

KEEPER_END_S = 10.0
"""For killed processes to go."""
DIE_WITH_PARENT, ADOPT = 1, 36
"""prctl's PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER."""


def start(
    command: Sequence[str], passed: Collection[int] = (), **more: Any
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, which Ctrl-C does not reach."""
    return subprocess.Popen(command, pass_fds=passed, start_new_session=True, **more)


class Answers:
    """The way back to the parent, for one process alone."""

    def __init__(self, pipe: int, *, allow_nan: bool) -> None:
        self._pipe, self._allow_nan, self._owner = os.fdopen(pipe, "w"), allow_nan, os.getpid()
        self.asked = 0
        """The number of the question that is being answered."""

    def send(self, message: Mapping[str, Any]) -> None:
        """One line. A child that a variant forked must not answer too."""
        if os.getpid() != self._owner:
            os._exit(1)
        line = json.dumps({**message, "asked": self.asked}, allow_nan=self._allow_nan)
        self._pipe.write(line + "\n")
        self._pipe.flush()

    def stage(self, stage: Mapping[str, Any]) -> None:
        """A part of the answer, before its end."""
        self.send({"stage": stage})


def serve(
    respond: Callable[[dict[str, Any], Answers], dict[str, Any]], *, allow_nan: bool = False
) -> None:
    """Answer questions with what ``respond`` returns, until the parent closes the pipe."""
    questions, pipe, memory = map(int, sys.argv[1:])
    with suppress(OSError):  # the system ends this process rather than any other without memory
        Path("/proc/self/oom_score_adj").write_text("1000")
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    answers = Answers(pipe, allow_nan=allow_nan)
    with os.fdopen(questions) as lines:
        for line in lines:
            question = json.loads(line)
            answers.asked = question.pop("asked")
            if "settle" in question:
                answers.send({"settled": question["settle"]})
            else:
                answers.send(respond(question, answers))


def keep(life: int, report: int, passed: Sequence[int], command: Sequence[str]) -> None:
    """Run a command until it has ended or the parent has, and then end all that it started.

    ``life`` ends when the parent does. To ``report`` go two lines: the process's number; its exit
    status, and a sentence where it could not be started. ``passed`` are the command's alone.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(ADOPT, 1)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)

    def say(line: str) -> None:
        with suppress(OSError):  # the parent is gone
            os.write(report, f"{line}\n".encode())

    try:
        worker = start(
            command, passed, preexec_fn=lambda: prctl(DIE_WITH_PARENT, signal.SIGKILL)
        ).pid
    except OSError as error:  # as a shell says it
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        say(f"0\n127 {command[0]} can't be started: {error.strerror}")
        return
    for number in (0, 1, 2, *passed):
        os.close(number)
    say(str(worker))
    end = _wait(worker, life, wake)
    until = time.monotonic() + KEEPER_END_S
    while True:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        for process in _children(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if _ended_children() is None or time.monotonic() >= until:
            break
        time.sleep(0.001)
    say(end)


def _wait(worker: int, life: int, wake: int) -> str:
    """Wait until a process has ended or has to be; its exit status."""
    while True:
        ready, _, _ = select.select([life, wake], [], [])
        if wake in ready:
            os.read(wake, 1 << 12)
        if worker in (ended := _ended_children() or {}):
            return str(ended[worker])
        if life in ready:
            return str(-signal.SIGKILL)


def _ended_children() -> dict[int, int] | None:
    """How the children ended that have ended since; None where there is none left."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended[child[0]] = os.waitstatus_to_exitcode(child[1])
        return ended
    return ended or None


def _children(process: int) -> list[int]:
    """The processes that a process has started and that are there, whichever thread it was."""
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                children += map(int, (thread / "children").read_text().split())
    return children


if __name__ == "__main__":
    keep(int(sys.argv[1]), int(sys.argv[2]), [*map(int, sys.argv[3].split())], sys.argv[4:])
