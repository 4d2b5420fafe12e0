"""The clocks. Each record names the one it was taken with.

``host``    CPU: one call between two readings of the monotonic clock.
``events``  CUDA: two events around one call on an idle L2 cache. Several calls are queued behind a
            sleeping kernel and waited for once, so that gaps between launches stay out.
``e2e``     CUDA: the host clock around one call and the wait for it: what a caller feels. It
            audits ``events``, and is the clock of ``decode``, where launching is the work.

The references to timers and synchronisation are taken when this module is imported, before any
variant's code is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

import torch

Step = Callable[[], object]


class Clock(Protocol):
    """Seconds of each of some calls."""

    name: str

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """Time ``call`` ``count`` times, ``before`` running untimed ahead of each."""


class HostClock:
    """The monotonic clock of the host."""

    name = "host"

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """One call a sample; the collector waits, and what a call returned is freed untimed."""
        taken = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(count):
                before()
                start = perf_counter_ns()
                kept = call()
                taken.append((perf_counter_ns() - start) * 1e-9)
                del kept
        finally:
            if collecting:
                gc.enable()
        return taken


_synchronize = torch.cuda.synchronize
_Event = torch.cuda.Event
_sleep = getattr(torch.cuda, "_sleep", None)


class EndToEndClock:
    """The host clock around a call and the wait for it."""

    name = "e2e"

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """One call a sample."""
        taken = []
        for _ in range(count):
            before()
            _synchronize(self.device)
            start = perf_counter_ns()
            kept = call()
            _synchronize(self.device)
            taken.append((perf_counter_ns() - start) * 1e-9)
            del kept
        return taken


class EventClock:
    """CUDA events, the L2 cache flushed before each call."""

    name = "events"
    QUEUE = 16
    """Calls queued before one wait."""
    SLEEP_CYCLES = 2_000_000
    """About a millisecond, in which the host queues what follows."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size
        self._flush = torch.empty(max(2 * cache, 256 << 20), dtype=torch.int8, device=self.device)

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """Events around each call, read after the queue has drained."""
        taken: list[float] = []
        with torch.cuda.device(self.device):
            while len(taken) < count:
                pairs = []
                if _sleep is not None:
                    _sleep(self.SLEEP_CYCLES)
                for _ in range(min(self.QUEUE, count - len(taken))):
                    before()
                    self._flush.zero_()
                    start, end = _Event(enable_timing=True), _Event(enable_timing=True)
                    start.record()
                    kept = call()
                    end.record()
                    del kept
                    pairs.append((start, end))
                _synchronize(self.device)
                taken += [start.elapsed_time(end) * 1e-3 for start, end in pairs]
        return taken


def clock_for(device: str, phase: str) -> Clock:
    """The clock that a phase is timed with on a device."""
    if device == "cpu":
        return HostClock()
    return EndToEndClock(device) if phase == "decode" else EventClock(device)
