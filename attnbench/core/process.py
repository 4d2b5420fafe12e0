"""A process of ours: started with its environment, asked, heard, ended with all that it started."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

from attnbench.core.settings import Settings, environment
from impls.asked import CantBeDone

MOST_PROCESSES = 512
"""More than this at once is no compiler at work."""
LOOK_S, LOOK_OFTEN_S = 1.0, 0.05
"""Between two looks, and where the system does not tell of the worker's end."""
KEEPER_END_S = 10.0
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
    until = time.monotonic() + KEEPER_END_S
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


LAST_WORDS = 2000
"""Bytes of a dead worker's streams that go into the record."""
KEPT = 1 << 16
"""So much of what it says is held while nobody knows whether it will die."""
PROFILER_CHATTER = "USDT:"
"""How torch's profiler begins the lines that it writes to the error stream, asked or not."""
GROUP = Path("/sys/fs/cgroup")
"""Where a container says what it may take."""
SHARE = 0.9
"""Of the memory that is free when a worker starts, what it may take."""
DRAIN_S = 2.0
"""So long what was said already may take to be read."""
KEPT_BY = "ATTNBENCH_WORKER"
"""The variable by which all that a worker starts is known, should its keeper be killed."""
START_S, END_S = 60.0, 15.0
"""For a keeper to say whom it keeps, and to end them all."""


@dataclass(frozen=True)
class ProcessEnd:
    """How a worker ended: with a status, by a signal (negative), or for starting too many."""

    status: int
    processes: int = 0


