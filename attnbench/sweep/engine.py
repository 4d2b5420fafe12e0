"""The local engine: one worker process that measures many cells, replaced when it dies.

The parent never loads torch or a kernel. It starts the worker with the environment that has to
stand before torch is loaded, in a session of its own, so that Ctrl-C reaches the parent alone.

What is measured shares the worker's process, so it can write where the worker does. Three things
tell an answer from a forged one: the kernel says which process wrote it; it comes once, since
after each answer the parent sends a word that nobody could know and has to get it back at once;
and whoever answered must still be there. A variant that takes the whole worker over is beyond this.
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import IO, Any, Self

from attnbench.measure.settings import Settings, environment
from impls.asked import CantBeDone

LAST_WORDS = 2000
"""Bytes of a dead worker's error stream that go into the record."""


PROFILER_CHATTER = "USDT:"
"""How torch's profiler begins the lines that it writes to the error stream, asked or not."""
POLL_S = 1.0
START_LIMIT_S = 300.0
"""For a worker to load torch, on whatever disk; also for what is no cell."""
SETTLE_LIMIT_S = 30.0
"""For a worker that has answered to say so."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of whoever wrote, as the kernel tells them."""
FORBIDDEN = (signal.SIGSEGV, signal.SIGBUS)
"""What a process dies of that touches memory it may not."""


class WorkerLost(CantBeDone):
    """The worker died or had to be killed; ``said`` is the end of its error stream.

    ``wrong``: how it ended shows that the variant did what none may.
    """

    def __init__(self, reason: str, said: str, *, timed_out: bool, wrong: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.said, self.timed_out, self.wrong = reason, said, timed_out, wrong


class LocalEngine:
    """Asks a worker; starts one when there is none."""

    def __init__(self, settings: Settings, path: Path | None = None) -> None:
        """``path``: a folder in which the worker looks first for what it imports."""
        self.settings, self._path = settings, path
        self._process: subprocess.Popen[bytes] | None = None
        self._to: IO[str] | None = None
        self._from: socket.socket | None = None
        self._buffer = b""
        self._doing = ""
        self._errors: IO[bytes] | None = None
        self._errors_from = 0
        self._asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`WorkerLost` if there is none within the limit."""
        if self._process is None:
            self._start()
            self._exchange({"apply": asdict(self.settings)}, START_LIMIT_S)
        return self._exchange(question, limit_s)

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        if self._process is None:
            return
        if self._to is not None:
            with suppress(OSError):
                self._to.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._from is not None:
            self._from.close()
        if self._errors is not None:
            self._errors.close()
        self._process, self._to, self._from, self._buffer = None, None, None, b""

    def _start(self) -> None:
        ask_read, ask_write = os.pipe()
        answers, answer_write = socket.socketpair()
        answers.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        here = str(Path(__file__).resolve().parents[2])
        first = str(self._path) if self._path else ""
        path = os.pathsep.join(filter(None, [first, here, os.environ.get("PYTHONPATH", "")]))
        variables = {**os.environ, **environment(self.settings.threads), "PYTHONPATH": path}
        command = [
            sys.executable,
            "-P",
            "-m",
            "attnbench.sweep.worker",
            str(ask_read),
            str(answer_write.fileno()),
        ]
        self._process = subprocess.Popen(
            command, env=variables, pass_fds=(ask_read, answer_write.fileno()),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
            start_new_session=True,
        )  # fmt: skip
        os.close(ask_read)
        answer_write.close()
        self._to, self._from = os.fdopen(ask_write, "w"), answers

    def _exchange(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._errors is not None
        self._errors_from = self._errors.seek(0, os.SEEK_END)
        self._asked += 1
        self._doing = ""
        self._send(question)
        answer = self._answer(monotonic() + limit_s, limit_s)
        self._settle()
        if answer.pop("spoiled", False):
            self.close()  # the next question goes to a worker that nobody has changed
        return answer

    def _send(self, question: Mapping[str, Any]) -> None:
        assert self._to is not None
        try:
            self._to.write(json.dumps({**question, "asked": self._asked}) + "\n")
            self._to.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _answer(self, deadline: float, limit_s: float) -> dict[str, Any]:
        """The next answer to the question asked last; what the worker is doing is remembered."""
        while True:
            line = self._read_line(deadline)
            if line is None:
                raise self._lost(f"it was still running after {limit_s:.0f} s", timed_out=True)
            if not line:
                raise self._ended()
            answer = self._parsed(line)
            if answer.pop("asked") != self._asked:
                continue  # an earlier number answers what somebody else has answered already
            if "doing" not in answer:
                return answer
            self._doing = str(answer["doing"])

    def _settle(self) -> None:
        """Make sure that the answer was the worker's, and the only one."""
        word = secrets.token_hex(16)
        self._send({"settle": word})
        answer = self._answer(monotonic() + SETTLE_LIMIT_S, SETTLE_LIMIT_S)
        if answer != {"settled": word}:
            raise self._lost(
                "it answered twice: one of the answers is forged", timed_out=False, wrong=True
            )

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise self._lost("the worker's answer is no JSON", timed_out=False) from None
        number = answer.get("asked") if isinstance(answer, dict) else None
        if not isinstance(number, int) or number > self._asked:
            raise self._lost("the worker answered another question", timed_out=False)
        return answer

    def _read_line(self, deadline: float) -> bytes | None:
        """A line; empty where none can come any more, None past the deadline."""
        assert self._process is not None and self._from is not None
        while b"\n" not in self._buffer:
            gone = self._process.poll() is not None  # though a child of it may hold the pipe
            patience = min(POLL_S, max(0.0, deadline - monotonic()))
            ready, _, _ = select.select([self._from], [], [], 0.0 if gone else patience)
            if ready:
                part = self._received()
                if not part:
                    return b""
                self._buffer += part
            elif gone:
                return b""
            elif monotonic() >= deadline:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line or b"null"  # nothing was said, but said it was

    def _received(self) -> bytes:
        """What came, so long as the worker itself wrote it."""
        assert self._process is not None and self._from is not None
        try:
            part, told, *_ = self._from.recvmsg(1 << 20, socket.CMSG_SPACE(CREDENTIALS.size))
        except ConnectionResetError:  # it died with a question unread
            return b""
        writers = [CREDENTIALS.unpack(data[: CREDENTIALS.size])[0] for _, _, data in told]
        if part and writers != [self._process.pid]:
            raise self._lost("another process answered in its place", timed_out=False, wrong=True)
        return part

    def _ended(self) -> WorkerLost:
        """The worker is gone: how, and what that means."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return self._lost("the worker closed its pipe", timed_out=False)
        if status >= 0:
            return self._lost(f"the worker ended with status {status}", timed_out=False)
        if self._doing and -status in FORBIDDEN:
            return self._lost(self._doing, timed_out=False, wrong=True)
        return self._lost(f"the worker died of {signal.Signals(-status).name}", timed_out=False)

    def _lost(self, reason: str, *, timed_out: bool, wrong: bool = False) -> WorkerLost:
        said = ""
        if self._errors is not None:
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(self._errors_from, size - LAST_WORDS))
            lines = self._errors.read().decode(errors="replace").splitlines()
            said = "\n".join(line for line in lines if not line.startswith(PROFILER_CHATTER))
        self.close()
        return WorkerLost(reason, said, timed_out=timed_out, wrong=wrong)
