"""Other processes: workers that are asked behind a keeper, and programs that run to their end.

:mod:`attnbench.core.process_child` is the other side and describes the messages. A process runs
code that is not ours and can write wherever that process does. Three things tell its answer from a
forged one: the kernel says which process wrote it; it comes once, because after each answer a word
is sent that could not be known before and has to come back at once; and the process that answered
must still be there. Code that takes the whole process over is beyond this.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, Self

from attnbench.core.settings import environment
from impls.asked import CantBeDone

POLL_S = 1.0
START_LIMIT_S = 300.0
"""For a worker to load torch, on whatever disk; also for questions that are not about a cell."""
SETTLE_LIMIT_S = 30.0
"""For a worker that has answered to confirm it."""
CLOSING_S = 15.0
"""For a worker that has closed its pipe to end, which takes seconds where CUDA is loaded."""
END_S = 15.0
"""For a keeper to end its worker and everything that the worker started."""
DRAIN_S = 2.0
"""The longest that reading the output written so far may take."""
LONGEST_ANSWER, LONGEST_RECORD = 1 << 26, 1 << 22
"""Bytes of an answer, and of one about a cell: it becomes twenty times as many here."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the writer, as the kernel sends them along."""
FORBIDDEN = (signal.SIGSEGV, signal.SIGBUS)
"""What a process that touches memory it may not touch dies of."""
LAST_WORDS, LAST_LINE = 2000, 400
"""Bytes of a dead worker's output that go into a record, and characters that go into a sentence."""
KEPT = 1 << 16
"""Bytes of output that are held in case the worker dies."""
PROFILER_CHATTER = "USDT:"
"""How torch's profiler begins lines on the error stream."""
GROUP = Path("/sys/fs/cgroup")
"""Where a container's memory limit is."""
SHARE = 0.9
"""The share of the memory free at its start that a worker may take."""
LEAVE_S = 5.0
"""For a program that is interrupted to end by itself."""
LAST_LINES = 1000
"""Of a program's output, that are kept."""
MARK = "ATTNBENCH_WORKER"
"""The variable that marks all processes of one worker, in case its keeper is killed."""


class WorkerLost(CantBeDone):
    """The worker died or had to be killed; ``output`` is the end of what it wrote.

    ``wrong``: how it ended shows that the code in it did something forbidden.
    """

    def __init__(
        self, reason: str, output: str, *, timed_out: bool = False, wrong: bool = False
    ) -> None:
        last = "".join(output.strip().splitlines()[-1:])
        last = "".join(c if c.isprintable() else "?" for c in last).strip()[:LAST_LINE]
        super().__init__(": ".join(filter(None, [reason, last])))
        self.reason, self.output, self.timed_out, self.wrong = reason, output, timed_out, wrong


def ended(status: int) -> str:
    """An exit status as Python gives it, in words; below zero it is a signal."""
    if status >= 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"died of {signal.Signals(-status).name}"
    return f"died of signal {-status}"


