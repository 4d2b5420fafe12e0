"""The child's side of :mod:`attnbench.core.process`: its keeper, and the answers to questions.

A module that is started calls :func:`serve` or :func:`serve_forked`. The process splits: the first
becomes the keeper, which adopts whatever the worker starts and ends it all when the worker ends or
the parent does. Each question is a JSON object on a line, with its number as ``asked``. Messages
about it carry that number too: ``{"doing": …}`` and ``{"stage": …}`` before the answer, then the
answer itself. ``{"settle": word}`` is answered with the word.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from impls.asked import CantBeDone

MOST_PROCESSES = 512
"""More than this at once is no compiler at work."""
LOOK_S, LOOK_OFTEN_S = 1.0, 0.05
"""Between two looks at the worker; the second where the system can't wake the keeper at its end."""
KEEPER_END_S = 10.0
"""For killed processes to go."""
DIE_WITH_PARENT, ADOPT = 1, 36
"""prctl's PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER."""
FIRST_TO_GO = "1000"
"""Makes the system end this process rather than any other when memory runs out."""

Tell = Callable[[Mapping[str, Any]], None]
Question = Mapping[str, Any]


class Answers:
    """The way back to the parent, for one process alone."""

    def __init__(self, pipe: int, *, allow_nan: bool) -> None:
        self._pipe, self._allow_nan = os.fdopen(pipe, "w"), allow_nan
        self.owner = os.getpid()
        self.asked = 0
        """The number of the question that is being answered."""

    def send(self, message: Mapping[str, Any]) -> None:
        """One line. A child that a variant forked must not answer too."""
        if os.getpid() != self.owner:
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
    questions, pipe, life, report, memory = map(int, sys.argv[1:])
    keep(life, report, (questions, pipe))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
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


def serve_forked(stages: Callable[[Question], Iterator[dict[str, Any]]]) -> None:
    """Answer each question in a fork of this process, stage by stage.

    What was imported before is there in each fork at once. Nothing is computed before the fork:
    a thread that torch had started would not be there after it.
    """

    def respond(question: dict[str, Any], answers: Answers) -> dict[str, Any]:
        child = os.fork()
        if child == 0:
            try:
                ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
                os.setsid()
                answers.owner = os.getpid()
                _send_stages(question, stages, answers.stage)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # whatever it started
        return {"ended": os.waitstatus_to_exitcode(status)}

    serve(respond)


def _send_stages(
    question: Question, stages: Callable[[Question], Iterator[dict[str, Any]]], tell: Tell
) -> None:
    """A sentence for the caller ends the stages as ``refused``, any other exception as ``failed``;
    neither is this process's own failure.
    """
    from attnbench.core import settings

    settings.apply(settings.Settings(threads=int(os.environ["OMP_NUM_THREADS"])))
    try:
        for stage in stages(question):
            tell(stage)
    except CantBeDone as why:
        tell({"refused": str(why)})
    except Exception as error:
        first_line = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
        tell({"failed": first_line})


def keep(life: int, report: int, others: tuple[int, ...]) -> None:
    """Return in the worker, a process of its own; the keeper itself never returns.

    ``life`` ends when the parent does. To ``report`` go two lines: the worker's number; its exit
    status, and a sentence where it was ended. ``others`` are the worker's alone.
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
        _report(report, worker)
        end = watch(worker, life)
        _end_all(worker)
        _report(report, end)
    finally:
        os._exit(0)


def watch(worker: int, life: int) -> str:
    """Wait until the worker has ended or has to be; its exit status, and why it has to end."""
    try:
        gone = [os.pidfd_open(worker)]
    except (OSError, AttributeError):  # a sandbox refuses it, or this Python has none
        gone = []
    look = time.monotonic() + LOOK_S
    while True:
        ready, _, _ = select.select([life, *gone], [], [], LOOK_S if gone else LOOK_OFTEN_S)
        if worker in (ended := _reap() or {}):
            return str(ended[worker])
        if life in ready:
            return str(-signal.SIGKILL)
        if time.monotonic() < look:
            continue
        look = time.monotonic() + LOOK_S
        if _too_many(worker):
            words = f"it had started more than {MOST_PROCESSES} processes, and was ended"
            return f"{-signal.SIGKILL} {words}"


def _too_many(worker: int) -> bool:
    """Whether a process, and those that it started, have started too many."""
    found = _children(worker)
    for process in found:  # the list grows meanwhile
        if len(found) >= MOST_PROCESSES:
            break
        found += _children(process)
    return len(found) >= MOST_PROCESSES


def _end_all(worker: int) -> None:
    """Kill the worker, what it started, and what those started, until nothing is left."""
    until = time.monotonic() + KEEPER_END_S
    while time.monotonic() < until:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        for process in _children(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if _reap() is None:
            return
        time.sleep(0.001)


def _reap() -> dict[int, int] | None:
    """How the children ended that have ended since; None where there is none left."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
        return ended
    return ended or None


def _children(process: int) -> list[int]:
    """The processes that a process has started and that are there, whichever thread it was."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _report(report: int, line: object) -> None:
    with suppress(OSError):  # the parent is gone
        os.write(report, f"{line}\n".encode())
