"""What each thread has counted. A thread adds to its own counts alone, so that none waits.

Seconds of a gradient are added by the thread that its hooks run in, which on a GPU is another than
the one that called.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from attnbench.models.calls import Site
from attnbench.models.gathered import Gathered

KEPT = 1024
"""Entries that a thread counts before it hands them over to be gathered."""
THREADS = 64


class Counts:
    """Of one thread: calls, seconds forward and backward of each entry, and of all of them."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.by_entry: dict[Entry, list[float]] = {}
        self.forward = self.backward = 0.0
        self.first: float | None = None
        """When the first call began, and the last one ended."""
        self.last = 0.0
        self.outer: Any = None
        """The call of a library that the thread is inside of: what that calls is part of it."""
        self.heads = 0
        """Of the multi-head attention that the thread is inside of, and its first product."""
        self.scores: Any = None
        self.calls: list[Any] = []
        """What the outer call has called so far."""


class Tally:
    """The counts of all threads."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._all: list[Counts] = []
        self._gathered = Gathered()
        self._lock = threading.Lock()
        self._before = (0.0, 0.0)
        """Seconds, forward and backward, of threads that are gone."""
        self.threads = 0
        self._window: list[float] = []

    def mine(self) -> Counts:
        """This thread's."""
        counts: Counts | None = getattr(self._local, "counts", None)
        if counts is None:
            counts = self._local.counts = Counts()
            with self._lock:
                self._all.append(counts)
                if len(self._all) > THREADS:
                    self._fold_the_gone()
        return counts

    def called(self, entry: Entry, begun: float) -> None:
        """One more call, from then until now."""
        counts = self.mine()
        if counts.first is None:
            counts.first = begun
        counts.last = perf_counter()
        if len(counts.by_entry) > KEPT:
            with self._lock:
                self._fold(counts)
        counts.by_entry.setdefault(entry, [0.0, 0.0, 0.0])[0] += 1

    def attention_s(self) -> float:
        """Seconds of all calls so far."""
        some = list(self._all)
        return sum(self._before) + sum(c.forward + c.backward for c in some)

    def window(self) -> float:
        """Seconds from the first call's beginning to the last one's end."""
        begun = [c.first for c in self._all if c.first is not None] + self._window[:1]
        ended = [c.last for c in self._all if c.first is not None] + self._window[1:]
        return max(ended) - min(begun) if begun else 0.0

    def sites(self) -> list[Site]:
        """What was counted so far, as sites that are still to be gathered."""
        with self._lock:
            seen = Gathered().add_all(self._gathered.each())
            for counts in list(self._all):
                seen.add_all(_sites(counts))
        return list(seen.each())

    def lasted(self, until: float) -> None:
        """The last call ended then, on a GPU."""
        for counts in list(self._all):
            if counts.first is not None:
                counts.last = max(counts.last, until)

    def working_threads(self) -> int:
        """Threads that made a call."""
        return self.threads + sum(c.first is not None for c in list(self._all))

    def _fold(self, counts: Counts) -> None:
        self._gathered.add_all(_sites(counts))
        counts.by_entry.clear()

    def _fold_the_gone(self) -> None:
        """Threads that ended are counted together."""
        alive = set(sys._current_frames())
        gone = [c for c in self._all if c.thread not in alive]
        for counts in gone:
            self._fold(counts)
            self._all.remove(counts)
            self._before = (
                self._before[0] + counts.forward, self._before[1] + counts.backward
            )  # fmt: skip
            if counts.first is not None:
                self.threads += 1
                ends = (*self._window, counts.first, counts.last)
                self._window = [min(ends), max(ends)]


def _sites(counts: Counts) -> Iterator[Site]:
    for entry, (calls, forward, backward) in list(counts.by_entry.items()):
        if entry.site is not None:
            yield entry.counted(int(calls), forward, backward)


class Entry:
    """A site to be counted; calls that no problem can be made of have none, but a reason."""

    __slots__ = ("_tally", "samples", "site", "why")

    def __init__(self, site: Site | None, tally: Tally, said: str = "") -> None:
        """``said``: the file of its samples, or where it has no site why not."""
        self.site, self._tally = site, tally
        self.samples, self.why = (said, "") if site else ("", said)

    def add(self, seconds: float, *, backward: bool) -> None:
        """Seconds of a call, or of its gradient."""
        counts = self._tally.mine()
        one = counts.by_entry.setdefault(self, [0.0, 0.0, 0.0])
        if backward:
            one[2] += seconds
            counts.backward += seconds
            counts.last = perf_counter()
        else:
            one[1] += seconds
            counts.forward += seconds

    def counted(self, calls: int, seconds: float, backward_s: float) -> Site:
        """The site with its counts."""
        s = self.site
        assert s is not None
        return Site(
            s.problem, s.site, s.via, calls, seconds, backward_s, scale=s.scale,
            samples=self.samples, note=s.note, faithful=s.faithful,
        )  # fmt: skip
