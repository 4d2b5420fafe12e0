"""A question put to a process of its own, which answers in stages.

The process gets the environment that has to stand before torch is loaded, no more memory than is
free, and a session of its own, so that Ctrl-C reaches the parent alone. Each stage counts once it
is said: what dies or hangs later costs the stages that were still to come.
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
from pathlib import Path
from time import monotonic
from typing import IO, Any

from attnbench.measure.settings import Settings, environment
from attnbench.sweep.child import free_memory
from impls.asked import CantBeDone

LAST_WORDS = 400
"""Characters of the last line that a dead process wrote."""
Stage = dict[str, Any]


class Lost(CantBeDone):
    """The process died, or its time was over; how, in a sentence."""


def stages(module: str, question: Mapping[str, Any], settings: Settings, *,
           limit_s: float, limited: bool = True) -> Iterator[Stage]:  # fmt: skip
    """What ``python -m module`` answers, stage by stage; raises :class:`Lost` where it ends badly.

    ``limited``: to the memory that is free; a GPU's driver reserves more than there is.
    """
    memory = free_memory() if limited else 0
    asked = {"settings": vars(settings), "memory": memory, "question": dict(question)}
    until = monotonic() + limit_s
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as words:
        given.write(json.dumps(asked).encode())
        given.seek(0)
        read, write = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(write)], stdin=given, stdout=words,
            stderr=words, pass_fds=(write,), start_new_session=True, env=_variables(settings),
        )  # fmt: skip
        os.close(write)
        try:
            for line in _lines(read, until):
                yield json.loads(line)
            if monotonic() >= until:
                raise Lost(f"it was still running after {limit_s:.0f} s")
            status = child.wait(max(0.1, until - monotonic()))
            if status:
                raise Lost(_how(status, words))
        except subprocess.TimeoutExpired:
            raise Lost(f"it was still running after {limit_s:.0f} s") from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # and whatever it started
            child.wait()
            os.close(read)


def _variables(settings: Settings) -> dict[str, str]:
    here = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **environment(settings.threads), "PYTHONPATH": path}


def _lines(read: int, until: float) -> Iterator[bytes]:
    """Lines as they come, until there are no more or the time is over."""
    kept = b""
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, until - monotonic()))
        if not ready or not (part := os.read(read, 1 << 20)):
            return
        *whole, kept = (kept + part).split(b"\n")
        yield from whole


def _how(status: int, words: IO[bytes]) -> str:
    """How it ended, with the last line that it wrote."""
    how = f"its process ended with status {status}"
    if status < 0:
        with suppress(ValueError):
            how = f"its process died of {signal.Signals(-status).name}"
    words.seek(0)
    said = words.read().decode(errors="replace").strip().splitlines()
    last = "".join(c for c in said[-1] if c.isprintable())[:LAST_WORDS] if said else ""
    return ": ".join(filter(None, [how, last]))
