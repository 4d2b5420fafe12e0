"""One call as a timeline: which line of code ran when, and what was alive that it had allocated."""

from __future__ import annotations

import linecache
import sys
import tracemalloc
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from torch._C._profiler import _RecordFunctionFast

from attnbench.meter.memory import ALLOCATES, OPERATORS, shown_name

MARK = "attnbench line: "
FORWARD, BACKWARD = "attnbench: forward", "attnbench: backward"
EVALUATES = "autograd::engine::evaluate_function: "  # prefix of autograd's own events
ARRAYS, LEAST_ARRAY = "array", 1 << 16
"""The operator's name where Python's own allocators gave the memory, as for NumPy, and the fewest
bytes from them that are an array."""


class Marks:
    """Puts a mark into the profile at each line of the variant's code."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self.arrays: list[tuple[int, int]] = []
        """Where Python's allocators are traced: bytes they hold at each mark, and the most since
        the one before."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Set marks inside the block."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, what: str, _: Any) -> Any:
        return self._follow if self._own(frame) else None

    def _follow(self, frame: FrameType, what: str, _: Any) -> Any:
        """For every line of such a function, and its end: the line of its caller goes on."""
        at: FrameType | None = frame
        if what == "return":
            at = frame.f_back
            while at is not None and not self._own(at):
                at = at.f_back
        if what in ("line", "return"):
            if tracemalloc.is_tracing():
                self.arrays.append(tracemalloc.get_traced_memory())
                tracemalloc.reset_peak()
            place = "" if at is None else f"{at.f_code.co_filename}:{at.f_lineno}"
            with _RecordFunctionFast(MARK + place):
                pass
        return self._follow

    def _own(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._files)


class Source(NamedTuple):
    """What allocated: a line (``FILE:N``, or empty), an operator, and whether in backward."""

    place: str
    operator: str
    backward: bool


