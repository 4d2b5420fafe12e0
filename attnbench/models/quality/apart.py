"""Questions put to processes of their own, which answer in stages.

One process loads what all of them need and forks for each question, since loading takes longer than
most answers. It gets the environment that has to stand before torch is loaded and a session of its
own, so that Ctrl-C reaches the parent alone; before it forks it computes nothing, so that no thread
is lost on the way. Each stage counts once it is said: what dies or hangs later costs the stages
that were still to come.
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

from attnbench.measure.settings import Settings
from attnbench.sweep.child import free_memory, variables_of
from impls.asked import CantBeDone

LAST_WORDS = 400
"""Characters of the last line that a dead process wrote."""
START_S, END_S = 120.0, 10.0
"""For the process to load what it needs, and to see the end of one that was killed."""
Stage = dict[str, Any]


class Lost(CantBeDone):
    """The process died, or its time was over; how, in a sentence."""


class Apart:
    """Whoever is asked: ``python -m module``, which calls :func:`answering.main`."""

    def __init__(self, module: str, settings: Settings, *, limited: bool = True) -> None:
        """``limited``: to the memory that is free; a GPU's driver reserves more than there is."""
        self._module, self._settings, self._limited = module, settings, limited
        self._server: subprocess.Popen[bytes] | None = None
        self._read, self._kept = -1, b""
        self._words = tempfile.TemporaryFile()  # noqa: SIM115, closed with the rest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._words.close()

    def stages(self, question: Mapping[str, Any], limit_s: float) -> Iterator[Stage]:
        """What is answered, stage by stage; raises :class:`Lost` where it ends badly."""
        until = monotonic() + limit_s + START_S * (self._server is None)
        server = self._server or self._start()
        said_before = os.fstat(self._words.fileno()).st_size
        memory = free_memory() if self._limited else 0
        asked = {"settings": vars(self._settings), "memory": memory, "question": dict(question)}
        child, ended = 0, False
        try:
            with suppress(BrokenPipeError):  # it died, and the end of its answers says so
                self._say(server, asked)
            for stage in self._stages(until):
                if "child" in stage:
                    child = stage["child"]
                elif "ended" in stage:
                    ended = True
                    if stage["ended"]:
                        raise Lost(self._how(stage["ended"], said_before))
                    return
                else:
                    yield stage
            with suppress(subprocess.TimeoutExpired):
                if monotonic() < until:  # its answers have an end
                    raise Lost(self._how(server.wait(END_S), said_before))
            raise Lost(f"it was still running after {limit_s:.0f} s")
        finally:
            if child:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child, signal.SIGKILL)  # and whatever it started
            if not ended and not self._sees_the_end():
                self.close()

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._server is None:
            return
        assert self._server.stdin is not None
        with suppress(OSError):
            self._server.stdin.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        os.close(self._read)
        self._server, self._read, self._kept = None, -1, b""

    def _start(self) -> subprocess.Popen[bytes]:
        self._read, write = os.pipe()
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module, str(write)], stdin=subprocess.PIPE,
            stdout=self._words, stderr=self._words, pass_fds=(write,), start_new_session=True,
            env=variables_of(self._settings.threads),
        )  # fmt: skip
        os.close(write)
        return self._server

    def _say(self, server: subprocess.Popen[bytes], asked: Mapping[str, Any]) -> None:
        assert server.stdin is not None
        server.stdin.write(json.dumps(asked).encode() + b"\n")
        server.stdin.flush()

    def _stages(self, until: float) -> Iterator[Stage]:
        """Whole lines as they come, until there are no more or the time is over."""
        while True:
            while b"\n" in self._kept:
                line, _, self._kept = self._kept.partition(b"\n")
                yield json.loads(line)
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - monotonic()))
            if not ready or not (part := os.read(self._read, 1 << 20)):
                return
            self._kept += part

    def _sees_the_end(self) -> bool:
        """Whether the process tells the end of a child that was killed, and can be asked again."""
        if self._server is None or self._server.poll() is not None:
            return False
        return any("ended" in stage for stage in self._stages(monotonic() + END_S))

    def _how(self, status: int, said_before: int) -> str:
        """How it ended, with the last line that was written since."""
        how = f"its process ended with status {status}"
        if status < 0:
            with suppress(ValueError):
                how = f"its process died of {signal.Signals(-status).name}"
        size = os.fstat(self._words.fileno()).st_size
        words = os.pread(self._words.fileno(), size - said_before, said_before)
        lines = words.decode(errors="replace").strip().splitlines()
        last = "".join(c for c in lines[-1] if c.isprintable())[:LAST_WORDS] if lines else ""
        return ": ".join(filter(None, [how, last]))
