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


Named = tuple[str, Any]


class Own(NamedTuple):
    """An operator's event, without the operators that it called."""

    event: Any
    name: str
    nanoseconds: int
    allocated: int
    """Bytes, whatever became of them; none where allocations were not asked for."""
    called: list[Any]
    """The events of the operators that it called itself."""


def said(name: str) -> str:
    """The name as it is told: a compiled graph's without its hash."""
    return "compiled graph" if name.startswith(COMPILED) else name


def named(events: Iterable[Any]) -> list[Named]:
    """The events with their names, which are dear to ask for."""
    return [(event.name(), event) for event in events]


def own_of(events: Iterable[Named], names: tuple[str, ...] = OPERATORS, *,
           allocations: bool = False) -> Iterator[Own]:  # fmt: skip
    """Each operator that ran, with what is its own and not of one inside it."""
    wanted = (*names, MEMORY) if allocations else names
    by_thread: dict[int, list[_Call]] = {}
    for number, (name, event) in enumerate(events):
        if name.startswith(wanted):
            calls = by_thread.setdefault(event.start_thread_id(), [])
            calls.append((event.start_ns(), -event.duration_ns(), number, name, event))
    for calls in by_thread.values():
        yield from _of_thread(sorted(calls))


_Call = tuple[int, int, int, str, Any]
"""Start; less the time that it took, as the longer of two that start at once called the other;
number, name and event."""


def _of_thread(calls: list[_Call]) -> Iterator[Own]:
    own, allocated = [-minus for _, minus, *_ in calls], [0] * len(calls)
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
    for at, (_, _, _, name, event) in enumerate(calls):
        if name != MEMORY:
            yield Own(event, name, own[at], allocated[at], called[at])
