"""The verbs, a room each: they read what was asked and call the rooms below."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from attnbench.core.format import for_terminal
from impls.asked import CantBeDone

if TYPE_CHECKING:
    from attnbench.core.record import Record


INTERRUPTED = 130
"""The exit status of what Ctrl-C stopped."""


def say(text: str) -> None:
    """Prose, out of the way of data."""
    print(text, file=sys.stderr, flush=True)


def tried(records: list[Record]) -> bool:
    """Whether anything was asked of a variant."""
    from attnbench.core.record import NOT_TRIED

    return any(r.status not in NOT_TRIED for r in records)


def finding(records: list[Record]) -> int:
    """1 where a variant was not what it says it is; 2 where nothing was asked of any."""
    from attnbench.core.record import FINDINGS

    if not tried(records):
        say(
            "attnbench: nothing was run: no variant takes these problems here, for the reasons said"
        )
        return 2
    return int(any(r.status in FINDINGS for r in records))


RAISING = ("strict", "surrogateescape")
"""What streams do with a character that they lack; the second is what the C locale gives."""


class CannotWrite(CantBeDone):
    """The output took no more: a full disk, say."""


class Stream:
    """A stream that a reader may close early: the rest is dropped and the verb goes on.

    So a verb's exit status says what it found, however little of the output was read. Where there
    is no room, data raises :class:`CannotWrite`; prose is dropped, since no result rests on it.
    No control character goes through: a message of a plugin or a record's text may hold some.
    """

    def __init__(self, stream: TextIO, *, prose: bool = False) -> None:
        self._stream, self._prose = stream, prose
        self._dropping = False

    def write(self, text: str) -> int:
        """Write, or drop; without control characters."""
        return self.write_unchecked(for_terminal(text))

    def write_unchecked(self, text: str) -> int:
        """Write, or drop, as it is: for text that was checked and then given colours."""
        if not self._dropping:
            with self._told():
                return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        if not self._dropping:
            with self._told():
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._dropping = True
            with suppress(OSError, ValueError):  # what is left in it must go somewhere at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not self._prose and not isinstance(error, BrokenPipeError):
                raise CannotWrite(f"can't write to the output: {error.strerror}") from None


@contextmanager
def kept_open() -> Iterator[None]:
    """While a verb runs; what it wrote has arrived at the end."""
    with ExitStack() as opened:
        _open_closed(opened)
        out, error = sys.stdout, sys.stderr
        for stream in (out, error):
            _take_any_character(stream, opened)
        sys.stdout, sys.stderr = wrapped, _ = Stream(out), Stream(error, prose=True)
        try:
            yield
            wrapped.flush()
        finally:
            sys.stdout, sys.stderr = out, error


def _take_any_character(stream: TextIO, opened: ExitStack) -> None:
    """Have a terminal of few characters show a mark for others, where it would raise."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in RAISING:
        opened.callback(stream.reconfigure, errors=stream.errors)
        stream.reconfigure(errors="replace")


def _open_closed(opened: ExitStack) -> None:
    """Put /dev/null where a standard stream was closed, as a service may find them.

    Otherwise the next file or pipe that is opened gets the stream's number, and what is meant for
    the one goes to the other.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            opened.callback(setattr, sys, name, None)
            mode = "w" if number else "r"
            setattr(sys, name, opened.enter_context(Path(os.devnull).open(mode)))  # noqa: SIM115


ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """While a verb runs. A second one is not heard, so that keeping comes to its end."""
    if current_thread() is not main_thread():  # nobody else may say what a signal does
        yield
        return
    before = {each: signal.getsignal(each) for each in ENDS}
    for each, was in before.items():
        if was != signal.SIG_IGN:  # somebody has switched it off, as nohup does
            signal.signal(each, _told)
    try:
        yield
    finally:
        for each, was in before.items():
            signal.signal(each, was)


def _told(*_: object) -> NoReturn:
    for each in ENDS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
