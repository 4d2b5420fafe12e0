"""What is recorded of a program while it runs: one recorder a process, at the most one at a time.

A call is looked at after it was made, outside of its clock, and the time that looking takes is
taken off what the program took. Whatever goes wrong in looking is counted and said, never raised:
the program goes on as it would have.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from attnbench.models.calls import Calls
from attnbench.models.capture.asked import Asked, Call, mapped, site_of
from attnbench.models.capture.clocks import Begun, Clocks
from attnbench.models.capture.gradients import watch
from attnbench.models.capture.masks import Masks
from attnbench.models.capture.samples import Samples
from attnbench.models.capture.steps import Steps
from attnbench.models.capture.tally import Entry, Later, Tally
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
        self.written: Counter[str] = Counter()
        """Attention that was written out as products and a softmax, by its place."""
        self._entries: dict[Asked, Entry] = {}
        self._lock = threading.Lock()
        self.on_first: Callable[[], None] | None = None
        """Called once, as soon as there is anything to tell."""

    def made(self, call: Callable[[], Call], out: Any, begun: Begun) -> None:
        """Record a call that was made; ``call`` says which."""
        ended, until = Later(), perf_counter()
        try:
            begun.clock.end(begun.mark, ended, backward=False)  # before anything else takes time
            until = perf_counter()  # the call's seconds lie within its window
            self._made(call(), out, begun, ended, until)
        except Exception as error:
            self.failed(error)
        self.tally.mine().looked += perf_counter() - until

    def _begun(self) -> None:
        if self.on_first is not None:
            first, self.on_first = self.on_first, None
            first()

    def wrote_out(self, place: str) -> None:
        """Attention was written out there, once more."""
        self.written[place] += 1
        self._begun()

    def not_put(self, reason: str, times: int = 1) -> None:
        """So many calls have no site, for this reason."""
        if times:
            self.amiss[reason] += times
            self._begun()

    def failed(self, error: Exception) -> None:
        """Something went wrong in recording."""
        first = (str(error) or "no more is known").splitlines()[0]
        self.amiss[f"{type(error).__name__}: {first[:160]}"] += 1

    def _made(self, call: Call, out: Any, begun: Begun, ended: Later, until: float) -> None:
        asked = call.asked(where(), self._masks)
        entry = self._entries.get(asked) or self._entry(asked, call)
        if not call.whole:
            ended.to(entry)
            self.tally.within_gradient(ended)
        self.tally.called(entry, begun.since, until)
        self._begun()
        if entry.site is None or call.whole:
            self.amiss[WHOLE if call.whole else entry.why] += 1
        out = out[0] if isinstance(out, tuple) else out
        if asked.gradients and isinstance(out, Tensor) and out.requires_grad:
            ends = (call.q, call.k, call.v, call.attn_mask, call.bias)
            watch(out, ends, entry, self.tally, begun.clock)

    def _entry(self, asked: Asked, call: Call) -> Entry:
        site, samples, why = None, "", ""
        try:
            site = site_of(asked)
        except CantBeDone as error:
            why = str(error)
        plain = has_data(call.q) and call.q.dim() == 4 and mapped(call.q, call.k, call.v) == 1
        if site and self.samples and plain:
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
        by_host = not self.clocks.events.used
        steps = self.steps.told(by_host=by_host)
        skipped = self.samples is not None and bool(self.samples.skipped)
        return Calls(
            sites=[*self.tally.sites(), *self.compiled.sites],
            header={
                "torch": torch.__version__, "python": platform.python_version(),
                "threads": self.tally.working_threads(), "processes": 1,
            },
            unseen=sentences(self.compiled, self.amiss, self.written, skipped=skipped),
            complete=complete,
            wall_s=self.tally.window(looking=not by_host),
            attention_s=self.tally.attention_s(), **steps,
        )  # fmt: skip
