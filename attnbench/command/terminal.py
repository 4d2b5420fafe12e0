"""What every verb does with a terminal: prose, exit statuses, streams and signals."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from attnbench.core.format import for_terminal
from impls.errors import CantBeDone

if TYPE_CHECKING:
    from attnbench.core.record import Record


INTERRUPTED = 130


def say(text: str) -> None:
    """Print prose on stderr, apart from data."""
    print(text, file=sys.stderr, flush=True)


def finding(records: list[Record]) -> int:
    """The exit status: 1 where a variant is wrong or fails, 2 where none was tried."""
    statuses = [str(r.status) for r in records]
    return status_of(statuses, "nothing was run: no variant takes these problems here")


def status_of(statuses: list[str], nothing: str = "nothing was compared") -> int:
    """The same, of the statuses alone."""
    from attnbench.core.record import FINDINGS, NOT_TRIED

    if all(s in NOT_TRIED for s in statuses):
        say(f"attnbench: {nothing}, for the reasons said")
        return 2
    return int(any(s in FINDINGS for s in statuses))


RAISING = ("strict", "surrogateescape")
"""Error handlers of streams that raise for a character they lack; the second is the C locale's."""


class CannotWrite(CantBeDone):
    """The output can't be written, as on a full disk."""


class Stream:
    """A stream whose reader may leave early: the rest is dropped and the verb goes on.

    On any other error data raises :class:`CannotWrite`, and prose is dropped. Control characters,
    which a plugin's message or a record's text may hold, are removed.
    """

    def __init__(self, stream: TextIO | None, *, prose: bool = False) -> None:
        """``stream``: None is one that was closed before the program began."""
        self._stream, self._prose = stream or io.StringIO(), prose
        self._dropping = False

    def write(self, text: str) -> int:
        """Write, or drop, without control characters."""
        return self.write_unchecked(for_terminal(text))

    def write_unchecked(self, text: str) -> int:
        """Write, or drop, text that was cleaned before it was given colours."""
        self._do(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        self._do(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _do(self, deed: Callable[[], object]) -> None:
        if self._dropping:
            return
        try:
            deed()
        except OSError as error:
            self._dropping = True
            with suppress(OSError, ValueError):  # for what is flushed at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not self._prose and not isinstance(error, BrokenPipeError):
                raise CannotWrite(f"can't write to the output: {error.strerror}") from None


@contextmanager
def kept_open() -> Iterator[None]:
    """Wrap the standard streams while a verb runs, and flush its data at the end."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # of a closed one, which a file would get
        os.set_inheritable(number, True)
    os.close(number)
    out, error = sys.stdout, sys.stderr
    for stream in (out, error):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in RAISING:
            stream.reconfigure(errors="replace")  # a mark for what the terminal lacks
    sys.stdout, sys.stderr = wrapped, _ = Stream(out), Stream(error, prose=True)
    try:
        yield
        wrapped.flush()
    finally:
        sys.stdout, sys.stderr = out, error


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Let a signal end a verb as Ctrl-C does. A second one is ignored, so that results are kept."""
    if current_thread() is not main_thread():  # Python allows it nowhere else
        yield
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}

    def interrupt(*_: object) -> NoReturn:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each, was in before.items():
        if was != signal.SIG_IGN:  # switched off, as by nohup
            signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, was in before.items():
            signal.signal(each, was)
