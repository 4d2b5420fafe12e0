"""What is recorded of a program while it runs: one recorder a process, at the most one at a time.

A call is looked at after it was made, outside of its clock, and whatever goes wrong in looking is
counted and said, never raised: the program goes on as it would have.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench.models.calls import Calls
from attnbench.models.capture.asked import Asked, Call, site_of
from attnbench.models.capture.clocks import Begun, Clocks
from attnbench.models.capture.gradients import watch
from attnbench.models.capture.masks import Masks
from attnbench.models.capture.samples import Samples
from attnbench.models.capture.steps import Steps
from attnbench.models.capture.tally import Entry, Tally
from attnbench.models.capture.unseen import WHOLE, Compiled, sentences
from attnbench.models.capture.where import where
from attnbench.models.mask_of import has_data
from impls.asked import CantBeDone

ENTRIES = 4096


class Recorder:
    """Counts calls until it is asked what they were."""

    def __init__(self, masks: Path | None = None, samples: Path | None = None) -> None:
        self._masks = Masks(masks)
        self.samples = None if samples is None else Samples(samples)
        self.restart()

    def restart(self) -> None:
        """Nothing was called yet; what masks are is still known."""
        self.clocks = Clocks()
        self.tally = Tally()
        self.steps = Steps(self.tally)
        self.compiled = Compiled()
        self.amiss: Counter[str] = Counter()
        """What could not be recorded, by reason."""
        self._entries: dict[Asked, Entry] = {}
        self._lock = threading.Lock()
        self.on_first: Callable[[], None] | None = None
        """Called once, at the first call."""

    def made(self, call: Call, out: Any, begun: Begun) -> None:
        """Record a call that was made."""
        try:
            self._made(call, out, begun)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Something went wrong in recording."""
        first = (str(error) or "no more is known").splitlines()[0]
        self.amiss[f"{type(error).__name__}: {first[:160]}"] += 1

    def _made(self, call: Call, out: Any, begun: Begun) -> None:
        ended = _Later()
        if not call.whole:
            begun.clock.end(begun.mark, ended, backward=False)  # before anything else takes time
        asked = call.asked(where(), self._masks)
        entry = self._entries.get(asked) or self._entry(asked, call)
        ended.to(entry)
        self.tally.called(entry, begun.since)
        if self.on_first is not None:
            first, self.on_first = self.on_first, None
            first()
        if entry.site is None or call.whole:
            self.amiss[WHOLE if call.whole else entry.why] += 1
        if asked.gradients and isinstance(out, Tensor) and out.requires_grad:
            ends = (call.q, call.k, call.v, call.attn_mask, call.bias)
            watch(out, ends, entry, self.tally, begun.clock)

    def _entry(self, asked: Asked, call: Call) -> Entry:
        site, samples, why = None, "", ""
        try:
            site = site_of(asked)
        except CantBeDone as error:
            why = str(error)
        if site and self.samples and has_data(call.q) and call.q.dim() == 4:
            samples = self.samples.keep(site.site, site.problem, (call.q, call.k, call.v))
        entry = Entry(site, self.tally, samples or why)
        with self._lock:
            if len(self._entries) >= ENTRIES:
                self._entries.clear()
            self._entries[asked] = entry
        return entry

    def calls(self, *, complete: bool) -> Calls:
        """What was recorded so far, its sites still to be gathered."""
        passed = self.clocks.events.read(wait=complete) if self.clocks.events.used else None
        if passed is not None:
            self.tally.lasted(passed)
        steps = self.steps.told(by_host=not self.clocks.events.used)
        return Calls(
            sites=[*self.tally.sites(), *self.compiled.sites],
            header={
                "torch": torch.__version__, "python": platform.python_version(),
                "threads": self.tally.working_threads(), "processes": 1,
            },
            unseen=sentences(self), complete=complete, wall_s=self.tally.window(),
            attention_s=self.tally.attention_s(), **steps,
        )  # fmt: skip


class _Later:
    """Seconds that are known, or will be, before it is known what they are of."""

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._seconds: float | None = None

    def add(self, seconds: float, *, backward: bool) -> None:
        if self._entry is None:
            self._seconds = seconds
        else:
            self._entry.add(seconds, backward=backward)

    def to(self, entry: Entry) -> None:
        self._entry = entry
        if self._seconds is not None:
            entry.add(self._seconds, backward=False)
