"""Inside a program that is captured: from the moment that it has torch, its calls are recorded.

Each process writes a file of its own into the capture's folder: at its first call, again and again
where anything was called since, at the last once a second, and at its end, also where it leaves by
``os._exit`` or becomes another program by ``os.exec``. A process that is killed leaves the last.
A process that is forked off begins anew, and so writes what it did itself. ``PID.python`` and
``PID.torch`` say how far a process came. Whatever goes wrong here is written there too, and never
met by the program.
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
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.models.capture.recorder import Recorder


Deed = Callable[[], None]


class After(MetaPathFinder):
    """Finds nothing of its own: it asks those who do, and stays by while the module is loaded."""

    def __init__(self, deeds: dict[str, Deed], failed: Callable[[Exception], None]) -> None:
        """``failed`` is told of what goes wrong in a deed; whoever imports is not."""
        self._deeds, self._failed = deeds, failed

    def begin(self) -> None:
        """Do what is due of modules that are there already; wait for the others."""
        for name in [n for n in self._deeds if n in sys.modules]:
            self._do(self._deeds.pop(name))
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _do(self, deed: Deed) -> None:
        try:
            deed()
        except Exception as error:
            self._failed(error)

    def _loaded(self, name: str) -> None:
        if (deed := self._deeds.pop(name, None)) is not None:
            self._do(deed)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that is waited for, its loader watched; many ask and never load."""
        if name not in self._deeds:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None:
                if found.loader is not None:
                    found.loader = _Watched(found.loader, lambda: self._loaded(name))
                return found
        return None


class _Watched(Loader):
    """A loader that says when it is done, and is gone then."""

    def __init__(self, loader: Loader, deed: Deed) -> None:
        self._loader, self._deed = loader, deed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As it does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As it does; then the deed."""
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._deed()


FOLDER, MASKS = "ATTNBENCH_CAPTURE", "ATTNBENCH_CAPTURE_MASKS"
SAMPLES = "ATTNBENCH_CAPTURE_SAMPLES"
"""In the environment: where to write, the folder of masks, that of samples where there is one."""
SOON_S, EVERY_S = 0.05, 1.0
"""How long after the first call it is written again, and how often later."""


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
    from attnbench.models.capture.capture import Session
    from attnbench.models.capture.recorder import Recorder

    samples = os.environ.get(SAMPLES)
    recorder = Recorder(Path(os.environ[MASKS]), Path(samples) if samples else None)
    Session(recorder).begin(running=False)
    writer = Writer(folder, recorder)
    atexit.register(writer.end)
    os.register_at_fork(after_in_child=writer.forked)
    for name in ("_exit", "execv", "execve"):  # by which a process ends without its exit functions
        setattr(os, name, _after(lambda: writer.write(complete=True), getattr(os, name)))


def _after(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(then)
    def both(*args: Any, **more: Any) -> Any:
        first()
        return then(*args, **more)

    return both


class Writer:
    """Writes what a process has recorded so far, now and again."""

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
        threading.Thread(target=self._now_and_again, name="attnbench capture", daemon=True).start()

    def _now_and_again(self) -> None:
        before, wait_s = self._recorder.tally.window(), SOON_S
        while not self._done.wait(wait_s):
            wait_s = min(2 * wait_s, EVERY_S)
            now = self._recorder.tally.window()
            if now != before:
                before = now
                self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        """What there is by now."""
        if self._recorder.on_first is not None:  # no call was made
            return
        with self._lock:
            if self._done.is_set() and not complete:
                return
            try:
                calls = self._recorder.calls(complete=complete)
                calls.header["command"] = list(sys.orig_argv)
                calls.write(self._file)
            except Exception as error:
                mark(self._folder, "amiss", f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """The process ends."""
        self._done.set()
        self.write(complete=True)

    def forked(self) -> None:
        """In a process that was forked off: nothing has been called yet."""
        self._recorder.restart()
        self._begin()
