"""Inside a program that is captured: from the moment that it has torch, its calls are recorded.

Each process writes a file of its own into the capture's folder: once a second where anything was
called since, and at its end. Who is killed leaves the one before. A process that is forked off
begins anew, and so writes what it did itself. ``PID.python`` and ``PID.torch`` say how far a
process came. Whatever goes wrong here is written there too, and never met by the program.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.models.capture.imports import After

if TYPE_CHECKING:
    from attnbench.models.capture.recorder import Recorder

FOLDER, MASKS = "ATTNBENCH_CAPTURE", "ATTNBENCH_CAPTURE_MASKS"
SAMPLES = "ATTNBENCH_CAPTURE_SAMPLES"
"""In the environment: where to write, the folder of masks, that of samples where there is one."""
EVERY_S = 1.0


def begin(why_not: Callable[[], str | None]) -> None:
    """Wait for torch; ``why_not`` is asked then, and its answer left where there is one."""
    folder = Path(os.environ[FOLDER])
    mark(folder, "python")

    def failed(error: Exception) -> None:
        mark(folder, "amiss", f"{type(error).__name__}: {error}")

    def imported() -> None:
        mark(folder, "torch")
        if (why := why_not()) is not None:
            mark(folder, "amiss", why)
        else:
            _with_torch(folder)

    After({"torch": imported}, failed).begin()


def mark(folder: Path, kind: str, said: str = "") -> None:
    """Leave word of this process."""
    with suppress(OSError):  # the capture may be over, and its folder gone
        (folder / f"{os.getpid()}.{kind}").write_text(said)


def _with_torch(folder: Path) -> None:
    from attnbench.models.capture.recorder import Recorder
    from attnbench.models.capture.session import Session

    samples = os.environ.get(SAMPLES)
    recorder = Recorder(Path(os.environ[MASKS]), Path(samples) if samples else None)
    Session(recorder).begin(running=False)
    writer = Writer(folder, recorder)
    atexit.register(writer.end)
    os.register_at_fork(after_in_child=writer.forked)
    _at_the_end_of_processes(writer)


def _at_the_end_of_processes(writer: Writer) -> None:
    """``multiprocessing`` leaves its forked processes without what is registered for exits."""
    from multiprocessing import util

    def ending(_: Any) -> None:
        util.Finalize(None, writer.end, exitpriority=-100)

    util.register_after_fork(writer, ending)


class Writer:
    """Writes what a process has recorded so far, now and again."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._folder, self._recorder = folder, recorder
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._recorder.on_first = self._start

    def _start(self) -> None:
        threading.Thread(target=self._now_and_again, name="attnbench capture", daemon=True).start()

    def _now_and_again(self) -> None:
        before = -1.0
        while not self._done.wait(EVERY_S):
            now = self._recorder.tally.window()
            if now != before:
                before = now
                self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        """What there is by now."""
        with self._lock:
            if self._done.is_set() and not complete:
                return
            try:
                calls = self._recorder.calls(complete=complete)
                calls.header["command"] = list(sys.orig_argv)
                calls.write(self._folder / f"{os.getpid()}.json")
            except Exception as error:
                mark(self._folder, "amiss", f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """The process ends."""
        self._done.set()
        if self._recorder.on_first is None:  # there was a first call
            self.write(complete=True)

    def forked(self) -> None:
        """In a process that was forked off: nothing has been called yet."""
        self._recorder.restart()
        self._begin()
