"""What each thread has counted. A thread adds to its own counts alone, so that none waits.

Seconds of a gradient are added by the thread that its hooks run in, which on a GPU is another than
the one that called.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

from attnbench.core.stats import median_interval
from attnbench.models.capture.calls import Gathered, Site

KEPT = 1024
"""Entries that a thread counts before it hands them over to be gathered."""
THREADS = 64
WITHIN = 256
"""Calls inside of one gradient, at the most, that are taken off it."""


class ThreadCounts:
    """Of one thread: calls, seconds forward and backward of each entry, and of all of them."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.by_entry: dict[SiteEntry, list[float]] = {}
        self.forward = self.backward = 0.0
        self.first: float | None = None
        """When the first call began, and the last one or its gradient ended."""
        self.last = 0.0
        self.looked = 0.0
        """Seconds spent on looking at calls, which the program would not have taken."""
        self.looked_before = 0.0
        """Those of them before the last one's end."""
        self.within: list[Later] | None = None
        """The calls made inside the gradient that is being timed."""
        self.outer: Any = None
        """The call of a library that the thread is inside of: what that calls is part of it."""
        self.heads = 0
        """Of the multi-head attention that the thread is inside of, and its first product."""
        self.scores: Any = None
        self.calls: list[Any] = []
        """What the outer call has called so far."""

    def ended(self, at: float) -> None:
        """A call, or its gradient, ended then."""
        self.last, self.looked_before = at, self.looked


class Tally:
    """The counts of all threads."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._all: list[ThreadCounts] = []
        self._gathered = Gathered()
        self._lock = threading.Lock()
        self._before = (0.0, 0.0)
        """Seconds, forward and backward, of threads that are gone."""
        self.threads = 0
        self._window: list[float] = []
        self._looked = 0.0

    def mine(self) -> ThreadCounts:
        """This thread's."""
        counts: ThreadCounts | None = getattr(self._local, "counts", None)
        if counts is None:
            counts = self._local.counts = ThreadCounts()
            with self._lock:
                self._all.append(counts)
                if len(self._all) > THREADS:
                    self._fold_the_gone()
        return counts

    def called(self, entry: SiteEntry, begun: float, until: float) -> None:
        """One more call, from then until then."""
        counts = self.mine()
        if counts.first is None:
            counts.first = begun
        counts.ended(until)
        if len(counts.by_entry) > KEPT:
            with self._lock:
                self._fold(counts)
        counts.by_entry.setdefault(entry, [0.0, 0.0, 0.0])[0] += 1

    def within_gradient(self, call: Later) -> None:
        """It belongs to the gradient that this thread is in, if it is in one."""
        within = self.mine().within
        if within is not None and len(within) < WITHIN:
            within.append(call)

    def attention_s(self) -> float:
        """Seconds of all calls so far."""
        some = list(self._all)
        return sum(self._before) + sum(c.forward + c.backward for c in some)

    def window(self, *, looking: bool = False) -> float:
        """Seconds from the first call's beginning to the last one's end.

        Without those of ``looking`` in between, of the thread that looked longest: threads look at
        the same time.
        """
        some = list(self._all)
        begun = [c.first for c in some if c.first is not None] + self._window[:1]
        ended = [c.last for c in some if c.last] + self._window[1:]
        looked = 0.0 if looking else max([self._looked, *(c.looked_before for c in some)])
        return max(ended) - min(begun) - looked if begun else 0.0

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

    def _fold(self, counts: ThreadCounts) -> None:
        self._gathered.add_all(_sites(counts))
        counts.by_entry.clear()

    def _fold_the_gone(self) -> None:
        """Threads that ended are counted together."""
        alive = set(sys._current_frames())
        gone = [c for c in self._all if c.thread not in alive]
        for counts in gone:
            self._fold(counts)
            self._all.remove(counts)
            self._before = (self._before[0] + counts.forward, self._before[1] + counts.backward)
            if counts.first is not None:
                self.threads += 1
                self._looked = max(self._looked, counts.looked_before)
                ends = (*self._window, counts.first, counts.last)
                self._window = [min(ends), max(ends)]


def _sites(counts: ThreadCounts) -> Iterator[Site]:
    for entry, (calls, forward, backward) in list(counts.by_entry.items()):
        if entry.site is not None:
            yield entry.counted(int(calls), forward, backward)


class SiteEntry:
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
        else:
            one[1] += seconds
            counts.forward += seconds

    def counted(self, calls: int, seconds: float, backward_s: float) -> Site:
        """The site with its counts."""
        s = self.site
        assert s is not None
        return Site(
            s.problem,
            s.site,
            s.via,
            calls,
            seconds,
            backward_s,
            scale=s.scale,
            samples=self.samples,
            note=s.note,
            faithful=s.faithful,
        )