class Child:
    """A worker and its keeper, from their start to their end."""

    def __init__(
        self,
        settings: Settings,
        first: Path | None,
        memory: int | None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``first``: a folder in which it looks first for what it imports; ``memory``: bytes that
        it may hold, None for as many as there are.
        """
        questions, ask = os.pipe()
        self.answers, answer = socket.socketpair()
        self.answers.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # who wrote comes along
        life, self._life = os.pipe()
        self._report, report = os.pipe()
        self._words, words = os.pipe()
        given = (questions, answer.fileno(), life, report)
        command = [
            sys.executable,
            "-P",
            "-m",
            "attnbench.sweep.worker",
            *map(str, given),
            str(memory or 0),
        ]
        self._mark = secrets.token_hex(8)
        own = {**variables_of(settings.threads, first), **(variables or {}), KEPT_BY: self._mark}
        self.keeper = subprocess.Popen(
            command,
            env=own,
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            start_new_session=True,
        )
        for number in (questions, life, report, words):
            os.close(number)
        answer.close()
        os.set_blocking(self._words, False)
        self.questions = os.fdopen(ask, "w")
        self._heard, self._kept = b"", b""
        self._ended: ProcessEnd | None = None
        self.pid = self._whom()

    def listen(self, patience_s: float) -> bool:
        """Wait for an answer, hearing what else is said; whether there is one to receive."""
        until = monotonic() + patience_s
        while True:
            left = max(0.0, until - monotonic())
            open_now: list[socket.socket | int] = [self.answers, *self._open()]
            ready, _, _ = select.select(open_now, [], [], left)
            if self._words in ready and not self._hear():
                continue
            if self.answers in ready or monotonic() >= until:  # though somebody shouts for ever
                return self.answers in ready

    def ended(self, patience_s: float = 0.0) -> ProcessEnd | None:
        """How the worker ended, if it has; waits so long for its keeper to say."""
        if self._ended is None:
            said = self._told("status", patience_s) or self._told("processes", 0)
            if said is None and self.keeper.poll() is not None:
                said = self._told("status", 0) or "status -9"  # the keeper was killed, it with him
            if said is not None:
                word, number = said.split()
                self._ended = (
                    ProcessEnd(int(number)) if word == "status" else ProcessEnd(-9, int(number))
                )
        return self._ended

    def forget(self) -> None:
        """What was said so far belongs to nobody who is to come."""
        self._drain()
        self._kept = b""

    def last_words(self) -> str:
        """The end of what it said on both its streams since it was last told to forget."""
        self._drain()
        lines = self._kept[-LAST_WORDS:].decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith(PROFILER_CHATTER))

    def end(self) -> None:
        """End the worker and all that it started, whatever they are at."""
        with suppress(OSError):
            self.questions.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        try:
            self.keeper.wait(END_S)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
        if self.keeper.returncode != 0:  # it was killed, and nobody else ends whom it kept
            self._hunt()

    def close(self) -> None:
        """Let go of the pipes of a worker that has ended."""
        self.answers.close()
        for number in (self._report, self._words):
            if number >= 0:
                os.close(number)
        self._report = self._words = -1

    def _hunt(self) -> None:
        until = monotonic() + END_S
        while (found := marked(f"{KEPT_BY}={self._mark}")) and monotonic() < until:
            for process in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            sleep(0.01)

    def _open(self) -> list[int]:
        return [self._words] if self._words >= 0 else []

    def _drain(self) -> None:
        """Take in what it has said; who never stops is heard no longer than that takes."""
        until = monotonic() + DRAIN_S
        while self._open() and monotonic() < until and self._hear():
            pass

    def _hear(self) -> bool:
        """Take in some of what it says; False where there is nothing now, or nobody to say it."""
        try:
            part = os.read(self._words, KEPT)
        except BlockingIOError:
            return False
        if not part:
            os.close(self._words)
            self._words = -1
            return False
        self._kept = (self._kept + part)[-KEPT:]
        return True

    def _whom(self) -> int:
        """Whom the keeper keeps."""
        said = self._told("worker", START_S)
        return int(said.split()[1]) if said else self.keeper.pid

    def _told(self, word: str, patience_s: float) -> str | None:
        """A line of the keeper's that begins with a word."""
        until = monotonic() + patience_s
        while True:
            for line in self._heard.decode().split("\n")[:-1]:
                if line.startswith(word):
                    return line
            ready, _, _ = select.select([self._report], [], [], max(0.0, until - monotonic()))
            if not ready or not (part := os.read(self._report, 4096)):
                return None
            self._heard += part


def free_memory() -> int:
    """Bytes that a worker may take: most of what is free now, here and in its control group."""
    with Path("/proc/meminfo").open() as lines:
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    with suppress(OSError, ValueError):  # no limit is the word "max"
        limit = int((GROUP / "memory.max").read_text())
        free = min(free, limit - int((GROUP / "memory.current").read_text()))
    return int(SHARE * free)


def variables_of(threads: int, first: Path | None = None) -> dict[str, str]:
    """What a process of the ruler's gets: its threads, its allocator, this checkout first."""
    here = str(Path(__file__).resolve().parents[2])
    path = [str(first) if first else "", here, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **environment(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


NAMES = {number.value: number.name for number in signal.Signals}


def ended(status: int) -> str:
    """Of an exit status as Python gives it: below zero is a signal, and some have no name."""
    if status >= 0:
        return f"ended with status {status}"
    return f"died of {NAMES.get(-status, f'signal {-status}')}"


ASIDE_LAST_WORDS = 400
"""Characters of the last line that a dead process wrote."""
ASIDE_LOOK_S, SEEN_END_S = 1.0, 10.0
"""How often a process that says nothing is looked at, and how long its end may take to be seen."""


class Lost(CantBeDone):
    """It can't be heard any more; why, in a sentence."""


class Aside:
    """``python -m module``, with the number of the pipe for its answers as the only argument."""

    def __init__(self, module: str, threads: int) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115, closed with the rest
        self._read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(write)],
            stdin=subprocess.PIPE,
            stdout=self._words,
            stderr=self._words,
            pass_fds=(write,),
            start_new_session=True,
            env=variables_of(threads),
        )
        os.close(write)
        self._kept, self._said_before = b"", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, question: Mapping[str, Any]) -> None:
        """What is said from now on is about this. The end of its answers tells of one that died."""
        assert self._process.stdin is not None
        self._said_before = os.fstat(self._words.fileno()).st_size
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def answers(self, until: float) -> Iterator[dict[str, Any]]:
        """As they come, until there are no more or the time is over."""
        gone = False
        while True:
            while b"\n" in self._kept:
                line, _, self._kept = self._kept.partition(b"\n")
                yield _answer(line)
            left = until - monotonic()
            patience = 0.0 if gone else max(0.0, min(ASIDE_LOOK_S, left))
            ready, _, _ = select.select([self._read], [], [], patience)
            if ready:
                if not (part := os.read(self._read, 1 << 20)):
                    return
                self._kept += part
            elif gone or left <= 0:
                return
            else:  # whom it started may hold its pipe
                gone = not self.lives

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def end(self, until: float) -> str | None:
        """Why there were no more answers: how it ended. None: the time was over."""
        if monotonic() < until:
            with suppress(subprocess.TimeoutExpired):
                return self.how(self._process.wait(SEEN_END_S))
        return None

    def how(self, status: int) -> str:
        """How a process ended, with the last line that was written since it was asked."""
        size = os.fstat(self._words.fileno()).st_size
        words = os.pread(self._words.fileno(), size - self._said_before, self._said_before)
        lines = words.decode(errors="replace").strip().splitlines()
        last = "".join(c if c.isprintable() else "?" for c in lines[-1]) if lines else ""
        return ": ".join(
            filter(None, [f"its process {ended(status)}", last.strip()[:ASIDE_LAST_WORDS]])
        )

    def close(self) -> None:
        """End it, and whatever it started."""
        if self._words.closed:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        self._words.close()


def _answer(line: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(answer := json.loads(line), dict):
            return answer
    raise Lost("something wrote into its answers what is none")
