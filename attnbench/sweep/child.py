"""A worker as its engine holds it: a process with its pipes, its limits and its last words.

The worker gets the environment that has to stand before torch is loaded, a session of its own, so
that Ctrl-C reaches the parent alone, and a limit to its memory, so that a variant that asks for too
much is told so instead of the machine running out. A keeper beside it ends whatever it starts.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from attnbench.measure.settings import Settings, environment
from attnbench.sweep.keeper import marked

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
class Ended:
    """How a worker ended: with a status, by a signal (negative), or for starting too many."""

    status: int
    processes: int = 0


class Child:
    """A worker and its keeper, from their start to their end."""

    def __init__(self, settings: Settings, first: Path | None, memory: int | None,
                 variables: Mapping[str, str] | None = None) -> None:  # fmt: skip
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
            sys.executable, "-P", "-m", "attnbench.sweep.worker", *map(str, given),
            str(memory or 0),
        ]  # fmt: skip
        self._mark = secrets.token_hex(8)
        own = {**variables_of(settings.threads, first), **(variables or {}), KEPT_BY: self._mark}
        self.keeper = subprocess.Popen(
            command, env=own, pass_fds=given,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words,
            start_new_session=True,
        )  # fmt: skip
        for number in (questions, life, report, words):
            os.close(number)
        answer.close()
        os.set_blocking(self._words, False)
        self.questions = os.fdopen(ask, "w")
        self._heard, self._kept = b"", b""
        self._ended: Ended | None = None
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

    def ended(self, patience_s: float = 0.0) -> Ended | None:
        """How the worker ended, if it has; waits so long for its keeper to say."""
        if self._ended is None:
            said = self._told("status", patience_s) or self._told("processes", 0)
            if said is None and self.keeper.poll() is not None:
                said = self._told("status", 0) or "status -9"  # the keeper was killed, it with him
            if said is not None:
                word, number = said.split()
                self._ended = Ended(int(number)) if word == "status" else Ended(-9, int(number))
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
        **os.environ, **environment(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }  # fmt: skip