class Timeline:
    """A call's steps of memory and its lines, from the profiler's tree of events."""

    def __init__(
        self, roots: Iterable[Any], device: str, arrays: Sequence[tuple[int, int]]
    ) -> None:
        """``arrays``: as :class:`Marks` has them."""
        self.steps: list[tuple[int, Source, int]] = []
        """Nanoseconds, and the bytes that a source gained or lost then."""
        self.spans: list[tuple[int, str, bool, str]] = []
        """When a line began to run, whether for its gradient, and autograd's function; it runs
        until the next begins."""
        self.start_ns, self.end_ns = 0, 0
        self.turn_ns: int | None = None  # where backward begins
        self._device, self._readings = device, iter(arrays)
        self._before: tuple[int, int] | None = None
        self._arrays: list[tuple[Source, int]] = []
        self._place, self._backward, self._gradient = "", False, ""
        self._alive: dict[tuple[int, int], tuple[Source, int]] = {}
        self._lines: dict[int, str] = {}
        """The line of each operator in forward, by autograd's sequence number."""
        self._numbers: list[int] = []
        self._around: list[str] = []
        self._visit(roots)
        self.steps.sort(key=itemgetter(0))

    def _visit(self, nodes: Iterable[Any]) -> None:
        for node in sorted(nodes, key=lambda node: node.start_time_ns):
            if hasattr(node.extra_fields, "alloc_size"):
                self._allocation(node)
            elif node.name.startswith(MARK):
                self._read_arrays(node.start_time_ns)
                self._go_to(node.name.removeprefix(MARK), node.start_time_ns)
            elif node.name in (FORWARD, BACKWARD):
                self._phase(node)
            else:
                self._operator(node)

    def _phase(self, node: Any) -> None:
        self._backward = node.name == BACKWARD
        if self._backward:
            self._numbers, self.turn_ns = sorted(self._lines), node.start_time_ns
        else:
            self.start_ns = node.start_time_ns
        self._go_to("", node.start_time_ns)
        self._visit(node.children)
        self.end_ns = node.end_time_ns
        self._go_to("", node.end_time_ns)

    def _operator(self, node: Any) -> None:
        number = getattr(node.extra_fields, "sequence_number", -1)
        place, gradient = self._place, self._gradient
        known = self._backward and self._numbers and 0 <= number <= self._numbers[-1]
        if self._backward and node.name.startswith(EVALUATES):
            self._gradient = node.name.removeprefix(EVALUATES).rpartition("::")[2]
        if known:
            at = bisect_right(self._numbers, number) - 1
            self._go_to(self._lines[self._numbers[max(at, 0)]], node.start_time_ns)
        elif number >= 0 and place:
            self._lines[number] = place
        self._around.append(node.name)
        self._visit(node.children)
        self._around.pop()
        self._gradient = gradient
        if known:
            self._go_to(place, node.end_time_ns)

    def _go_to(self, place: str, at_ns: int) -> None:
        self._place = place
        self.spans.append((at_ns, place, self._backward, self._gradient))

    def _allocation(self, node: Any) -> None:
        fields = node.extra_fields
        if fields.device.type != self._device:
            return
        key, nbytes = (fields.device.index or 0, fields.ptr), fields.alloc_size
        if nbytes > 0:
            ran = [name for name in self._around if name.startswith(OPERATORS)]
            own = [name for name in ran if not name.startswith(ALLOCATES)]
            operator = shown_name((own or ran or self._around or [""])[-1])  # the innermost
            self._alive[key] = source, _ = Source(self._place, operator, self._backward), nbytes
        elif key in self._alive:
            source, there = self._alive.pop(key)
            nbytes = -there
        else:
            return  # it was there before the call
        self.steps.append((node.start_time_ns, source, nbytes))

    def _read_arrays(self, at_ns: int) -> None:
        """The line that ran has ended: what Python's allocators gave it and took back."""
        if (reading := next(self._readings, None)) is None:
            return
        (held, most), source = reading, Source(self._place, ARRAYS, self._backward)
        then_ns, base = self._before or (at_ns, held)
        if self._before and (scratch := most - max(base, held)) > LEAST_ARRAY:
            self.steps += [(then_ns, source, scratch), (at_ns, source, -scratch)]
        if (more := held - base) > LEAST_ARRAY:
            self._arrays.append((source, more))
            self.steps.append((then_ns, source, more))
        freed = base - held if base - held > LEAST_ARRAY else 0
        while self._arrays and freed > 0:  # the last array is freed first
            source, there = self._arrays.pop()
            self.steps.append((at_ns, source, -min(there, freed)))
            if there > freed:
                self._arrays.append((source, there - freed))
            freed -= there
        self._before = (at_ns, held)


MOST_MOMENTS = 1200
MOST_SOURCES = 8
"""How many sources are listed for their bytes at the peak, and as many more for their bytes over
time; the others are summed."""
REST = Source("", "all the rest", False)
TINY = 64  # allocations of fewer bytes are scalars, and not listed
ALIKE = 0.01


