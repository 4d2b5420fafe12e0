"""Counts of calls, and of their seconds forward and backward, on a host or a GPU.

Seconds of a gradient are added by the thread that its hooks run in, which on a GPU is another than
the one that called.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor

from attnbench.core.stats import median_interval
from attnbench.models.capture.calls import Gathered, Site

ENTRIES = 1024  # entries that are counted before they are gathered


class Entry:
    """A site under which calls are counted that are alike, or the reason why they have none."""

    __slots__ = ("asked", "site", "unasked", "weights_used", "why")

    def __init__(self, site: Site | None = None, why: str = "") -> None:
        self.site, self.why = site, why
        self.unasked: Site | None = None
        """The site if nobody asks for a gradient, though torch notes what one needs."""
        self.asked = False  # whether a gradient was asked for
        self.weights_used = False  # whether the program was seen to use the weights it wrote out


class Span(NamedTuple):
    """The time of one call, from start to end on its clock, and since when on the host's."""

    clock: SpanClock
    start: Any
    end: Any = None
    since: float = 0.0
    looked: float = 0.0  # what looking had taken when it began


class ThreadState(threading.local):
    """The state of a thread within calls."""

    def __init__(self) -> None:
        self.worked = False  # whether it has made a call
        self.looked = 0.0
        """Seconds spent on looking at calls, which the program alone would not have taken."""
        self.gradient: Entry | None = None
        """The entry whose gradient is being timed: calls made in it are taken off its seconds."""
        self.outer: Any = None
        """The call of a library that the thread is in: what that calls is part of it."""
        self.inner: list[Any] = []  # what the outer call has called so far
        self.bias = ""  # the class of the mask by which torch was called, where that is its own
        self.heads = 0  # of the multi-head attention that the thread is in
        self.scores: Any = None  # the first product of that
        self.unread = False  # whether nobody reads the weights that it returns


class Tally:
    """The counts of all threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may ask for what there is
        self._gathered = Gathered()
        self.mine = ThreadState()
        self.by_entry: dict[Entry, list[float]] = {}
        """Calls, their seconds forward and backward, and in how many the mask was a new tensor."""
        self.attention_s, self.threads = 0.0, 0
        self.first: float | None = None  # when the first call began
        self.last = 0.0  # when the last one, or its gradient, ended
        self._looked = 0.0  # what the thread that looked longest had spent on it by then
        self._before = 0.0  # and before the first call

    def count(self, entry: Entry, span: Span, until: float, *, new_mask: bool = False) -> None:
        """One more call, until then."""
        with self._lock:
            if self.first is None:
                self._before = span.looked
            self.first = span.since if self.first is None else min(self.first, span.since)
            self.threads += not self.mine.worked
            self.mine.worked = True
            if len(self.by_entry) > ENTRIES:
                self._gathered.add_all(self._counted())
                self.by_entry.clear()
            counts = self.by_entry.setdefault(entry, [0.0, 0.0, 0.0, 0.0])
            counts[0] += 1
            counts[3] += new_mask
        self.note_end(until)

    def add(self, entry: Entry, seconds: float, *, backward: bool) -> None:
        """Seconds of a call, or of its gradient."""
        with self._lock:
            self.by_entry.setdefault(entry, [0.0, 0.0, 0.0, 0.0])[1 + backward] += seconds
            self.attention_s += seconds

    def note_end(self, at: float) -> None:
        """A call, or its gradient, ended then."""
        with self._lock:
            self.last, self._looked = max(self.last, at), max(self._looked, self.mine.looked)

    def window(self, *, looking: bool = False) -> float:
        """Seconds from the first call to the last one's end, less what the longest looking took."""
        if self.first is None:
            return 0.0
        return self.last - self.first - (0.0 if looking else self._looked - self._before)

    def sites(self) -> list[Site]:
        """The counts so far, as sites that are still to be gathered."""
        with self._lock:
            return Gathered().add_all(self._gathered.each()).add_all(self._counted()).each()

    def _counted(self) -> list[Site]:
        sites = []
        for entry, (calls, seconds, backward_s, new_masks) in self.by_entry.items():
            site = entry.unasked if entry.unasked and not entry.asked else entry.site
            if site is not None and site.call is not None and entry.weights_used:
                site = replace(site, call=replace(site.call, returns="weights"))
            if site is not None:
                counts = {"calls": int(calls), "new_masks": int(new_masks)}
                sites.append(replace(site, seconds=seconds, backward_s=backward_s, **counts))
        return sites


