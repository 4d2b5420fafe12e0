"""Variants as the sides of pairs, in one process; each result is held against what is right."""

from __future__ import annotations

from attnbench.measure.job import Ready, prepare
from attnbench.pairs import Pairs, Rule, compare
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

    def check(self) -> None:
        """Raise :class:`Wrong` where a timed call gave something else."""
        self._timed.settle()
        if (changed := self._timed.wrong()) is not None:
            raise Wrong(f"{self.ready.job.variant.label}: {changed}")


def compare_ready(a: Ready, b: Ready, rule: Rule) -> Pairs:
    """The comparison of two variants in this process; their calls are checked to the last."""
    sides = Calls(a), Calls(b)
    pairs = compare(*sides, rule)
    for side in sides:
        side.check()
    return pairs
