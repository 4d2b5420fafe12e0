"""The clocks. Each record names the one it was taken with.

``host``    CPU: one call between two readings of the monotonic clock.
``events``  CUDA: two events around one call that finds none of its inputs in the L2 cache. Several
            calls are queued behind a sleeping kernel and waited for once, so that gaps between
            launches stay out.
``e2e``     CUDA: the host clock around one call and the wait for it: what a caller feels. It
            audits the others.
``graph``   CUDA: events around the replay of a CUDA graph of one call: the clock of ``decode``,
            which is served so because launching would be most of its work.
``ranks``   several processes: the slowest of them, each by its own (:mod:`attnbench.measure.team`).

The references to timers and synchronisation are taken when this module is imported, before any
variant's code is.
"""

from __future__ import annotations

import gc
from time import perf_counter_ns
from typing import Protocol

from attnbench.measure.gpu import Step, cuda_gpu
from attnbench.measure.gpu_clocks import EndToEndClock, EventClock, GraphClock


class Clock(Protocol):
    """Seconds of each of some calls.

    A clock may say more: ``batch``, how many calls it takes best at once, and ``flags``, what must
    be known of its samples.
    """

    name: str

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """Time ``call`` ``count`` times, ``before`` running untimed ahead of each."""


class HostClock:
    """The monotonic clock of the host."""

    name = "host"

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """One call a sample; the collector waits, and what a call returned is freed untimed."""
        taken, now = [], perf_counter_ns  # once: a call might put another one there for its end
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(count):
                before()
                start = now()
                kept = call()
                taken.append((now() - start) * 1e-9)
                del kept
        finally:
            if collecting:
                gc.enable()
        return taken


def clock_for(device: str, phase: str) -> Clock:
    """The clock that a phase is timed with on a device."""
    if device == "cpu":
        return HostClock()
    gpu = cuda_gpu(device)
    return GraphClock(gpu) if phase == "decode" else EventClock(gpu)


def second_clock_for(device: str) -> EndToEndClock | None:
    """The clock that audits a GPU's; the CPU has one clock."""
    return None if device == "cpu" else EndToEndClock(cuda_gpu(device))
