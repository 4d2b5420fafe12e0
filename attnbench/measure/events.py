"""What the profiler's events say: how much time of each is its own, and what it allocated itself.

From the events themselves: torch's own tables of them take longer than most variants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

OPERATORS = ("aten::", "torch_", "triton_", "mkldnn::", "quantized::", "Torch-Compiled")
"""How the names of what computes begin; the rest is the profiler's and autograd's bookkeeping."""
COMPILED = "## Call CompiledFxGraph"
"""How the name of a compiled graph's call begins; its hash follows."""
ALLOCATES = ("aten::empty", "aten::new_empty", "aten::resize_")
"""Of those, the ones that allocate on behalf of another, which fills what they give."""
MEMORY = "[memory]"
"""The name of an allocation, or of a release."""


class Own(NamedTuple):
    """An operator's event, without the operators that it called."""

    event: Any
    name: str
    nanoseconds: int
    allocated: int
    """Bytes, whatever became of them."""
    called: list[Any]
    """The events of the operators that it called itself."""


def said(name: str) -> str:
    """The name as it is told: a compiled graph's without its hash."""
    return "compiled graph" if name.startswith(COMPILED) else name


def own_of(events: Iterable[Any], names: tuple[str, ...] = OPERATORS) -> Iterator[Own]:
    """Each operator that ran, with what is its own and not of one inside it."""
    by_thread: dict[int, list[_Call]] = {}
    for number, event in enumerate(events):
        if (name := event.name()).startswith(names) or name == MEMORY:
            calls = by_thread.setdefault(event.start_thread_id(), [])
            calls.append(_Call(event.start_ns(), -event.duration_ns(), number, name, event))
    for calls in by_thread.values():
        yield from _of_thread(sorted(calls))


class _Call(NamedTuple):
    start: int
    minus: int
    """Less the time that it took: of two that start at once, the longer called the other."""
    number: int
    name: str
    event: Any


def _of_thread(calls: list[_Call]) -> Iterator[Own]:
    own, allocated = [-call.minus for call in calls], [0] * len(calls)
    called: list[list[Any]] = [[] for _ in calls]
    within: list[tuple[int, int]] = []  # the calls that are not over: when they will be, and which
    for at, (start, minus, _, name, event) in enumerate(calls):
        while within and within[-1][0] <= start:
            within.pop()
        if within and name == MEMORY:
            allocated[within[-1][1]] += max(0, event.nbytes())
        elif within:
            own[within[-1][1]] += minus
            called[within[-1][1]].append(event)
        if name != MEMORY:
            within.append((start - minus, at))
    for at, call in enumerate(calls):
        if call.name != MEMORY:
            yield Own(call.event, call.name, own[at], allocated[at], called[at])