def moments(totals: Sequence[int], most: int = MOST_MOMENTS) -> list[int]:
    """Which steps are shown: all, or of each stretch the highest and the last."""
    n = len(totals)
    if n <= most:
        return list(range(n))
    length = -(-n // (most // 2))
    stretches = [range(i, min(i + length, n)) for i in range(0, n, length)]
    return sorted({at for s in stretches for at in (max(s, key=totals.__getitem__), s[-1])})


def memory_values(timeline: Timeline) -> dict[str, Any]:
    """The peak, and what is alive over time by the sources that had most."""
    at_ns = np.array([at for at, _, _ in timeline.steps], dtype=np.int64)
    gained = np.array([nbytes for _, _, nbytes in timeline.steps], dtype=np.int64)
    totals, turn = gained.cumsum(), timeline.turn_ns
    kept = moments(totals.tolist())
    top = int(totals.argmax()) if kept else -1
    peak, peak_ns = (int(totals[top]), int(at_ns[top])) if kept else (0, timeline.start_ns)
    turned = 0 if turn is None else int(np.searchsorted(at_ns, turn))
    held: dict[Source, int] = defaultdict(int)
    area: dict[Source, int] = defaultdict(int)
    for number, (at, source, nbytes) in enumerate(timeline.steps):
        held[source] += nbytes * (number <= top)
        area[source] += nbytes * (timeline.end_ns - at)
    listed = sorted((s for s in held if held[s]), key=lambda s: -held[s])[:MOST_SOURCES]
    others = sorted(area.keys() - set(listed), key=lambda s: -area[s])
    listed += others[:MOST_SOURCES] + [REST] * (len(others) > MOST_SOURCES)
    column = {source: number for number, source in enumerate(listed)}
    of = np.array([column.get(s, len(listed) - 1) for _, s, _ in timeline.steps], dtype=np.int64)
    alive = [np.where(of == n, gained, 0).cumsum()[kept].tolist() for n in range(len(listed))]

    def ms(at: int) -> float:
        return (at - timeline.start_ns) * 1e-6

    return {
        "peak_bytes": peak,
        "peak_ms": ms(peak_ns),
        "peak_phase": "backward" if turn is not None and peak_ns >= turn else "forward",
        "turn_ms": None if turn is None else ms(turn),
        "turn_bytes": None if turn is None else int(totals[turned - 1]) if turned else 0,
        "end_ms": ms(timeline.end_ns),
        "largest": _largest(timeline.steps),
        "at_ms": [ms(int(at_ns[n])) for n in kept],
        "sources": [
            {
                "place": _place(source.place),
                "code": _code(source.place),
                "operator": source.operator,
                "backward": source.backward,
                "peak_bytes": of_it[kept.index(top)],
                "most_bytes": max(of_it),
            }
            for source, of_it in zip(listed, alive, strict=True)
        ],
        "alive": [list(row) for row in zip(*alive, strict=True)],
    }


def _largest(steps: Iterable[tuple[int, Source, int]]) -> dict[str, Any]:
    """The largest single allocation, and how many were as large (to a hundredth)."""
    made = [(nbytes, source) for _, source, nbytes in steps if nbytes > 0]
    most = max((nbytes for nbytes, _ in made), default=0)
    alike = [source for nbytes, source in made if nbytes >= (1 - ALIKE) * most]
    return {"bytes": most, "count": len(alike), "forward": sum(not s.backward for s in alike)}


def line_values(timeline: Timeline, memory: dict[str, Any], *, timed: bool) -> list[dict[str, Any]]:
    """Each line's share of the time, with what its gradient takes, and the bytes it allocated."""
    spent: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    functions: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    ends = [*(start for start, *_ in timeline.spans[1:]), timeline.end_ns]
    for (start, place, backward, function), end in zip(timeline.spans, ends, strict=True):
        spent[place][backward] += max(0, end - start)
        functions[place][function] += max(0, end - start) * backward
    spent.pop("", None)
    allocated: dict[str, int] = defaultdict(int)
    for _, source, nbytes in timeline.steps:
        allocated[source.place] += nbytes if nbytes > TINY else 0
    at_peak: dict[str, int] = defaultdict(int)
    for listed in memory["sources"]:
        at_peak[listed["place"]] += listed["peak_bytes"]
    whole = max(1, timeline.end_ns - timeline.start_ns)
    return [
        {
            "place": _place(place),
            "code": _code(place),
            "forward_share": forward / whole if timed else None,
            "backward_share": backward / whole if timed else None,
            "gradient": max(functions[place], key=functions[place].__getitem__) if backward else "",
            "allocated_bytes": allocated[place],
            "peak_bytes": at_peak[_place(place)],
        }
        for place, (forward, backward) in sorted(spent.items(), key=lambda x: -sum(x[1]) * timed)
        if allocated[place] or (timed and forward > 0.001 * whole)
    ]


def _place(place: str) -> str:
    """``einsum.py:22``"""
    return place.rpartition("/")[2]


def _code(place: str) -> str:
    """The line itself."""
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file else ""
