"""SIGTERM as Ctrl-C: what was found until then is kept, and no process is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import NoReturn


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """While a verb runs. A second one is not heard, so that keeping comes to its end."""
    if current_thread() is not main_thread():  # nobody else may say what a signal does
        yield
        return
    before = signal.signal(signal.SIGTERM, _told)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
