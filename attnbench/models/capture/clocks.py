"""The clocks of calls that a program makes: the host's, and a GPU's events.

On the CPU a call has been computed when it returns. On a GPU it has only been queued: an event
before and one after it are read when both have passed, so that the program never waits for its
being watched. Fake tensors compute nothing and take no time.
"""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attnbench.models.mask_of import has_data

PENDING = 512
"""Pairs of events that may wait before those that have passed are read."""


class Sum(Protocol):
    """Where seconds are added."""

    def add(self, seconds: float, *, backward: bool) -> None:
        """Count these seconds."""


class Host:
    """Around a call that has been computed when it returns."""

    def begin(self) -> Any:
        """What :meth:`end` needs."""
        return perf_counter()

    def end(self, begun: Any, to: Sum, *, backward: bool, less: float = 0.0) -> None:
        """Add the seconds since, less those that the program would not have taken."""
        to.add(perf_counter() - begun - less, backward=backward)


class Nothing(Host):
    """Around a call that computes nothing."""

    def end(self, begun: Any, to: Sum, *, backward: bool, less: float = 0.0) -> None:
        """No time."""


class Events(Host):
    """Around a call that is queued on a GPU."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any, Sum, bool]] = deque()
        self._lock = threading.Lock()
        self.used = False

    def begin(self) -> Any:
        """An event, recorded; none while a graph is captured, where it would be part of it."""
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self, begun: Any, to: Sum, *, backward: bool, less: float = 0.0) -> None:
        """Another event; the seconds between them are added when both have passed.

        ``less`` is the host's time, meanwhile the GPU goes on.
        """
        event = self.begin() if begun is not None else None
        if event is None:
            return
        self.used = True
        with self._lock:
            self._pending.append((begun, event, to, backward))
        if len(self._pending) > PENDING:
            self.read(wait=False)

    def read(self, *, wait: bool) -> float | None:
        """Add what has passed; all of it if it may wait. When it had passed, if it did wait."""
        waited = False
        with self._lock:
            while self._pending and (self._pending[0][1].query() or wait):
                begun, ended, to, backward = self._pending.popleft()
                if not ended.query():
                    ended.synchronize()
                    waited = True
                to.add(begun.elapsed_time(ended) / 1e3, backward=backward)
        return perf_counter() if waited else None


class Begun(NamedTuple):
    """A call that is being made: its clock, what that has read, and the host's time."""

    clock: Host
    mark: Any
    since: float


class Clocks:
    """The clock for each kind of tensor."""

    def __init__(self) -> None:
        self.events = Events()
        self._host, self._nothing = Host(), Nothing()

    def begin(self, x: Tensor) -> Begun:
        """Just before a call on this tensor."""
        clock = (self.events if x.is_cuda else self._host) if has_data(x) else self._nothing
        since = perf_counter()
        return Begun(clock, clock.begin(), since)
