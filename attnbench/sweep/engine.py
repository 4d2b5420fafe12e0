"""The local engine: one worker process that measures many cells, replaced when it dies.

The parent never loads torch or a kernel. It starts the worker with the environment that has to
stand before torch is loaded, in a session of its own, so that Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
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

LAST_WORDS = 2000
"""Bytes of a dead worker's error stream that go into the record."""


PROFILER_CHATTER = "USDT:"
"""How torch's profiler begins the lines that it writes to the error stream, asked or not."""
POLL_S = 1.0
START_LIMIT_S = 300.0
"""For a worker to load torch, on whatever disk; also for what is no cell."""


class WorkerLost(Exception):
    """The worker died or had to be killed; ``said`` is the end of its error stream."""

    def __init__(self, reason: str, said: str, *, timed_out: bool) -> None:
        super().__init__(reason)
        self.reason, self.said, self.timed_out = reason, said, timed_out


class LocalEngine:
    """Asks a worker; starts one when there is none."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._to: IO[str] | None = None
        self._from = -1
        self._buffer = b""
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
        os.close(self._from)
        if self._errors is not None:
            self._errors.close()
        self._process, self._to, self._buffer = None, None, b""

    def _start(self) -> None:
        ask_read, ask_write = os.pipe()
        answer_read, answer_write = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        here = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
        variables = {**os.environ, **environment(self.settings.threads), "PYTHONPATH": path}
        command = [
            sys.executable,
            "-P",
            "-m",
            "attnbench.sweep.worker",
            str(ask_read),
            str(answer_write),
        ]
        self._process = subprocess.Popen(
            command, env=variables, pass_fds=(ask_read, answer_write), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        os.close(ask_read)
        os.close(answer_write)
        self._to, self._from = os.fdopen(ask_write, "w"), answer_read

    def _exchange(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._to is not None and self._errors is not None
        self._errors_from = self._errors.seek(0, os.SEEK_END)
        self._asked += 1
        try:
            self._to.write(json.dumps({**question, "asked": self._asked}) + "\n")
            self._to.flush()
        except BrokenPipeError:
            raise self._lost(self._how_it_ended(), timed_out=False) from None
        deadline = monotonic() + limit_s
        while True:
            line = self._read_line(deadline)
            if line is None:
                raise self._lost(f"it was still running after {limit_s:.0f} s", timed_out=True)
            if not line:
                raise self._lost(self._how_it_ended(), timed_out=False)
            answer = self._parsed(line)
            if answer.pop("asked") == self._asked:
                break  # an earlier number answers what somebody else has answered already
        if answer.pop("spoiled", False):
            self.close()  # the next question goes to a worker that nobody has changed
        return answer

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
        assert self._process is not None
        while b"\n" not in self._buffer:
            gone = self._process.poll() is not None  # though a child of it may hold the pipe
            patience = min(POLL_S, max(0.0, deadline - monotonic()))
            ready, _, _ = select.select([self._from], [], [], 0.0 if gone else patience)
            if ready:
                part = os.read(self._from, 1 << 20)
                if not part:
                    return b""
                self._buffer += part
            elif gone:
                return b""
            elif monotonic() >= deadline:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line or b"null"  # nothing was said, but said it was

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "the worker closed its pipe"
        if status < 0:
            return f"the worker died of {signal.Signals(-status).name}"
        return f"the worker ended with status {status}"

    def _lost(self, reason: str, *, timed_out: bool) -> WorkerLost:
        said = ""
        if self._errors is not None:
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(self._errors_from, size - LAST_WORDS))
            lines = self._errors.read().decode(errors="replace").splitlines()
            said = "\n".join(line for line in lines if not line.startswith(PROFILER_CHATTER))
        self.close()
        return WorkerLost(reason, said, timed_out=timed_out)