class SpanClock:
    """For calls that have been computed when they return."""

    def now(self) -> Any:
        """A mark of this moment."""
        return perf_counter()

    def add(
        self, span: Span, tally: Tally, entry: Entry, *, sign: float = 1.0, backward: bool
    ) -> None:
        """Add the seconds between a span's marks, or take them off where ``sign`` is -1."""
        tally.add(entry, sign * (span.end - span.start), backward=backward)


class NoClock(SpanClock):
    """For calls that compute nothing."""

    def add(self, *_: Any, **more: Any) -> None:
        """Add nothing."""


PENDING = 512  # pairs of events that may wait before those that have passed are read


class GpuClock(SpanClock):
    """For calls that are queued on a GPU: their seconds are added when both events have passed."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Span, Tally, Entry, float, bool]] = deque()
        self._lock = threading.Lock()
        self.used = False

    def now(self) -> Any:
        """An event, recorded; None while a graph is captured, where it would be part of it."""
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(
        self, span: Span, tally: Tally, entry: Entry, *, sign: float = 1.0, backward: bool
    ) -> None:
        """Add the seconds between both events to an entry, once they have passed."""
        if span.start is None or span.end is None:
            return
        self.used = True
        with self._lock:
            self._pending.append((span, tally, entry, sign, backward))
        if len(self._pending) > PENDING:
            self.read(wait=False)

    def read(self, *, wait: bool) -> float | None:
        """Add what has passed, or all of it; returns when it had passed if it had to wait."""
        waited = False
        with self._lock:
            while self._pending and (self._pending[0][0].end.query() or wait):
                span, tally, entry, sign, backward = self._pending.popleft()
                if not span.end.query():
                    span.end.synchronize()
                    waited = True
                seconds = span.start.elapsed_time(span.end) / 1e3
                tally.add(entry, sign * seconds, backward=backward)
        return perf_counter() if waited else None


MOST_NODES = 48  # the gradient of a call with more nodes is not timed


def watch_gradient(
    out: Tensor,
    ends: Iterable[Tensor | None],
    entry: Entry,
    tally: Tally,
    clock: SpanClock,
) -> None:
    """Time the backward pass from ``out`` to ``ends``, less calls, and looking at them, in it."""
    nodes = _nodes_between(out, {x.grad_fn for x in ends if x is not None})
    if out.grad_fn is None:
        return
    if not 0 < len(nodes) <= MOST_NODES:
        out.grad_fn.register_prehook(lambda _: setattr(entry, "asked", True))
        return
    start: Any = None
    looked = 0.0

    def begin(_: Any) -> None:
        nonlocal start, looked
        entry.asked = True
        tally.mine.gradient = entry
        looked, start = tally.mine.looked, clock.now()

    def end(*_: Any) -> None:
        nonlocal start
        tally.mine.gradient = None
        if start is None:
            return
        clock.add(Span(clock, start, clock.now()), tally, entry, backward=True)
        start = None
        if type(clock) is SpanClock:  # a GPU goes on meanwhile
            tally.add(entry, looked - tally.mine.looked, backward=True)
        tally.note_end(perf_counter())

    out.grad_fn.register_prehook(begin)
    min(nodes, key=lambda n: n._sequence_nr()).register_hook(end)


def _nodes_between(out: Tensor, stop: set[Any]) -> set[Any]:
    nodes, todo = set[Any](), list[Any]([out.grad_fn])
    while todo and len(nodes) <= MOST_NODES:
        node = todo.pop()
        left_out = node is None or node in stop or type(node).__name__ == "AccumulateGrad"
        if not left_out and node not in nodes:
            nodes.add(node)
            todo += [n for n, _ in node.next_functions]
    return nodes


class Steps:
    """The seconds of training steps, and of attention in them."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._optimizer: weakref.ref[Any] | None = None
        self._last: tuple[float, float] | None = None
        self._steps: deque[tuple[float, float]] = deque(maxlen=10_000)

    def stepped(self, optimizer: Any) -> None:
        """After an optimizer's step; only the first optimizer that is still there counts."""
        first = self._optimizer and self._optimizer()
        if first is None:
            self._optimizer, self._last = weakref.ref(optimizer), None
        elif first is not optimizer:
            return
        now = (perf_counter() - self._tally.mine.looked, self._tally.attention_s)
        if self._last is not None:
            self._steps.append((now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now

    def summary(self, *, by_host: bool = True) -> dict[str, Any]:
        """Number, median and attention's part; that is not known of a GPU, which is read later."""
        steps = [(took, part) for took, part in list(self._steps) if took > 0]
        if not steps:
            return {}
        shares = [part / took for took, part in steps]
        has_share = by_host and any(shares)
        return {
            "steps": len(steps),
            "step_s": median(took for took, _ in steps),
            "step_share": median(shares) if has_share else None,
            "step_share_between": list(median_interval(shares)) if has_share else None,
        }