class Child:
    """A process and its keeper, from their start to their end."""

    def __init__(
        self,
        module: str,
        threads: int,
        *,
        path: Path | None = None,
        memory: int = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``python -m module``. ``path``: a folder that comes first in its import path;
        ``memory``: the bytes that it may hold, 0 for no limit.
        """
        questions, ask = os.pipe()
        self.answers, answer = socket.socketpair()
        self.answers.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        life, self._life = os.pipe()
        self._report, report = os.pipe()
        self._output, output = os.pipe()
        passed = (questions, answer.fileno(), life, report)
        self._mark = secrets.token_hex(8)
        self.keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, passed), str(memory)],
            env={**variables_of(threads, path), **(variables or {}), MARK: self._mark},
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        for number in (questions, life, report, output):
            os.close(number)
        answer.close()
        os.set_blocking(self._output, False)
        self.questions = os.fdopen(ask, "w")
        self._reported, self._kept = "", b""
        self._writes, self._asked = True, False
        self.pid = int(self._line(0, START_LIMIT_S) or self.keeper.pid)

    def listen(self, patience_s: float) -> bool:
        """Wait for an answer, taking in output meanwhile; whether there is one to receive."""
        until = monotonic() + patience_s
        while True:
            sources = [self.answers.fileno(), *[self._output] * self._writes]
            ready, _, _ = select.select(sources, [], [], max(0.0, until - monotonic()))
            if self._output in ready:
                self._take_output()
            answered = self.answers.fileno() in ready
            if answered or monotonic() >= until:  # even if the output never stops
                return answered

    def ended(self, patience_s: float = 0.0) -> tuple[int, str] | None:
        """The worker's exit status and a sentence on its end, which is waited for so long."""
        if line := self._line(1, patience_s):
            number, _, words = line.partition(" ")
            return int(number), words or f"the worker {ended(int(number))}"
        with suppress(subprocess.TimeoutExpired):  # the pipes close a moment before it is known
            code = self.keeper.wait(min(patience_s, POLL_S))
            if line := self._line(1, 0.0):
                return self.ended()
            # the keeper was killed and the worker with it, or never began
            status = code if self.pid == self.keeper.pid else -signal.SIGKILL
            return status, f"the worker {ended(status)}"
        return None

    def begin_question(self) -> None:
        """Drop the output about earlier questions, if there were any."""
        if self._asked:
            self._drain()
            self._kept = b""
        self._asked = True

    def last_words(self) -> str:
        """The end of what it wrote to both its streams since the question began."""
        self._drain()
        lines = self._kept[-LAST_WORDS:].decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith(PROFILER_CHATTER))

    def end(self) -> None:
        """End the worker and all that it started, whatever they are doing."""
        with suppress(OSError):
            self.questions.close()
        os.close(self._life)
        try:
            self.keeper.wait(END_S)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
        if self.keeper.returncode != 0:  # it was killed, and nothing else ends its processes
            until = monotonic() + END_S
            while (left := _marked(f"{MARK}={self._mark}")) and monotonic() < until:
                for process in left:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(process, signal.SIGKILL)
                sleep(0.01)
        self._drain()
        self._writes = False
        self.answers.close()
        os.close(self._report)
        os.close(self._output)

    def _drain(self) -> None:
        until = monotonic() + DRAIN_S
        while self._writes and monotonic() < until and self._take_output():
            pass

    def _take_output(self) -> bool:
        """Take in some output; False where there is none now, or no more at all."""
        try:
            part = os.read(self._output, KEPT)
        except BlockingIOError:
            return False
        self._kept = (self._kept + part)[-KEPT:]
        self._writes = bool(part)
        return self._writes

    def _line(self, number: int, patience_s: float) -> str:
        """A line of the keeper's report: the worker's process, then how it ended; or nothing."""
        until = monotonic() + patience_s
        while len(lines := self._reported.split("\n")) < number + 2:
            ready, _, _ = select.select([self._report], [], [], max(0.0, until - monotonic()))
            if not ready or not (part := os.read(self._report, 4096)):
                return ""
            self._reported += part.decode()
        return lines[number]


