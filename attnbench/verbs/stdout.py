"""Where data goes: whoever reads it may have had enough, or there may be no room for it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from impls.asked import CantBeDone


class CannotWrite(CantBeDone):
    """The output took no more: a full disk, say."""


class Stdout:
    """A stream that a reader may close early: the rest is dropped and the verb goes on.

    So that what a verb found is told by its exit status, however little of it was read.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropping = False

    def write(self, text: str) -> int:
        """Write, or drop."""
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
            if not isinstance(error, BrokenPipeError):
                raise CannotWrite(f"can't write to the output: {error.strerror}") from None


@contextmanager
def kept_open() -> Iterator[None]:
    """While a verb runs; what it wrote has arrived at the end."""
    before: TextIO = sys.stdout or io.StringIO()  # none: it was closed before the program began
    sys.stdout = wrapped = Stdout(before)
    try:
        yield
        wrapped.flush()
    finally:
        sys.stdout = before
