"""Child processes that answer questions: started behind a keeper, asked, and ended with all theirs.

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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
MARK = "ATTNBENCH_WORKER"
"""The variable that marks all processes of one worker, in case its keeper is killed."""
SIGNALS = {number.value: number.name for number in signal.Signals}


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


@dataclass(frozen=True)
class ProcessEnd:
    """How a worker ended: with a status, by a signal (negative), or for starting too many."""

    status: int
    processes: int = 0

    def __str__(self) -> str:
        if self.processes:
            return f"it had started more than {self.processes} processes, and was ended"
        return f"the worker {ended(self.status)}"


def ended(status: int) -> str:
    """An exit status as Python gives it, in words; below zero it is a signal."""
    if status >= 0:
        return f"ended with status {status}"
    return f"died of {SIGNALS.get(-status, f'signal {-status}')}"


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
        self._reported, self._kept, self._asked = b"", b"", False
        self._end: ProcessEnd | None = None
        started = self._reported_line("worker", START_LIMIT_S)
        self.pid = int(started.split()[1]) if started else self.keeper.pid

    def listen(self, patience_s: float) -> bool:
        """Wait for an answer, taking in output meanwhile; whether there is one to receive."""
        until = monotonic() + patience_s
        while True:
            sources: list[socket.socket | int] = [self.answers]
            sources += [self._output] if self._output >= 0 else []
            ready, _, _ = select.select(sources, [], [], max(0.0, until - monotonic()))
            if self._output in ready and not self._take_output():
                continue
            if self.answers in ready or monotonic() >= until:  # even if the output never stops
                return self.answers in ready

    def ended(self, patience_s: float = 0.0) -> ProcessEnd | None:
        """How the worker ended, if it has; waits so long for its keeper to report it."""
        if self._end is None:
            line = self._reported_line("status", patience_s) or self._reported_line("processes", 0)
            if line is None and self._keeper_ended(min(patience_s, POLL_S)):
                line = self._reported_line("status", 0)
                if line is None:  # the keeper was killed and the worker with it, or never began
                    status = self.keeper.returncode if self.pid == self.keeper.pid else -9
                    line = f"status {status}"
            if line is not None:
                word, number = line.split()
                self._end = (
                    ProcessEnd(int(number)) if word == "status" else ProcessEnd(-9, int(number))
                )
        return self._end

    def _keeper_ended(self, patience_s: float) -> bool:
        """Whether the keeper has ended; its pipes close a moment before that is known."""
        with suppress(subprocess.TimeoutExpired):
            self.keeper.wait(patience_s)
        return self.keeper.returncode is not None

    def begin_question(self) -> None:
        """Drop the output about earlier questions."""
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
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
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

    def close(self) -> None:
        """Close the pipes of a worker that has ended."""
        self.answers.close()
        for number in (self._report, self._output):
            if number >= 0:
                os.close(number)
        self._report = self._output = -1

    def _drain(self) -> None:
        until = monotonic() + DRAIN_S
        while self._output >= 0 and monotonic() < until and self._take_output():
            pass

    def _take_output(self) -> bool:
        """Take in some output; False where there is none now, or no more at all."""
        try:
            part = os.read(self._output, KEPT)
        except BlockingIOError:
            return False
        if not part:
            os.close(self._output)
            self._output = -1
            return False
        self._kept = (self._kept + part)[-KEPT:]
        return True

    def _reported_line(self, word: str, patience_s: float) -> str | None:
        """A line of the keeper's report that begins with a word."""
        until = monotonic() + patience_s
        while True:
            for line in self._reported.decode().split("\n")[:-1]:
                if line.startswith(word):
                    return line
            ready, _, _ = select.select([self._report], [], [], max(0.0, until - monotonic()))
            if not ready or not (part := os.read(self._report, 4096)):
                return None
            self._reported += part


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
        self._limited, self._forks = limited, forks
        self._variables = dict(variables or {})
        self._child: Child | None = None
        self._buffer = b""
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
        settled = False
        try:
            self._child.begin_question()
            self._asked += 1
            self._doing = ""
            self._longest = LONGEST_RECORD if "job" in question else LONGEST_ANSWER
            self._send(question)
            until = monotonic() + limit_s
            while "stage" in (message := self._message(until, limit_s)):
                yield message["stage"]
            self._settle()
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
            self._child.close()
        self._child, self._buffer = None, b""

    def _start(self) -> None:
        memory = free_memory() if self._limited else 0
        self._child = Child(
            self._module, self._threads, path=self._path, memory=memory, variables=self._variables
        )

    def _send(self, question: Mapping[str, Any]) -> None:
        assert self._child is not None
        try:
            self._child.questions.write(json.dumps({**question, "asked": self._asked}) + "\n")
            self._child.questions.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def _message(self, until: float, limit_s: float) -> dict[str, Any]:
        """The next message about the latest question; what the worker is doing is kept."""
        while True:
            line = self._read_line(until)
            if line == b"":
                raise self._gone()
            if line is not None:
                message = self._parse(line)
                # a lower number: to a question that something else has answered already
                current = message.pop("asked") == self._asked
                if current and "doing" not in message:
                    return message
                self._doing = str(message["doing"]) if current else self._doing
            if line is None or monotonic() >= until:  # even if messages never stop
                raise self._lost(f"it was still running after {limit_s:.0f} s", timed_out=True)

    def _settle(self) -> None:
        """Make sure that the answer was the worker's, and the only one."""
        word = secrets.token_hex(16)
        self._send({"settle": word})
        answer = self._message(monotonic() + SETTLE_LIMIT_S, SETTLE_LIMIT_S)
        if answer != {"settled": word}:
            raise self._lost("it answered twice: one of the answers is forged", wrong=True)

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise self._lost("the worker's answer is no JSON") from None
        number = message.get("asked") if isinstance(message, dict) else None
        if not isinstance(number, int) or number > self._asked:
            raise self._lost("the worker answered another question")
        if not isinstance(message.get("stage", {}), dict):
            raise self._lost("the worker's answer is no JSON object")
        return message

    def _read_line(self, until: float) -> bytes | None:
        """A line; empty where none can come any more, None past the deadline."""
        assert self._child is not None
        parts, end = [self._buffer], self._buffer.find(b"\n")
        length = len(self._buffer)
        while end < 0:
            gone = self._child.ended() is not None  # though a child of it may hold the pipe
            patience = min(POLL_S, max(0.0, until - monotonic()))
            if self._child.listen(0.0 if gone else patience):
                part = self._receive()
                if not part:
                    return b""
                end = part.find(b"\n")
                end += length if end >= 0 else 0
                length += len(part)
                if length > self._longest:
                    raise self._lost("the worker's answer does not end")
                parts.append(part)
            elif gone:
                return b""
            if end < 0 and monotonic() >= until:
                return None
        whole = b"".join(parts)
        line, self._buffer = whole[:end], whole[end + 1 :]
        return line or b"null"  # an empty line is not the end

    def _receive(self) -> bytes:
        """What came, as long as the worker itself wrote it."""
        assert self._child is not None
        try:
            room = socket.CMSG_SPACE(CREDENTIALS.size)
            part, ancillary, *_ = self._child.answers.recvmsg(1 << 20, room)
        except ConnectionResetError:  # it died with a question unread
            return b""
        writers = [CREDENTIALS.unpack(data[: CREDENTIALS.size])[0] for _, _, data in ancillary]
        if part and not self._forks and writers != [self._child.pid]:
            raise self._lost("another process answered in its place", wrong=True)
        return part

    def _gone(self) -> WorkerLost:
        """The worker has ended: how, and what that means."""
        assert self._child is not None
        end = self._child.ended(patience_s=CLOSING_S)
        if end is None:
            return self._lost("the worker closed its pipe")
        if self._doing and -end.status in FORBIDDEN:
            return self._lost(self._doing, wrong=True)
        return self._lost(str(end))

    def _lost(self, reason: str, *, timed_out: bool = False, wrong: bool = False) -> WorkerLost:
        assert self._child is not None
        self._child.end()  # first, so that nothing writes any more
        output = self._child.last_words()
        self.close()
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
