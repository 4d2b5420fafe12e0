"""Was the device itself while samples were taken? Was the processor there?

A GPU that is too hot, or whose power supply asks it to slow down, is another GPU: what was sampled
then is thrown away, counted, and taken again after a wait. A GPU that draws all that its board
allows is itself: that is flagged.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Protocol

from attnbench import nvml
from attnbench.measure.gpu import cuda_gpu
from attnbench.nvml import POWER_CAP, SLOWDOWNS, Absent, Board

Samples = Callable[[], list[float]]

IN_A_ROW = 5
"""Batches thrown away in a row before it is accepted that the device stays slow."""
WAIT_S = (0.05, 0.5)
"""The first wait, and the longest: each is twice the one before."""
CONTENDED = 0.9
"""Below this share of the processor a single thread was not running all the time."""


class Health(Protocol):
    """Watches while batches of samples are taken."""

    discarded: int
    """Samples thrown away."""

    def take(self, batch: Samples) -> list[float]:
        """The samples of a batch, taken while the device was itself."""

    def clocks(self) -> dict[str, float]:
        """The device's clocks, as observed."""

    def flags(self) -> list[str]:
        """What must be known."""


class Unwatched:
    """Nothing to watch; on a GPU, with the reason."""

    discarded = 0

    def __init__(self, why: str = "") -> None:
        self._why = why

    def take(self, batch: Samples) -> list[float]:
        """As they come."""
        return batch()

    def clocks(self) -> dict[str, float]:
        """None are known."""
        return {}

    def flags(self) -> list[str]:
        """Why slow-downs went unseen."""
        return [f"slow-downs were not watched for: {self._why}"] if self._why else []


class Watched:
    """A GPU under its driver's eyes."""

    def __init__(self, board: Board, wait: Callable[[float], object] = sleep) -> None:
        self._board, self._wait = board, wait
        self.discarded = 0
        self._mhz: list[float] = []
        self._batches = self._capped = 0
        self._stays: frozenset[str] = frozenset()
        """Slow-downs that did not end."""
        self._blind = ""

    def take(self, batch: Samples) -> list[float]:
        """The batch, again and again while the device is slowed down; at last as it is."""
        pause, tries = WAIT_S[0], 0
        while True:
            hot, capped = self._held_down_s("thermal"), self._held_down_s("power")
            reasons = self._reasons()
            samples = batch()
            mhz, reasons = self._board.sm_mhz(), reasons | self._reasons()
            if self._held_down_s("power") > capped:
                reasons |= {POWER_CAP}  # it came and went while nobody looked
            slow = reasons & SLOWDOWNS
            if not slow and self._held_down_s("thermal") > hot:
                slow = frozenset({"thermal"})  # as did this
            if not slow or self._stays:
                break
            self.discarded += len(samples)
            tries += 1
            if tries == IN_A_ROW:
                self._stays = slow
            self._wait(pause)
            pause = min(2 * pause, WAIT_S[1])
        self._batches += 1
        self._capped += POWER_CAP in reasons
        if not isinstance(mhz, Absent):
            self._mhz.append(mhz)
        return samples

    def clocks(self) -> dict[str, float]:
        """Of its processors, right after each batch that was kept."""
        if not self._mhz:
            return {}
        return {"sm_mhz": float(median(self._mhz)), "sm_mhz_min": float(min(self._mhz))}

    def flags(self) -> list[str]:
        """Slow-downs that stayed, and the power cap."""
        found = []
        if self._stays:
            why = ", ".join(sorted(self._stays))
            found.append(f"slowed down all the time ({why}): {self.discarded} samples were thrown "
                         "away, then the rest kept")  # fmt: skip
        if self._capped:
            limit = self._board.power_limit_w()
            least = "" if isinstance(limit, Absent) else f" of {limit:.0f} W"
            found.append(f"power-capped: in {self._capped} of {self._batches} batches the clocks "
                         f"were held down to keep to the limit{least}")  # fmt: skip
        if self._blind:
            found.append(f"slow-downs were not watched for: {self._blind}")
        return found

    def _reasons(self) -> frozenset[str]:
        found = self._board.reasons()
        if isinstance(found, Absent):
            self._blind = found.reason
            return frozenset()
        return found

    def _held_down_s(self, policy: str) -> float:
        found = self._board.held_down_s(policy)
        return 0.0 if isinstance(found, Absent) else found


def health_for(device: str) -> Health:
    """A watcher for one measurement on a device."""
    if device == "cpu":
        return Unwatched()
    board = nvml.board(cuda_gpu(device).uuid)
    return Unwatched(board.reason) if isinstance(board, Absent) else Watched(board)


class Processor:
    """What this process and thread got of the processor since this was made."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._waits = perf_counter(), process_time(), _waits()

    def flags(self, calls: int, threads: int) -> list[str]:
        """Whether others took it, or the calls let it go themselves.

        A thread that sleeps or waits gives the processor back of its own will, and the system
        counts how often. Several threads wait honestly for one another: then it tells nothing.
        """
        wall = max(perf_counter() - self._wall, 1e-9)
        share = (process_time() - self._cpu) / wall
        if share >= CONTENDED:
            return []
        if threads == 1 and _waits() - self._waits >= calls:
            return [f"it waited: {1 - share:.0%} of each call without the processor, "
                    "of its own will"]  # fmt: skip
        return [f"contended: {share:.0%} of a processor"]


def _waits() -> int:
    """How often this thread has given the processor back of its own will."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
