"""The clock of what several ranks do: each reads its own, and a call takes as long as the slowest.

All begin together, at a barrier that is not counted, and each counts until its own part is done; of
a training step, its forward and its backward part. What the worker does to lay tensors down and to
take them up is in none of it.
"""

from __future__ import annotations

from typing import Protocol

from attnbench.measure.gpu import Step


class Spending(Protocol):
    """Whoever knows what each rank has spent."""

    spent: list[float]

    def begin(self) -> None:
        """Count from here."""

    def check(self) -> None:
        """Raise where a rank has left something changed."""


class RanksClock:
    """Seconds of the slowest rank."""

    name = "ranks"

    def __init__(self, ranks: Spending) -> None:
        self.ranks = ranks
        self.taken: list[list[float]] = []
        """Of every sample, what each rank took."""

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """One call a sample; a forward pass that ``before`` makes is not counted."""
        for _ in range(count):
            before()
            self.ranks.begin()
            kept = call()
            self.taken.append(list(self.ranks.spent))  # what comes next adds to it
            del kept
        return [max(each) for each in self.taken[-count:]]
