"""The seconds of a call's gradient: from where its backward pass enters to where it leaves.

The nodes that a call added to the graph lie between its output and its inputs. The engine runs the
youngest node that is ready, so they follow one another; a hook before the first and one after the
oldest see the time of all. What is recorded in between (a checkpoint that computes attention again)
is counted there and taken off here, as is the time that it took to look at it. The hooks hold no
tensor, and belong to the graph's nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any

from torch import Tensor

from attnbench.models.capture.clocks import Host
from attnbench.models.capture.tally import Entry, Later, Tally

MOST = 48
"""Nodes of a call; where there are more, nobody waits for its gradient."""


class Gradient:
    """The hooks of one call."""

    __slots__ = ("_begun", "_clock", "_entry", "_looked", "_tally", "_within")

    def __init__(self, entry: Entry, tally: Tally, clock: Host) -> None:
        self._entry, self._tally, self._clock = entry, tally, clock
        self._begun: Any = None
        self._looked = 0.0
        self._within: list[Later] = []

    def enter(self, _: Any) -> None:
        """Before the first node."""
        counts = self._tally.mine()
        self._looked = counts.looked
        self._within = counts.within = []
        self._begun = self._clock.begin()

    def leave(self, *_: Any) -> None:
        """After the oldest one."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            counts = self._tally.mine()
            less = counts.looked - self._looked
            self._clock.end(begun, self._entry, backward=True, less=less)
            counts.ended(perf_counter())
            for call in self._within:
                call.off(self._entry)
            if counts.within is self._within:
                counts.within = None


def watch(
    out: Tensor, ends: Iterable[Tensor | None], entry: Entry, tally: Tally, clock: Host
) -> None:
    """Put the hooks on what a call added to the graph."""
    first = out.grad_fn
    if first is None:
        return
    stop = {x.grad_fn for x in ends if x is not None and x.grad_fn is not None}
    oldest = _oldest(first, stop)
    if oldest is not None:
        gradient = Gradient(entry, tally, clock)
        first.register_prehook(gradient.enter)
        oldest.register_hook(gradient.leave)


def _oldest(first: Any, stop: set[Any]) -> Any:
    found, todo = set[Any](), [first]
    while todo:
        node = todo.pop()
        if node in stop or node in found or type(node).__name__ == "AccumulateGrad":
            continue
        if len(found) >= MOST:
            return None
        found.add(node)
        todo += [n for n, _ in node.next_functions if n is not None]
    return min(found, key=lambda n: n._sequence_nr(), default=None)
