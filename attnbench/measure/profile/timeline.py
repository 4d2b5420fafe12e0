"""Memory over one call: what is alive when, and which line of the variant's code allocated it.

The profiler's tree of events has every allocation with its address, inside the operator that made
it and between the marks of :mod:`attnbench.measure.profile.lines`. What the function of a gradient
allocates has the line whose forward operator that function belongs to: autograd numbers both alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attnbench.measure.events import ALLOCATES, OPERATORS, said
from attnbench.measure.profile.lines import MARK

FORWARD, BACKWARD = "attnbench: forward", "attnbench: backward"
EVALUATES = "autograd::engine::evaluate_function: "
"""How the names of autograd's own events begin."""
ARRAYS = "array"
"""What stands for an operator where Python's own allocators gave the memory, as for NumPy."""
SMALL = 1 << 16
"""Beneath this, what Python's own allocators gave is no array."""


class Source(NamedTuple):
    """What allocated: a line (``FILE:N``, or empty), an operator, and whether in backward."""

    place: str
    operator: str
    backward: bool


class Step(NamedTuple):
    """An instant, and the bytes that a source gained or lost."""

    at_ns: int
    source: Source
    nbytes: int


class Span(NamedTuple):
    """A stretch of time, and the line that was at work in it."""

    start_ns: int
    place: str
    backward: bool
    gradient: str = ""
    """The function of autograd's that was at work: ``BmmBackward0``."""


@dataclass
class Timeline:
    """One call."""

    steps: list[Step] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """In order; each lasts to the next."""
    start_ns: int = 0
    turn_ns: int | None = None
    """Where backward begins."""
    end_ns: int = 0


class Reader:
    """Walks the tree in the order of time, knowing which line it is at."""

    def __init__(self, device: str, arrays: Sequence[tuple[int, int]]) -> None:
        self.found = Timeline()
        self._device, self._arrays = device, _Arrays(arrays)
        self._place, self._backward = "", False
        self._alive: dict[tuple[int, int], tuple[Source, int]] = {}
        self._lines: dict[int, str] = {}
        self._numbers: list[int] = []
        self._operators: list[str] = []
        self._gradient = ""

    def read(self, roots: Iterable[Any]) -> Timeline:
        """The call between the forward's beginning and the last end."""
        for node in _in_order(roots):
            self._visit(node)
        self.found.steps += self._arrays.steps
        self.found.steps.sort(key=lambda step: step.at_ns)
        return self.found

    def _visit(self, node: Any) -> None:
        name = node.name
        if hasattr(node.extra_fields, "alloc_size"):
            self._allocation(node)
        elif name.startswith(MARK):
            self._arrays.mark(node.start_time_ns, Source(self._place, ARRAYS, self._backward))
            self._go_to(name.removeprefix(MARK), node.start_time_ns)
        elif name in (FORWARD, BACKWARD):
            self._phase(node)
        else:
            self._operator(node)

    def _phase(self, node: Any) -> None:
        self._backward = node.name == BACKWARD
        if self._backward:
            self._numbers = sorted(self._lines)
            self.found.turn_ns = node.start_time_ns
        else:
            self.found.start_ns = node.start_time_ns
        self._go_to("", node.start_time_ns)
        for child in _in_order(node.children):
            self._visit(child)
        self.found.end_ns = node.end_time_ns
        self._go_to("", node.end_time_ns)

    def _operator(self, node: Any) -> None:
        number = getattr(node.extra_fields, "sequence_number", -1)
        place, gradient = self._place, self._gradient
        known = self._numbers and 0 <= number <= self._numbers[-1]
        if self._backward and node.name.startswith(EVALUATES):
            self._gradient = node.name.removeprefix(EVALUATES).rpartition("::")[2]
        if self._backward and known:
            at = bisect_right(self._numbers, number) - 1
            self._go_to(self._lines[self._numbers[max(at, 0)]], node.start_time_ns)
        elif number >= 0 and place:
            self._lines[number] = place
        self._operators.append(node.name)
        for child in _in_order(node.children):
            self._visit(child)
        self._operators.pop()
        self._gradient = gradient
        if self._backward and known:
            self._go_to(place, node.end_time_ns)

    def _go_to(self, place: str, at_ns: int) -> None:
        self._place = place
        self.found.spans.append(Span(at_ns, place, self._backward, self._gradient))

    def _allocation(self, node: Any) -> None:
        fields = node.extra_fields
        if fields.device.type != self._device:
            return
        key, nbytes = (fields.device.index or 0, fields.ptr), fields.alloc_size
        if nbytes > 0:
            source = Source(self._place, _operator_of(self._operators), self._backward)
            self._alive[key] = (source, nbytes)
        elif key in self._alive:
            source, there = self._alive.pop(key)
            nbytes = -there
        else:
            return  # it was there before the call
        self.found.steps.append(Step(node.start_time_ns, source, nbytes))


class _Arrays:
    """What Python's allocators say at each mark, as steps; the last that was taken goes first."""

    def __init__(self, readings: Sequence[tuple[int, int]]) -> None:
        self._readings = iter(readings)
        self._before: tuple[int, int] | None = None
        self._held: list[tuple[Source, int]] = []
        self.steps: list[Step] = []

    def mark(self, at_ns: int, source: Source) -> None:
        """A line has ended that ``source`` names."""
        reading = next(self._readings, None)
        if reading is None:
            return
        held, most = reading
        if self._before is not None:
            then_ns, base = self._before
            if (scratch := most - max(base, held)) > SMALL:
                self.steps += [Step(then_ns, source, scratch), Step(at_ns, source, -scratch)]
            if (more := held - base) > SMALL:
                self._held.append((source, more))
                self.steps.append(Step(then_ns, source, more))
            elif more < -SMALL:
                self._give_back(at_ns, -more)
        self._before = (at_ns, held)

    def _give_back(self, at_ns: int, nbytes: int) -> None:
        while self._held and nbytes > 0:
            source, there = self._held.pop()
            self.steps.append(Step(at_ns, source, -min(there, nbytes)))
            if there > nbytes:
                self._held.append((source, there - nbytes))
            nbytes -= there


def _in_order(nodes: Iterable[Any]) -> list[Any]:
    return sorted(nodes, key=lambda node: node.start_time_ns)


def _operator_of(around: Sequence[str]) -> str:
    """The innermost operator that asked for memory on its own behalf."""
    ran = [name for name in around if name.startswith(OPERATORS)]
    own = [name for name in ran if not name.startswith(ALLOCATES)]
    return said((own or ran or list(around) or [""])[-1])
