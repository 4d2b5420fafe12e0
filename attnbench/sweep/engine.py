"""The local engine: one worker process that measures many cells, replaced when it dies.

The parent never loads torch or a kernel. What is measured shares the worker's process, so it can
write where the worker does. Three things tell an answer from a forged one: the kernel says which
process wrote it; it comes once, since after each answer the parent sends a word that nobody could
know and has to get it back at once; and whoever answered must still be there. A variant that takes
the whole worker over is beyond this.
"""

from __future__ import annotations

import json
import secrets
import signal
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, Self

from attnbench.core.process import Child, ProcessEnd, ended, free_memory
from attnbench.core.settings import Settings
from impls.asked import CantBeDone

POLL_S = 1.0
START_LIMIT_S = 300.0
"""For a worker to load torch, on whatever disk; also for what is no cell."""
SETTLE_LIMIT_S = 30.0
"""For a worker that has answered to say so."""
CLOSING_S = 15.0
"""For a worker that has closed its pipe to end, which takes seconds where CUDA is loaded."""
LONGEST_ANSWER, LONGEST_RECORD = 1 << 26, 1 << 22
"""Bytes of an answer, and of one about a cell: it becomes twenty times as many here."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of whoever wrote, as the kernel tells them."""
FORBIDDEN = (signal.SIGSEGV, signal.SIGBUS)
"""What a process dies of that touches memory it may not."""


class WorkerLost(CantBeDone):
    """The worker died or had to be killed; ``said`` is the end of its error stream.

    ``wrong``: how it ended shows that the variant did what none may.
    """

    def __init__(self, reason: str, said: str, *, timed_out: bool, wrong: bool = False) -> None:
        last = said.strip().splitlines()[-1:]
        super().__init__(": ".join([reason, *last]))
        self.reason, self.said, self.timed_out, self.wrong = reason, said, timed_out, wrong


class LocalEngine:
    """Asks a worker; starts one when there is none."""

    def __init__(
        self,
        settings: Settings,
        path: Path | None = None,
        *,
        limited: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``path``: a folder in which the worker looks first for what it imports. ``limited``: to
        the memory that is free when it starts; a GPU's driver reserves more than there is.
        ``variables``: of its environment, besides those that the settings ask for.
        """
        self.settings, self._path, self._limited = settings, path, limited
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
    def worker(self) -> int | None:
        """The worker's process number, while there is one."""
        return self._child.pid if self._child else None

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`WorkerLost` if there is none within the limit."""
        if self._child is None:
            self._child = self._start()
            self._exchange({"apply": asdict(self.settings)}, START_LIMIT_S)
        return self._exchange(question, limit_s)

    def close(self) -> None:
        """End the worker and all that it started, whatever they are doing."""
        if self._child is not None:
            self._child.end()
            self._child.close()
        self._child, self._buffer = None, b""

    def _start(self) -> Child:
        memory = free_memory() if self._limited else None
        return Child(self.settings, self._path, memory, self._variables)

    def _exchange(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._child is not None
        self._child.forget()
        self._asked += 1
        self._doing = ""
        self._longest = LONGEST_RECORD if "job" in question else LONGEST_ANSWER
        self._send(question)
        answer = self._answer(monotonic() + limit_s, limit_s)
        self._settle()
        if answer.pop("spoiled", False):
            self.close()  # the next question goes to a worker that nobody has changed
        return answer

    def _send(self, question: Mapping[str, Any]) -> None:
        assert self._child is not None
        try:
            self._child.questions.write(json.dumps({**question, "asked": self._asked}) + "\n")
            self._child.questions.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _answer(self, deadline: float, limit_s: float) -> dict[str, Any]:
        """The next answer to the question asked last; what the worker is doing is remembered."""
        while True:
            line = self._read_line(deadline)
            if line == b"":
                raise self._ended()
            if line is not None:
                answer = self._parsed(line)
                # an earlier number answers what somebody else has answered already
                current = answer.pop("asked") == self._asked
                if current and "doing" not in answer:
                    return answer
                self._doing = str(answer["doing"]) if current else self._doing
            if line is None or monotonic() >= deadline:  # though it may never stop to tell
                raise self._lost(f"it was still running after {limit_s:.0f} s", timed_out=True)

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
        assert self._child is not None
        parts, end = [self._buffer], self._buffer.find(b"\n")
        said = len(self._buffer)
        while end < 0:
            gone = self._child.ended() is not None  # though a child of it may hold the pipe
            patience = min(POLL_S, max(0.0, deadline - monotonic()))
            if self._child.listen(0.0 if gone else patience):
                part = self._received()
                if not part:
                    return b""
                said += len(part)
                if said > self._longest:
                    raise self._lost("the worker's answer does not end", timed_out=False)
                end = part.find(b"\n")
                end += (said - len(part)) if end >= 0 else 0
                parts.append(part)
            elif gone:
                return b""
            if end < 0 and monotonic() >= deadline:
                return None
        whole = b"".join(parts)
        line, self._buffer = whole[:end], whole[end + 1 :]
        return line or b"null"  # nothing was said, but said it was

    def _received(self) -> bytes:
        """What came, so long as the worker itself wrote it."""
        assert self._child is not None
        try:
            room = socket.CMSG_SPACE(CREDENTIALS.size)
            part, told, *_ = self._child.answers.recvmsg(1 << 20, room)
        except ConnectionResetError:  # it died with a question unread
            return b""
        writers = [CREDENTIALS.unpack(data[: CREDENTIALS.size])[0] for _, _, data in told]
        if part and writers != [self._child.pid]:
            raise self._lost("another process answered in its place", timed_out=False, wrong=True)
        return part

    def _ended(self) -> WorkerLost:
        """The worker is gone: how, and what that means."""
        assert self._child is not None
        how = self._child.ended(patience_s=CLOSING_S)
        if how is None:
            return self._lost("the worker closed its pipe", timed_out=False)
        if self._doing and -how.status in FORBIDDEN:
            return self._lost(self._doing, timed_out=False, wrong=True)
        return self._lost(_how(how), timed_out=False)

    def _lost(self, reason: str, *, timed_out: bool, wrong: bool = False) -> WorkerLost:
        assert self._child is not None
        self._child.end()  # first: then nobody speaks any more
        said = self._child.last_words()
        self.close()
        return WorkerLost(reason, said, timed_out=timed_out, wrong=wrong)


def _how(how: ProcessEnd) -> str:
    if how.processes:
        return f"it had started more than {how.processes} processes, and was ended"
    return f"the worker {ended(how.status)}"