class Later:
    """Seconds that are known, or will be, before it is known what they are of."""

    def __init__(self) -> None:
        self._to: list[tuple[SiteEntry, float, bool]] = []
        self._seconds: float | None = None

    def add(self, seconds: float, *, backward: bool) -> None:
        """They are known."""
        self._seconds = seconds
        for entry, times, back in self._to:
            entry.add(times * seconds, backward=back)

    def to(self, entry: SiteEntry) -> None:
        """They are of this entry."""
        self._put(entry, 1.0, backward=False)

    def off(self, entry: SiteEntry) -> None:
        """They were counted with this entry's gradient, and are not of that."""
        self._put(entry, -1.0, backward=True)

    def _put(self, entry: SiteEntry, times: float, *, backward: bool) -> None:
        self._to.append((entry, times, backward))
        if self._seconds is not None:
            entry.add(times * self._seconds, backward=backward)


STEPS_KEPT = 10_000
"""The last so many steps are looked at."""


class StepTimes:
    """How long steps took, and how much of them was attention."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._optimizer: weakref.ref[Any] | None = None
        self._last: tuple[float, float] | None = None
        self._found: deque[tuple[float, float]] = deque(maxlen=STEPS_KEPT)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """After an optimizer's step."""
        first = self._optimizer and self._optimizer()
        if first is None:  # none yet, or it is gone
            self._optimizer, self._last = weakref.ref(optimizer), None
        elif first is not optimizer:
            return
        now = (perf_counter() - self._tally.mine().looked, self._tally.attention_s())
        if self._last is not None:
            self._found.append((now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now

    def told(self, *, by_host: bool = True) -> dict[str, Any]:
        """How many, their median, the median of attention's part and its interval; nothing of none.

        A GPU's seconds are read later than its steps end, so its part of each is not known.
        """
        some = [(took, part) for took, part in list(self._found) if took > 0]
        if not some:
            return {"steps": 0, "step_s": None, "step_share": None, "step_share_between": None}
        shares = [part / took for took, part in some]
        known = by_host and any(shares)
        return {
            "steps": len(some),
            "step_s": median(s for s, _ in some),
            "step_share": median(shares) if known else None,
            "step_share_between": list(median_interval(shares)) if known else None,
        }


WHOLE = "whole"
"""The reason under which calls are counted that do more than attention."""
KERNELS = ("flash_attn", "xformers", "sageattention", "flashinfer", "natten")
"""Libraries with attention functions of their own."""
PLACES = 3
"""Places of attention written out, at the most, that are said."""
SAID = 5
"""Reasons, at the most, that are said one by one."""


class Compiled:
    """Calls that torch's compiler met: which, but not how often they ran."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.met = 0

    def add(self, site: Site | None) -> None:
        """One more; the site where it could be told."""
        self.met += 1
        if site is not None and site not in self.sites and len(self.sites) < 256:
            self.sites.append(site)


def sentences(
    compiled: Compiled, amiss: Counter[str], written: Counter[str], *, skipped: bool
) -> list[str]:
    """What may be missing, and why.

    ``written``: attention written out, by its place; ``skipped``: samples of a place were, for want
    of room.
    """
    found = []
    if written:
        places = [place for place, _ in written.most_common(PLACES)]
        more = f" and {len(written) - PLACES} more places" * (len(written) > PLACES)
        found.append(
            f"attention that is written out as products and a softmax was met "
            f"{_many(sum(written.values()), 'time')} and is not recorded, nor in the share: "
            f"{', '.join(places)}{more}; written with F.scaled_dot_product_attention it would be"
        )
    if compiled.met:
        found.append(
            f"torch.compile compiled {_many(compiled.met, 'attention call')} into larger code: "
            "which problems is known, but not how often they ran, nor for how long; run without "
            "compiling to have their share"
        )
    if (whole := amiss.get(WHOLE, 0)) > 0:
        found.append(
            f"{_many(whole, 'call')} of torch's fast path for nn.MultiheadAttention and "
            "TransformerEncoder computed projections, or a whole layer, in the same operator: "
            "counted, but their seconds are not in the share"
        )
    others = Counter({k: n for k, n in amiss.items() if k != WHOLE})
    for reason, n in others.most_common(SAID):
        found.append(f"{_many(n, 'call')} could not be put as a problem: {reason}")
    if len(others) > SAID:
        found.append(f"{len(others) - SAID} more reasons why a call could not be put")
    imported = [name for name in KERNELS if name in sys.modules]
    if imported:
        found.append(
            f"the program imported {', '.join(imported)}: calls of their own functions are seen "
            "only where transformers makes them"
        )
    if skipped:
        found.append("there was no room for samples of all places: the first were kept")
    return found


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}" + "s" * (n != 1)
