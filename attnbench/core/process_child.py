"""The other end of :mod:`attnbench.core.process`: what a process was started for, and how it tells.

Whoever started it holds its standard input open; when that closes, whoever it was is gone, and the
process ends with all that it started.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

Tell = Callable[[Mapping[str, Any]], None]
DIE_WITH_PARENT = 1
"""prctl's PR_SET_PDEATHSIG."""


def asked() -> tuple[dict[str, Any], Tell] | None:
    """The question, and what to tell each answer to; None where whoever asked is gone already."""
    line = b""
    while not line.endswith(b"\n"):
        if not (part := os.read(0, 1 << 16)):
            return None
        line += part
    Thread(target=_end_with_parent, daemon=True).start()
    return json.loads(line), teller()


def teller(*, allow_nan: bool = True) -> Tell:
    """Writes a line of JSON for each answer, at once."""
    pipe = os.fdopen(int(sys.argv[1]), "w")

    def tell(what: Mapping[str, Any]) -> None:
        pipe.write(json.dumps(what, allow_nan=allow_nan) + "\n")
        pipe.flush()

    return tell


def die_with_parent() -> None:
    """For a process that must not have a thread, since it forks."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)
