"""Variants as the sides of pairs, in one process; each result is held against what is right."""

from __future__ import annotations

import statistics
from time import perf_counter

import torch

from attnbench.measure.audit import MORE_PROCESSORS
from attnbench.measure.job import Ready, prepare
from attnbench.measure.meters import MORE, MORE_S, SURE, Implausible, audited
from attnbench.measure.shared import state
from attnbench.pairs import Pairs, Rule, compare
from attnbench.truth.demand import demanded
from attnbench.truth.findings import Wrong


class Calls:
    """A variant that has passed the gate, as one side of pairs."""

    WARM = 3

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self.clock = ready.clock()
        self._timed = ready.timed()
        self._kept = [self._timed]
        """Earlier tensors keep their place, or the next would get it."""

    def fresh(self) -> None:
        """Tensors elsewhere."""
        self.check()
        self._kept = [*self._kept[-1:], self._timed]
        self._timed = self.ready.timed()
        prepare(self.clock, self._timed)
        self.clock.samples(self._timed.before, self._timed.run, self.WARM)

    def sample(self) -> float:
        """One call, every result held against what is right."""
        return self.clock.samples(self._timed.before, self._timed.run, 1)[0]

    def audit(self, seconds: float) -> None:
        """Raise where calls can't have taken so long: looked at as they are in a sweep."""
        label = self.ready.job.variant.label
        for _ in range(SURE):
            try:
                _, slowest = audited(self.ready, self._timed, self.clock, seconds)
            except (Wrong, Implausible) as why:
                raise Wrong(f"{label}: {why}") from None
            if slowest < MORE * seconds + MORE_S:
                return
        raise Wrong(
            f"{label}: it took {seconds * 1e3:.3g} ms in pairs and {slowest * 1e3:.3g} ms while "
            "something else was looked at"
        )

    def check(self) -> None:
        """Raise :class:`Wrong` where a timed call gave something else."""
        self._timed.settle()
        if (changed := self._timed.wrong()) is not None:
            raise Wrong(f"{self.ready.job.variant.label}: {changed}")


def compare_ready(a: Ready, b: Ready, rule: Rule, *, audit: bool = False) -> Pairs:
    """The comparison of two variants in this process; their calls are checked to the last.

    ``audit``: and then looked at otherwise than by the clock.
    """
    sides = Calls(a), Calls(b)
    start, wanted = perf_counter(), demanded()
    pairs = compare(*sides, rule)
    for side in sides:
        side.check()
    if audit:
        both = " or ".join(ready.job.variant.label for ready in (a, b))
        _check_shared(a, both)
        busy, threads = (demanded() - wanted) / (perf_counter() - start), torch.get_num_threads()
        if a.job.problem.device == "cpu" and busy > MORE_PROCESSORS * threads:
            raise Wrong(
                f"{both}: while pairs were taken {busy:.2g} processors were busy, not {threads}"
            )
        for side, seconds in zip(sides, (pairs.a_s, pairs.b_s), strict=True):
            side.audit(statistics.median(seconds))
        _check_shared(a, both)  # now, when no call comes after
    return pairs


def _check_shared(first: Ready, both: str) -> None:
    if (left := state.said(first.shared)) is not None:
        raise Wrong(f"{both}: {left}")
