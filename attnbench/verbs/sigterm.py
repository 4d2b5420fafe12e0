"""SIGTERM, or a terminal that is closed, as Ctrl-C: what was found until then is kept, and no
process is left behind.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import NoReturn

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
