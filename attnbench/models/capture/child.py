"""Inside a program that is captured: once it has imported torch, its calls are recorded.

Each process writes a file of its own into the capture's folder: at its first call, again and again
where anything was called since, at the last once a second, and at its end, also where it leaves by
``os._exit`` or becomes another program by ``os.exec``. A process that is killed leaves the last
one. A forked process begins anew, and so writes what it did itself. ``PID.python`` and
``PID.torch`` show how far a process came. Whatever goes wrong here is written to ``PID.error``,
and never reaches the program.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.models.capture.recorder import Recorder


class AfterImport(MetaPathFinder):
    """Runs an action once, when the module of its name has been imported."""

    def __init__(
        self,
        actions: dict[str, Callable[[], None]],
        failed: Callable[[Exception], None],
    ) -> None:
        """``failed`` gets what goes wrong in an action, which the importing code never sees."""
        self._actions, self._failed = actions, failed

    def begin(self) -> None:
        """Act for modules that are there already; wait for the others."""
        for name in [n for n in sys.modules if n in self._actions]:
            self._imported(name)
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _imported(self, name: str) -> None:
        action = self._actions.pop(name, None)
        try:
            if action is not None:
                action()
        except Exception as error:
            self._failed(error)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that is waited for, its loader watched; a spec may go unused."""
        if name not in self._actions:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        own = next((spec for x in finders if (spec := x.find_spec(name, path, target))), None)
        with suppress(AttributeError, TypeError):  # a loader that can't be watched loads
            loader: Any = own and own.loader
            load = loader.exec_module

            def watched(module: ModuleType) -> None:
                load(module)
                self._imported(name)

            loader.exec_module = watched
        return own


FOLDER, MASKS = "ATTNBENCH_CAPTURE", "ATTNBENCH_CAPTURE_MASKS"
ADVICE = "ATTNBENCH_CAPTURE_ADVICE"
"""In the environment: where to write, the folder of masks, and a file of advice if there is one."""
SOON_S, EVERY_S = 0.05, 1.0
"""Seconds after the first call until it is written again, and between later writes."""


def begin(why_not: Callable[[], str | None]) -> None:
    """Wait for torch, then record; or leave a note where ``why_not`` returns a reason."""
    folder = Path(os.environ[FOLDER])
    mark(folder, "python")

    def imported() -> None:
        mark(folder, "torch")
        if (why := why_not()) is not None:
            mark(folder, "error", why)
            return
        from attnbench.models.capture.capture import Session
        from attnbench.models.capture.recorder import Recorder

        recorder = Recorder(Path(os.environ[MASKS]))
        if (file := os.environ.get(ADVICE)) is not None:
            from attnbench.models.capture.advice import Advice

            recorder.advice = Advice.read(Path(file))
        Session(recorder).begin(running=False)
        writer = Writer(folder, recorder)
        atexit.register(writer.end)
        os.register_at_fork(after_in_child=writer.restart)
        for name in ("_exit", "execv", "execve"):  # by which a process ends without exit functions
            setattr(os, name, writer.before(getattr(os, name)))

    AfterImport({"torch": imported}, lambda error: note_failure(folder, error)).begin()


def mark(folder: Path, kind: str, text: str = "") -> None:
    """Write a note of this process."""
    with suppress(OSError):  # the capture may be over, and its folder gone
        (folder / f"{os.getpid()}.{kind}").write_text(text)


def note_failure(folder: Path, error: Exception) -> None:
    """Note that something went wrong."""
    mark(folder, "error", f"{type(error).__name__}: {error}")


class Writer:
    """Writes what a process has recorded so far, again and again."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._folder, self._recorder = folder, recorder
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may leave by os._exit amid a write
        self._done = threading.Event()
        self._file = self._folder / f"{os.getpid()}-{time.time_ns()}.json"
        self._recorder.on_first = self._start

    def _start(self) -> None:
        self.write(complete=False)
        threading.Thread(target=self._repeat, name="attnbench capture", daemon=True).start()

    def _repeat(self) -> None:
        before, wait_s = self._recorder.tally.window(), SOON_S
        while not self._done.wait(wait_s):
            wait_s = min(2 * wait_s, EVERY_S)
            now = self._recorder.tally.window()
            if now != before:
                before = now
                self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        """Write what there is by now."""
        if self._recorder.on_first is not None and not complete:  # no call was made
            return
        with self._lock:
            if self._done.is_set() and not complete:
                return
            try:
                calls = self._recorder.calls(complete=complete)
                if calls.sites or calls.unseen:
                    calls.header["command"] = list(sys.orig_argv)
                    calls.write(self._file)
            except Exception as error:
                note_failure(self._folder, error)

    def before(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        """A function by which the process leaves, with all that was recorded written first."""

        @wraps(leave)
        def both(*args: Any, **more: Any) -> Any:
            self.write(complete=True)
            return leave(*args, **more)

        return both

    def end(self) -> None:
        """Write for the last time, as the process ends."""
        self._done.set()
        self.write(complete=True)

    def restart(self) -> None:
        """Begin anew in a forked process: nothing has been called yet."""
        self._recorder.restart()
        self._begin()
