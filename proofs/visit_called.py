"""A step's command as a process: heard, given its time, and ended with all that it started.

A group of its own, so that Ctrl-C on a terminal reaches the visit alone, which passes it on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
KEEP_EVERY_S = 60.0
"""A long step's results are written down so often while it goes on."""
GRACE_S = 8.0
"""After Ctrl-C a step may still end its cell; then it is killed."""

Ended = tuple[int | None, str]
"""The exit status, None of what was cut off, and all that was said."""


class Stopped(KeyboardInterrupt):
    """Somebody ended the visit; ``said`` is what its step had said until then."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self.said = said


def called(command: Sequence[str], limit_s: float, keep: Callable[[], None]) -> Ended:
    """Run it for so long at most; now and then, ``keep``. Raises :class:`Stopped` on Ctrl-C."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}
    with tempfile.TemporaryFile() as said:
        with _ctrl_c_heard():
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        status, stopped = None, False
        try:
            status = _within(process, limit_s, keep)
        except KeyboardInterrupt:
            stopped = True
        finally:
            _end(process)
        said.seek(0)
        words = said.read().decode(errors="replace")
    if stopped:
        raise Stopped(words)
    return status, words


@contextmanager
def _ctrl_c_heard() -> Iterator[None]:
    """By what is started meanwhile; a visit in the background ignores it, and passes that on."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _within(
    process: subprocess.Popen[bytes], limit_s: float, keep: Callable[[], None]
) -> int | None:
    """How it ended by itself; None where the limit came first."""
    end = monotonic() + limit_s
    while (status := _waited(process, min(KEEP_EVERY_S, end - monotonic()))) is None:
        keep()
        if monotonic() >= end:
            break
    return status


def _end(process: subprocess.Popen[bytes]) -> None:
    """It may keep what it has, and is killed then with all of its group."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            _waited(process, GRACE_S)
    finally:  # though Ctrl-C comes a second time
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None
