"""Other processes, each behind a keeper: workers that are asked, programs that run to their end.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Self

from attnbench.core import process_child
from attnbench.core.disk import CHECKOUT
from attnbench.core.format import roughly
from attnbench.core.machine import kernel_bytes
from attnbench.core.settings import environment
from impls.errors import CantBeDone
from impls.loading import import_roots
from impls.outside import python_path

POLL_S = 1.0
START_LIMIT_S = 300.0
"""For a keeper to start its process, on whatever disk; for a worker to load torch."""
SETTLE_LIMIT_S = 30.0
"""For a worker that has answered to confirm it."""
CLOSING_S = 15.0
"""For a worker that has closed its pipe to end, which takes seconds where CUDA is loaded."""
END_S = 15.0
"""For a keeper to end its process and everything that it started."""
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
"""Bytes of output that are held in case the process dies."""
PROFILER_CHATTER = "USDT:"
"""How torch's profiler begins lines on the error stream."""
GROUP = Path("/sys/fs/cgroup")
"""Where a container's memory limit is."""
SHARE = 0.9
"""The share of the memory free at its start that a worker may take."""
LEAVE_S = 5.0
"""For a program that is interrupted to end by itself."""


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


class Child:
    """A process and its keeper, from their start to their end; the end of its output is kept."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        folder: Path | None = None,
        stdin: Any = subprocess.DEVNULL,
        passed: Sequence[int] = (),
        watch: Callable[[str], object] | None = None,
    ) -> None:
        """``passed``: descriptors that are the command's from now on; ``watch`` gets each line."""
        life, self._life = os.pipe()
        self._report, report = os.pipe()
        self._output, output = os.pipe()
        numbers = [str(life), str(report), " ".join(map(str, passed))]
        self.keeper = process_child.start(
            [sys.executable, "-IS", process_child.__file__, *numbers, *command],
            (life, report, *passed),
            env=variables,
            cwd=folder,
            stdin=stdin,
            stdout=output,
            stderr=output,
        )
        for number in (life, report, output, *passed):
            os.close(number)
        os.set_blocking(self._output, False)
        self._watch, self._begun = watch, b""
        self._reported, self._kept, self._writes = "", b"", True
        self.pid = int(self._line(0, START_LIMIT_S)) or self.keeper.pid

    def readable(self, source: int, patience_s: float) -> bool:
        """Whether there is something to read, after a while; output is taken in meanwhile."""
        until = monotonic() + patience_s
        while True:
            sources = [source, *[self._output] * self._writes]
            left_s = min(POLL_S, max(0.0, until - monotonic()))
            ready, _, _ = select.select(sources, [], [], left_s)
            if self._output in ready:
                self._take_output()
            if source in ready or monotonic() >= until:  # even if the output never stops
                return source in ready

    def ended(self, patience_s: float = 0.0) -> tuple[int, str] | None:
        """The exit status and a sentence on the end, which is waited for so long."""
        line = self._line(1, patience_s)
        if not line:
            try:  # the pipes close a moment before it is known
                self.keeper.wait(min(patience_s, POLL_S))
            except subprocess.TimeoutExpired:
                return None
            # the keeper was killed and the process with it
            line = self._line(1, 0.0) or str(-signal.SIGKILL)
        number, _, words = line.partition(" ")
        status = int(number)
        if status >= 0:
            how = f"ended with status {status}"
        else:
            how = f"died of signal {-status}"
            with suppress(ValueError):
                how = f"died of {signal.Signals(-status).name}"
        return status, words or f"the worker {how}"

    def forget_output(self) -> None:
        """Drop what was written so far."""
        self._drain()
        self._kept = b""

    def last_words(self) -> str:
        """The end of what it wrote to both its streams."""
        self._drain()
        lines = self._kept[-LAST_WORDS:].decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith(PROFILER_CHATTER))

    def end(self) -> None:
        """End the process and all that it started, whatever they are doing."""
        os.close(self._life)
        try:
            self.keeper.wait(END_S)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
        if self.keeper.returncode != 0:  # it was killed, and its process with it
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._drain()
        self._writes = False
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
        if self._watch is not None:
            *lines, self._begun = (self._begun + part).split(b"\n")
            for line in lines:
                with suppress(OSError):  # reading goes on, or the program waits for ever
                    self._watch(line.decode(errors="replace") + "\n")
        return self._writes

    def _line(self, number: int, patience_s: float) -> str:
        """A line of the keeper's report: the process's number, then how it ended; or nothing."""
        until = monotonic() + patience_s
        while len(lines := self._reported.split("\n")) < number + 2:
            ready = self.readable(self._report, until - monotonic())
            if not ready or not (part := os.read(self._report, 4096)):
                return "" if number else "0"
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
    ) -> None:
        """``path``: a folder that comes first in the module's import path; ``limited``: to the
        memory that is free when it starts, for a GPU's driver reserves more than there is.
        """
        self._module, self._threads, self._path = module, threads, path
        self._limited, self._variables = limited, variables or {}
        self._child: Child | None = None
        self._stopped = False
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
        else:
            self._child.forget_output()
        settled = False
        try:
            self._asked += 1
            self._doing = ""
            self._longest = LONGEST_RECORD if "job" in question else LONGEST_ANSWER
            self._send(question)
            until = monotonic() + limit_s
            while "stage" in (message := self._message(until, limit_s)):
                yield message["stage"]
            word = secrets.token_hex(16)
            self._send({"settle": word})
            until = monotonic() + SETTLE_LIMIT_S
            if self._message(until, SETTLE_LIMIT_S) != {"settled": word}:
                raise self._lost("it answered twice: one of the answers is forged", wrong=True)
            settled = True
        finally:
            if not settled:
                self.close()
        if message.pop("spoiled", False):
            self.close()  # the next question goes to a process that nothing has changed
        if message:
            yield message

    def close(self) -> None:
        """End the process and all that it started, whatever they are doing."""
        if self._child is not None:
            with suppress(OSError):
                self._questions.close()
            self._child.end()
            self._answers.close()
        self._child = None
        self._buffer.clear()

    def stop(self) -> None:
        """From another thread: lose the worker, whatever it is doing, and start no other one."""
        self._stopped = True
        if child := self._child:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child.pid, signal.SIGKILL)

    def _start(self) -> None:
        questions, ask = os.pipe()
        self._answers, answer = socket.socketpair()
        self._answers.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._questions, passed = os.fdopen(ask, "w"), (questions, answer.detach())
        command = [sys.executable, "-P", "-m", self._module, *map(str, passed)]
        command.append(str(free_memory() if self._limited else 0))
        variables = {**variables_of(self._threads, self._path), **self._variables}
        self._child = Child(command, variables, passed=passed)
        if self._stopped:  # looked at last, so that what is started meanwhile ends too
            raise self._lost("the worker was stopped")

    def _send(self, question: Mapping[str, Any]) -> None:
        try:
            self._questions.write(json.dumps({**question, "asked": self._asked}) + "\n")
            self._questions.flush()
        except BrokenPipeError:
            raise self._lost_at_its_end() from None

    def _message(self, until: float, limit_s: float) -> dict[str, Any]:
        """The next message about the latest question; what the worker is doing is kept."""
        while line := self._read_line(until):
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
        raise self._lost(f"it was still running after {roughly(limit_s)}", timed_out=True)

    def _read_line(self, until: float) -> bytes:
        """A line with its end; empty past the deadline. Raises WorkerLost where none can come."""
        child, searched = self._child, 0
        assert child is not None
        while (end := self._buffer.find(b"\n", searched)) < 0:
            if searched and monotonic() >= until:
                return b""
            searched = len(self._buffer)
            has_ended = child.ended() is not None  # though a child of it may hold the pipe
            patience_s = 0.0 if has_ended else min(POLL_S, max(0.0, until - monotonic()))
            if child.readable(self._answers.fileno(), patience_s):
                part = self._receive(child.pid)
                if not part:
                    raise self._lost_at_its_end()
                self._buffer += part
            elif has_ended:
                raise self._lost_at_its_end()
            elif monotonic() >= until:
                return b""
            if len(self._buffer) > self._longest:
                raise self._lost("the worker's answer does not end")
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line

    def _receive(self, pid: int) -> bytes:
        """What came, as long as the worker itself wrote it."""
        try:
            room = socket.CMSG_SPACE(CREDENTIALS.size)
            part, ancillary, *_ = self._answers.recvmsg(1 << 20, room)
        except ConnectionResetError:  # it died with a question unread
            return b""
        writers = [CREDENTIALS.unpack(data[: CREDENTIALS.size])[0] for _, _, data in ancillary]
        if part and writers != [pid]:
            raise self._lost("another process answered in its place", wrong=True)
        return part

    def _lost_at_its_end(self) -> WorkerLost:
        """The worker has ended: how, and what that means."""
        end = self._child.ended(CLOSING_S) if self._child else None
        if end is None:
            return self._lost("the worker closed its pipe")
        if self._doing and -end[0] in FORBIDDEN:
            return self._lost(self._doing, wrong=True)
        return self._lost(end[1])

    def _lost(self, reason: str, *, timed_out: bool = False, wrong: bool = False) -> WorkerLost:
        child = self._child
        self.close()  # first, so that nothing writes any more
        output = child.last_words() if child else ""
        return WorkerLost(reason, output, timed_out=timed_out, wrong=wrong)


