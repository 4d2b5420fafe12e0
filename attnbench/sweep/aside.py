"""A process aside, as whoever started it holds it: asked, heard line by line, ended.

It gets the environment that has to stand before torch is loaded, and a session of its own, so that
Ctrl-C reaches the parent alone. What it answers comes through a pipe that nothing else is printed
to; what it says besides is kept for its last words. With it ends whatever it started. The other end
is :mod:`attnbench.sweep.told_aside`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Self

from attnbench.exits import ended
from attnbench.sweep.child import variables_of
from impls.asked import CantBeDone

LAST_WORDS = 400
"""Characters of the last line that a dead process wrote."""
LOOK_S, END_S = 1.0, 10.0
"""How often a process that says nothing is looked at, and how long its end may take to be seen."""


class Lost(CantBeDone):
    """It can't be heard any more; why, in a sentence."""


class Aside:
    """``python -m module``, with the number of the pipe for its answers as the only argument."""

    def __init__(self, module: str, threads: int) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115, closed with the rest
        self._read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(write)], stdin=subprocess.PIPE,
            stdout=self._words, stderr=self._words, pass_fds=(write,), start_new_session=True,
            env=variables_of(threads),
        )  # fmt: skip
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
            patience = 0.0 if gone else max(0.0, min(LOOK_S, left))
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
                return self.how(self._process.wait(END_S))
        return None

    def how(self, status: int) -> str:
        """How a process ended, with the last line that was written since it was asked."""
        size = os.fstat(self._words.fileno()).st_size
        words = os.pread(self._words.fileno(), size - self._said_before, self._said_before)
        lines = words.decode(errors="replace").strip().splitlines()
        last = "".join(c if c.isprintable() else "?" for c in lines[-1]) if lines else ""
        return ": ".join(filter(None, [f"its process {ended(status)}", last.strip()[:LAST_WORDS]]))

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