class Worker:
    """Asks a process; starts one when there is none."""

    def __init__(
        self,
        module: str,
        threads: int,
        *,
        path: Path | None = None,
        limited: bool = True,
        variables: Mapping[str, str] | None = None,
        forks: bool = False,
    ) -> None:
        """``limited``: to the memory that is free when it starts; a GPU's driver reserves more
        than there is. ``forks``: a child of the process answers each question, so that the
        writer's process number is not checked.
        """
        self._module, self._threads, self._path = module, threads, path
        self._limited, self._forks, self._variables = limited, forks, variables
        self._child: Child | None = None
        self._buffer = bytearray()
        self._doing = ""
        self._asked = 0
        self._longest = LONGEST_ANSWER

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process number, while there is a process."""
        return self._child.pid if self._child else None

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer; raises :class:`WorkerLost` if there is none within the limit."""
        answer: dict[str, Any] = {}
        for message in self.messages(question, limit_s):
            answer = message
        return answer

    def messages(self, question: Mapping[str, Any], limit_s: float) -> Iterator[dict[str, Any]]:
        """Each message about a question as it comes, the answer last; raises WorkerLost.

        The process ends if this is left before the answer.
        """
        if self._child is None:
            self._start()
        assert self._child is not None
        self._child.begin_question()
        settled = False
        try:
            self._asked += 1
            self._doing = ""
            self._longest = LONGEST_RECORD if "job" in question else LONGEST_ANSWER
            self._send(self._child, question)
            until = monotonic() + limit_s
            while "stage" in (message := self._message(self._child, until, limit_s)):
                yield message["stage"]
            word = secrets.token_hex(16)
            self._send(self._child, {"settle": word})
            until = monotonic() + SETTLE_LIMIT_S
            if self._message(self._child, until, SETTLE_LIMIT_S) != {"settled": word}:
                raise self._lost("it answered twice: one of the answers is forged", wrong=True)
            settled = True
        finally:
            if not settled:
                self.close()
        if status := message.pop("ended", 0):
            raise WorkerLost(f"its process {ended(status)}", self._child.last_words())
        if message.pop("spoiled", False):
            self.close()  # the next question goes to a process that nothing has changed
        if message:
            yield message

    def close(self) -> None:
        """End the process and all that it started, whatever they are doing."""
        if self._child is not None:
            self._child.end()
        self._child = None
        self._buffer.clear()

    def _start(self) -> None:
        memory = free_memory() if self._limited else 0
        self._child = Child(
            self._module, self._threads, path=self._path, memory=memory, variables=self._variables
        )

    def _send(self, child: Child, question: Mapping[str, Any]) -> None:
        try:
            child.questions.write(json.dumps({**question, "asked": self._asked}) + "\n")
            child.questions.flush()
        except BrokenPipeError:
            raise self._gone(child) from None

    def _message(self, child: Child, until: float, limit_s: float) -> dict[str, Any]:
        """The next message about the latest question; what the worker is doing is kept."""
        while line := self._read_line(child, until):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                raise self._lost("the worker's answer is no JSON") from None
            number = message.pop("asked", None) if isinstance(message, dict) else None
            if not isinstance(number, int) or number > self._asked:
                raise self._lost("the worker answered another question")
            if not isinstance(message.get("stage", {}), dict):
                raise self._lost("the worker's answer is no JSON object")
            # a lower number: to a question that something else has answered already
            if number == self._asked and "doing" not in message:
                return message
            if number == self._asked:
                self._doing = str(message["doing"])
            if monotonic() >= until:  # even if messages never stop
                break
        raise self._lost(f"it was still running after {limit_s:.0f} s", timed_out=True)

    def _read_line(self, child: Child, until: float) -> bytes:
        """A line with its end; empty past the deadline. Raises WorkerLost where none can come."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            if searched and monotonic() >= until:
                return b""
            searched = len(self._buffer)
            gone = child.ended() is not None  # though a child of it may hold the pipe
            patience = min(POLL_S, max(0.0, until - monotonic()))
            part = self._receive(child) if child.listen(0.0 if gone else patience) else None
            if part == b"" or (gone and part is None):
                raise self._gone(child)
            self._buffer += part or b""
            if len(self._buffer) > self._longest:
                raise self._lost("the worker's answer does not end")
            if part is None and monotonic() >= until:
                return b""
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line

    def _receive(self, child: Child) -> bytes:
        """What came, as long as the worker itself wrote it."""
        try:
            room = socket.CMSG_SPACE(CREDENTIALS.size)
            part, ancillary, *_ = child.answers.recvmsg(1 << 20, room)
        except ConnectionResetError:  # it died with a question unread
            return b""
        writers = [CREDENTIALS.unpack(data[: CREDENTIALS.size])[0] for _, _, data in ancillary]
        if part and not self._forks and writers != [child.pid]:
            raise self._lost("another process answered in its place", wrong=True)
        return part

    def _gone(self, child: Child) -> WorkerLost:
        """The worker has ended: how, and what that means."""
        end = child.ended(patience_s=CLOSING_S)
        if end is None:
            return self._lost("the worker closed its pipe")
        status, sentence = end
        if self._doing and -status in FORBIDDEN:
            return self._lost(self._doing, wrong=True)
        return self._lost(sentence)

    def _lost(self, reason: str, *, timed_out: bool = False, wrong: bool = False) -> WorkerLost:
        child = self._child
        self.close()  # first, so that nothing writes any more
        output = child.last_words() if child else ""
        return WorkerLost(reason, output, timed_out=timed_out, wrong=wrong)


def free_memory() -> int:
    """Bytes that a worker may take: most of what is free now, here and in its control group."""
    with Path("/proc/meminfo").open() as lines:
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    with suppress(OSError, ValueError):  # no limit is the word "max"
        limit = int((GROUP / "memory.max").read_text())
        free = min(free, limit - int((GROUP / "memory.current").read_text()))
    return int(SHARE * free)


def variables_of(threads: int, path: Path | None = None) -> dict[str, str]:
    """The environment of a child process: its threads, its allocator, this checkout first."""
    here = str(Path(__file__).resolve().parents[2])
    folders = [str(path) if path else "", here, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **environment(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
    }


def _marked(word: str) -> list[int]:
    """The processes that carry a word in their environment, wherever they have gone."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and word.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


class Program:
    """Another program in a session of its own, which ends with it; the end of its output is kept.

    Both its streams are one, and ``watch`` is given each line.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        variables: Mapping[str, str] = os.environ,
        given: str = "",
        watch: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._watch = watch
        with tempfile.TemporaryFile() as stdin:
            stdin.write(given.encode())
            stdin.seek(0)
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**variables, "PYTHONUNBUFFERED": "1"},  # so that both streams keep their order
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Interrupt it, if it runs, and kill what is left of its session."""
        try:
            if self._process.poll() is None:
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(self._process.pid, signal.SIGINT)
                    self._process.wait(LEAVE_S)
        finally:
            until = monotonic() + END_S
            while (left := _of_session(self._process.pid)) and monotonic() < until:
                for process in left:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(process, signal.SIGKILL)
                sleep(0.01)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(DRAIN_S)
            self._reader.join(DRAIN_S)

    def wait(self, limit_s: float | None = None) -> int | None:
        """Its exit status; None where it still runs after the limit."""
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(DRAIN_S)
        return status

    def last_line(self) -> str:
        """The last line that it said, except for valgrind's own."""
        said = [line for line in self._lines if line.strip() and not line.startswith("==")]
        return said[-1].strip() if said else "it said nothing"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line)
                with suppress(OSError):  # reading goes on, or the program waits for ever
                    self._watch(line)


def _of_session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, *numbers = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(numbers[2]) == leader and state != "Z":
                found.append(int(entry.name))
    return found