class Program(Child):
    """Another program, which ends where its block does. Both its streams are one."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        variables: Mapping[str, str] = os.environ,
        given: str = "",
        watch: Callable[[str], object] | None = None,
    ) -> None:
        """``given`` is its input; ``watch`` is called with each line while it is waited for."""
        variables = {**variables, "PYTHONUNBUFFERED": "1"}  # so that both streams keep their order
        with tempfile.TemporaryFile() as stdin:
            stdin.write(given.encode())
            stdin.seek(0)
            super().__init__(command, variables, folder=folder, stdin=stdin, watch=watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Interrupt it, if it runs, and kill what is left."""
        if kind is not None:
            self._watch = None  # what it says of its end, such as a traceback, is of no use
        try:
            if self.ended() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGINT)
                    self.ended(LEAVE_S)
        finally:
            self.end()

    def wait(self, limit_s: float = inf) -> int | None:
        """Its exit status; None where it still runs after the limit."""
        end = self.ended(limit_s)
        self._drain()
        return end and end[0]

    def last_line(self) -> str:
        """The last line that it said."""
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


def free_memory() -> int:
    """Bytes that a worker may take: most of what is free now, here and in its control group, which
    gets back the pages of files that nobody reads.
    """
    free = kernel_bytes("MemAvailable", "/proc/meminfo")
    with suppress(OSError, ValueError):  # no limit is the word "max"
        limit = int((GROUP / "memory.max").read_text())
        counts = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        in_use = int((GROUP / "memory.current").read_text()) - int(counts.get("inactive_file", 0))
        free = min(free, limit - in_use)
    return max(1, int(SHARE * free))  # 0 is no limit


def variables_of(threads: int, path: Path | None = None) -> dict[str, str]:
    """The environment of a child process: its threads, and where it looks first: in this checkout,
    after what a folder holds at its top and in its ``src``.
    """
    folders = [*(import_roots(path) if path else ()), CHECKOUT]
    return {**os.environ, **environment(threads), "PYTHONPATH": python_path(*folders)}
