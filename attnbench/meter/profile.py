"""Where a call's time goes: its operators, its timeline, its lines of code."""

from __future__ import annotations

import inspect
import linecache
import os
import shutil
import sys
import tempfile
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import prod
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._C._profiler import _RecordFunctionFast
from torch.profiler import ProfilerActivity, profile, record_function

import impls
from attnbench.core.record import Record, Status
from attnbench.gate.inputs import Call
from attnbench.meter.cell import Bench, NotReady
from attnbench.meter.clocks import clock_for
from attnbench.meter.memory import (
    ALLOCATES,
    ARRAY_BYTES,
    COMPILED,
    OPERATORS,
    Own,
    named,
    observe,
    own_of,
    said,
    warm_profiler,
)
from attnbench.meter.ranks import runs_over_ranks
from attnbench.meter.timed import Job, Ready
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Variant

MARK = "attnbench line: "


def files_of(variant: Variant) -> tuple[str, ...]:
    """Where a variant's code lies: the table's package, and its own file (its core's too)."""
    own = [inspect.getfile(load_function(v.build)) for v in (variant, variant.core) if v]
    return (str(Path(impls.__file__).parent), *own)


class Marks:
    """The marks that were set. ``arrays``: bytes that Python's allocators hold at each, and the
    most since the one before, where they are traced.
    """

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self.arrays: list[tuple[int, int]] = []

    def enter(self, frame: FrameType, what: str, _: Any) -> Any:
        """For every function that is called: follow its lines if it is the variant's."""
        return self.follow if self._own(frame) else None

    def follow(self, frame: FrameType, what: str, _: Any) -> Any:
        """For every line, and the end, of such a function."""
        at: FrameType | None = frame
        if what == "return":
            at = frame.f_back
            while at is not None and not self._own(at):
                at = at.f_back
        if what in ("line", "return"):
            self._set("" if at is None else f"{at.f_code.co_filename}:{at.f_lineno}")
        return self.follow

    def _own(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._files)

    def _set(self, place: str) -> None:
        if tracemalloc.is_tracing():
            self.arrays.append(tracemalloc.get_traced_memory())
            tracemalloc.reset_peak()
        with _RecordFunctionFast(MARK + place):
            pass


@contextmanager
def marked(files: tuple[str, ...]) -> Iterator[Marks]:
    """Set marks inside the block."""
    marks, before = Marks(files), sys.gettrace()
    sys.settrace(marks.enter)
    try:
        yield marks
    finally:
        sys.settrace(before)


BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "bool": 1, "long int": 8,
    "int": 4, "c10::complex<float>": 8, "unsigned char": 1,
}  # fmt: skip
"""Of one number, by the name the profiler has for its type; others are no tensors."""
OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_")
"""They write what they are given and do not read it."""


class Window(NamedTuple):
    """A phase of one call: when it ran."""

    phase: str
    start_ns: int
    end_ns: int


@dataclass
class OperatorTime:
    """An operator in a phase, all its calls together."""

    nanoseconds: int = 0
    calls: int = 0
    flops: int = 0
    moved: int = 0
    """Bytes of its operands and of what it made: what it must read and write at the least."""

    def to_dict(self, name: str, rounds: int, phase_ns: float) -> dict[str, Any]:
        """A call's share of it. ``flops`` and ``bytes`` are None where torch does not know them."""
        seconds = self.nanoseconds / rounds * 1e-9
        flops = self.flops / rounds or None
        return {
            "name": name,
            "self_s": seconds,
            "share": seconds * 1e9 / phase_ns if phase_ns else 0.0,
            "calls": self.calls / rounds,
            "flops": flops,
            "bytes": self.moved / rounds or None,
            "flop_rate": flops / seconds if flops and seconds else None,
        }


class When:
    """Finds the window that an instant falls into."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows = sorted(windows, key=lambda w: w.start_ns)
        self._starts = [w.start_ns for w in self._windows]

    def phase(self, at_ns: int) -> str | None:
        """None outside of all."""
        number = bisect_right(self._starts, at_ns) - 1
        inside = number >= 0 and at_ns < self._windows[number].end_ns
        return self._windows[number].phase if inside else None


def operators(events: Sequence[Any], when: When) -> dict[str, dict[str, OperatorTime]]:
    """Operators of the host, by phase and name."""
    found: dict[str, dict[str, OperatorTime]] = {}
    for own in own_of(named(events), (*OPERATORS, COMPILED), allocations=True):
        if (phase := when.phase(own.event.start_ns())) is not None:
            spent = found.setdefault(phase, {}).setdefault(said(own.name), OperatorTime())
            spent.nanoseconds += own.nanoseconds
            spent.calls += 1
            spent.flops += own.event.flops()
            spent.moved += _moved(own)
    return found


def kernels(events: Sequence[Any], when: When) -> dict[str, dict[str, OperatorTime]]:
    """Kernels of the device, by the phase of the operator that launched each."""
    launched = {  # the driver's own calls are linked to an operator, and number themselves anew
        e.correlation_id(): e
        for e in events
        if _on(e, "CPU") and e.correlation_id() > 0 and not e.linked_correlation_id()
    }
    found: dict[str, dict[str, OperatorTime]] = {}
    for event in events:
        if not _on(event, "CUDA") or event.is_user_annotation():
            continue
        by = launched.get(event.linked_correlation_id())
        phase = when.phase(by.start_ns()) if by is not None else None
        if by is not None and phase is not None:
            spent = found.setdefault(phase, {}).setdefault(event.name(), OperatorTime())
            spent.nanoseconds += event.duration_ns()
            spent.calls += 1
            spent.flops += by.flops()
    return found


def _on(event: Any, device: str) -> bool:
    return bool(event.device_type() == getattr(torch.autograd.DeviceType, device))


def _moved(own: Own) -> int:
    """Bytes of what an operator was given and made, unless it handed all of it on to another."""
    given = _given(own.event)
    if not given or any(_given(event) >= given for event in own.called):
        return 0
    return given + own.allocated


def _given(event: Any) -> int:
    """Bytes of the tensors that an operator reads or writes over; twice where it does both."""
    name, kind = event.name(), _kind(event.name())
    if kind == "view" or name.startswith(ALLOCATES):
        return 0
    sizes = [
        prod(shape) * BYTES[dtype]
        for shape, dtype in zip(event.shapes(), event.dtypes(), strict=False)
        if dtype in BYTES
    ]
    if kind == "in place" and name not in OVERWRITES and sizes:
        sizes.append(sizes[0])
    return sum(sizes)


@cache
def _kind(name: str) -> str:
    """``view``, ``in place`` or ``new``, as the operator's own schema says."""
    schemas = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    returned = [r.alias_info for schema in schemas for r in schema.returns]
    aliases = [alias for alias in returned if alias is not None]
    if aliases and not any(alias.is_write for alias in aliases):
        return "view"
    return "in place" if aliases and name.endswith("_") else "new"


FORWARD, BACKWARD = "attnbench: forward", "attnbench: backward"
EVALUATES = "autograd::engine::evaluate_function: "
"""How the names of autograd's own events begin."""
ARRAYS = "array"
"""What stands for an operator where Python's own allocators gave the memory, as for NumPy."""
TIMELINE_SMALL = 1 << 16
"""Beneath this, what Python's own allocators gave is no array."""


class Allocator(NamedTuple):
    """What allocated: a line (``FILE:N``, or empty), an operator, and whether in backward."""

    place: str
    operator: str
    backward: bool


class Step(NamedTuple):
    """An instant, and the bytes that a source gained or lost."""

    at_ns: int
    source: Allocator
    nbytes: int


class LineSpan(NamedTuple):
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
    spans: list[LineSpan] = field(default_factory=list)
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
        self._alive: dict[tuple[int, int], tuple[Allocator, int]] = {}
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
            self._arrays.mark(node.start_time_ns, Allocator(self._place, ARRAYS, self._backward))
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
        self.found.spans.append(LineSpan(at_ns, place, self._backward, self._gradient))

    def _allocation(self, node: Any) -> None:
        fields = node.extra_fields
        if fields.device.type != self._device:
            return
        key, nbytes = (fields.device.index or 0, fields.ptr), fields.alloc_size
        if nbytes > 0:
            source = Allocator(self._place, _operator_of(self._operators), self._backward)
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
        self._held: list[tuple[Allocator, int]] = []
        self.steps: list[Step] = []

    def mark(self, at_ns: int, source: Allocator) -> None:
        """A line has ended that ``source`` names."""
        reading = next(self._readings, None)
        if reading is None:
            return
        held, most = reading
        if self._before is not None:
            then_ns, base = self._before
            if (scratch := most - max(base, held)) > TIMELINE_SMALL:
                self.steps += [Step(then_ns, source, scratch), Step(at_ns, source, -scratch)]
            if (more := held - base) > TIMELINE_SMALL:
                self._held.append((source, more))
                self.steps.append(Step(then_ns, source, more))
            elif more < -TIMELINE_SMALL:
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


MOST_MOMENTS = 1200
MOST_SOURCES = 8
"""Told apart for what they hold at the peak, and as many more for what they hold all along; the
rest are one."""
REST = Allocator("", "all the rest", False)
TINY = 64
"""Allocations of fewer bytes are scalars, and no line's worth in a list."""
ALIKE = 0.01


class Moment(NamedTuple):
    """An instant, and what is alive after it."""

    at_ns: int
    total: int
    alive: dict[Allocator, int]


def moments(steps: Sequence[Step], most: int) -> list[Moment]:
    """What is alive over time, at no more than some instants: the highest of each stretch, and its
    last.
    """
    totals = list(accumulate(step.nbytes for step in steps))
    kept = set(range(len(steps)))
    if len(steps) > most:
        length = -(-len(steps) // (most // 2))
        stretches = [range(i, min(i + length, len(steps))) for i in range(0, len(steps), length)]
        kept = {max(some, key=totals.__getitem__) for some in stretches}
        kept |= {some[-1] for some in stretches}
    found, alive = [], dict[Allocator, int]()
    for number, (at_ns, source, nbytes) in enumerate(steps):
        alive[source] = alive.get(source, 0) + nbytes
        if number in kept:
            there = {source: held for source, held in alive.items() if held}
            found.append(Moment(at_ns, totals[number], there))
    return found


def memory_values(timeline: Timeline, problem: Problem) -> dict[str, Any]:
    """The peak, and what is alive over time by the sources that had most."""
    found = moments(timeline.steps, MOST_MOMENTS)
    peak = max(found, key=lambda m: m.total, default=Moment(timeline.start_ns, 0, {}))
    turn = timeline.turn_ns
    before_turn = [m.total for m in found if turn is not None and m.at_ns < turn]

    def ms(at_ns: int) -> float:
        return (at_ns - timeline.start_ns) * 1e-6

    return {
        "peak_bytes": peak.total,
        "peak_ms": ms(peak.at_ns),
        "peak_phase": "backward" if turn is not None and peak.at_ns >= turn else "forward",
        "turn_ms": None if turn is None else ms(turn),
        "turn_bytes": None if turn is None else [0, *before_turn][-1],
        "end_ms": ms(timeline.end_ns),
        "scores_bytes": _scores_bytes(problem),
        "largest": _largest(timeline.steps),
        "at_ms": [ms(m.at_ns) for m in found],
        **_by_source(found, peak),
    }


def _by_source(found: Sequence[Moment], peak: Moment) -> dict[str, Any]:
    """The sources that hold most, and each one's bytes over time."""
    area: dict[Allocator, int] = {}
    for moment, then in zip(found, [*found[1:], *found[-1:]], strict=True):
        for source, nbytes in moment.alive.items():
            area[source] = area.get(source, 0) + nbytes * (then.at_ns - moment.at_ns)
    at_the_peak = sorted(peak.alive, key=lambda s: -peak.alive[s])[:MOST_SOURCES]
    others = sorted(area.keys() - set(at_the_peak), key=lambda s: -area[s])
    named, rest = at_the_peak + others[:MOST_SOURCES], others[MOST_SOURCES:]

    def row(alive: dict[Allocator, int]) -> list[int]:
        others = [sum(alive.get(s, 0) for s in rest)] * bool(rest)
        return [alive.get(s, 0) for s in named] + others

    rows, at_peak = [row(m.alive) for m in found], row(peak.alive)
    sources = [
        {
            "place": _place(s.place),
            "code": _code(s.place),
            "operator": s.operator,
            "backward": s.backward,
            "peak_bytes": at_peak[i],
            "most_bytes": max(r[i] for r in rows),
        }
        for i, s in enumerate([*named, *[REST] * bool(rest)])
    ]
    return {"sources": sources, "alive": rows}


def _scores_bytes(problem: Problem) -> int:
    """A number for each query, key and head, in the problem's dtype."""
    pairs = problem.batch * problem.heads * problem.q_len * problem.kv_len
    return pairs * problem.item_bytes


def _largest(steps: Iterable[Step]) -> dict[str, Any]:
    """The largest single allocation, and how many were as large (to a hundredth)."""
    taken = [step for step in steps if step.nbytes > 0]
    if not taken:
        return {"bytes": 0, "count": 0, "forward": 0}
    most = max(step.nbytes for step in taken)
    alike = [step for step in taken if step.nbytes >= (1 - ALIKE) * most]
    forward = sum(not step.source.backward for step in alike)
    return {"bytes": most, "count": len(alike), "forward": forward}


def line_values(timeline: Timeline, memory: dict[str, Any], *, timed: bool) -> list[dict[str, Any]]:
    """Each line's share of the time, with what its gradient takes, and the bytes it allocated."""
    ends = [*(span.start_ns for span in timeline.spans[1:]), timeline.end_ns]
    spent: dict[str, list[int]] = {}
    functions: dict[str, dict[str, int]] = {}
    for span, end in zip(timeline.spans, ends, strict=True):
        if span.place:
            length = max(0, end - span.start_ns)
            spent.setdefault(span.place, [0, 0])[span.backward] += length
            of = functions.setdefault(span.place, {})
            of[span.gradient] = of.get(span.gradient, 0) + length * span.backward
    taken: dict[str, int] = {}
    for _, source, nbytes in timeline.steps:
        if source.place and nbytes > TINY:
            taken[source.place] = taken.get(source.place, 0) + nbytes
    whole = max(1, timeline.end_ns - timeline.start_ns)
    at_peak: dict[str, int] = {}
    for source in memory["sources"]:
        at_peak[source["place"]] = at_peak.get(source["place"], 0) + source["peak_bytes"]
    found: list[dict[str, Any]] = [
        {
            "place": _place(place),
            "code": _code(place),
            "forward_share": forward / whole if timed else None,
            "backward_share": backward / whole if timed else None,
            "gradient": max(functions[place], key=functions[place].__getitem__) if backward else "",
            "allocated_bytes": taken.get(place, 0),
            "peak_bytes": at_peak.get(_place(place), 0),
        }
        for place, (forward, backward) in spent.items()
    ]
    kept = [x for x in found if x["allocated_bytes"] or (x["forward_share"] or 0) > 0.001]
    return sorted(kept, key=_share, reverse=True)


def _share(line: dict[str, Any]) -> float:
    return float((line["forward_share"] or 0.0) + (line["backward_share"] or 0.0))


def _place(place: str) -> str:
    """``einsum.py:22``"""
    return place.rpartition("/")[2]


def _code(place: str) -> str:
    """The line itself."""
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file else ""


PHASES = {FORWARD: "forward", BACKWARD: "backward"}
PLAIN = 25
"""Calls under the clock."""
PLAIN_S, PROFILED_S = 2.0, 0.4
"""About how long they may take together."""
LEAST_PROFILED, MOST_PROFILED = 2, 20
FREE_SHARE = 0.4
"""Of the free memory, what may be taken beforehand."""
SMALL, AGREE = 1024, 0.01
"""Peaks that differ by less than either are the same."""


def answer(bench: Bench, job: Job, trace: str) -> dict[str, Any]:
    """The profile of a variant that passes the gate, else the record that says why there is none.

    A worker that has profiled is spoiled: the profiler has left the heap in pieces, and what comes
    after would be slower for it.
    """
    if runs_over_ranks(job.variant):
        reason = f"profile looks into one process, and {job.variant.label} runs over several"
        return {"record": Record.of(job.variant, job.problem, Status.UNSUPPORTED, reason).to_dict()}
    try:
        ready = bench.ready(job)
    except NotReady as stopped:
        return {"record": stopped.record.to_dict()}
    try:
        found = profiled(ready, Path(trace) if trace else None)
    except Exception as error:
        reason = (
            f"it passed the gate, and under the profiler raised {type(error).__name__}: {error}"
        )
        record = Record.of(job.variant, job.problem, Status.FAILED, reason)
        return {"record": record.to_dict(), "spoiled": True}
    return {"profile": found, "spoiled": True}


def profiled(ready: Ready, trace: Path | None) -> dict[str, Any]:
    """All that is known of one variant's call, as plain values."""
    variant, problem, attend, cost = ready.job.variant, ready.job.problem, ready.attend, ready.cost
    inputs, dout = ready.values
    call, files = Call(problem, attend, inputs), files_of(variant)
    _phases(call, dout)
    plain = _plain(call, dout)
    if problem.device != "cpu":  # no clock runs from here on
        warm_profiler(kernels=True)
    expected = cost.peak_bytes if cost else None
    seen = observe(problem, attend, inputs, dout, expected).memory
    first = _timeline(call, dout, files)
    if problem.device == "cpu":
        once = sum(step.nbytes for step in first.steps if step.nbytes > 0)
        _fault_in((_rounds(plain["total_s"]) + 2) * once)
    phases = _by_phase(call, dout, plain, trace)
    timeline = _timeline(call, dout, files)
    memory = memory_values(timeline, problem)
    note = getattr(attend, "note", None)
    return {
        "variant": variant.label,
        "title": variant.title,
        "computes": variant.computes,
        "problem": problem.to_dict(),
        "slug": problem.slug,
        "threads": torch.get_num_threads(),
        "note": str(note()) if callable(note) else "",
        "plain": plain,
        "phases": phases,
        "cost": None
        if cost is None
        else {"flops": cost.flops, "bytes": cost.bytes, "flop_rate": cost.flops / plain["total_s"]},
        "memory": memory,
        "observed": seen.to_dict(),
        "lines": line_values(timeline, memory, timed=problem.device == "cpu"),
        "caveats": list(_caveats(memory, seen.peak_bytes, seen.flags)),
    }


def _phases(call: Call, dout: torch.Tensor | None) -> None:
    """One call, each phase under its name."""
    with record_function(FORWARD):
        out = call.forward()
    if call.problem.gradients:
        assert dout is not None
        with record_function(BACKWARD):
            call.backward(out, dout)


def _fault_in(nbytes: int) -> None:
    """Have the process hold pages for all that the profiled calls will allocate.

    What the profiler notes lands in the memory that one call frees and the next would take again,
    so that the next goes to the system for pages it has never touched: that is slower than many an
    operator, and no plain call does it.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = min(nbytes, int(FREE_SHARE * free))
    torch.empty(wanted, dtype=torch.uint8).fill_(0)


def _plain(call: Call, dout: torch.Tensor | None) -> dict[str, Any]:
    """Medians of calls that nobody watches."""
    problem, clock = call.problem, clock_for(call.problem.device, call.problem.phase)

    def once(before: Callable[[], object], run: Callable[[], object]) -> float:
        (first,) = clock.samples(before, run, 1)
        more = clock.samples(before, run, max(2, min(PLAIN - 1, int(PLAIN_S / first))))
        return median([first, *more])

    def nothing() -> None: ...

    found: dict[str, Any] = {
        "clock": clock.name,
        "forward_s": once(nothing, call.forward),
        "backward_s": None,
    }
    if not problem.gradients:
        return {**found, "total_s": found["forward_s"]}
    assert dout is not None
    kept: list[torch.Tensor] = []

    def forward() -> None:
        kept[:] = [call.forward()]

    found["backward_s"] = once(forward, lambda: call.backward(kept[0], dout))
    if problem.phase == "backward":
        return {**found, "total_s": found["backward_s"]}
    return {**found, "total_s": found["forward_s"] + found["backward_s"]}


def _by_phase(
    call: Call, dout: torch.Tensor | None, plain: dict[str, Any], trace: Path | None
) -> list[dict[str, Any]]:
    """Operators or kernels, from calls under the profiler."""
    cuda = call.problem.device != "cpu"
    longest = plain["forward_s"] + (plain["backward_s"] or 0.0)
    rounds = _rounds(longest)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    with profile(
        activities=activities, record_shapes=True, with_flops=True, profile_memory=True
    ) as seen:
        for _ in range(rounds + 1):
            _phases(call, dout)
        if cuda:
            torch.cuda.synchronize(call.problem.device)
    if trace is not None:
        with tempfile.TemporaryDirectory() as folder:  # torch would follow a link that lies there
            seen.export_chrome_trace(str(made := Path(folder) / trace.name))
            trace.unlink(missing_ok=True)
            with made.open("rb") as source, trace.open("xb") as target:
                shutil.copyfileobj(source, target)
    events = seen.profiler.kineto_results.events()
    windows = _windows(events)
    found = (kernels if cuda else operators)(events, When(windows))
    return [
        _phase(
            phase,
            found.get(phase, {}),
            [w for w in windows if w.phase == phase],
            plain[f"{phase}_s"],
            cuda=cuda,
        )
        for phase in dict.fromkeys(w.phase for w in windows)
    ]


def _rounds(seconds: float) -> int:
    """How many calls of such a length are profiled."""
    return max(LEAST_PROFILED, min(MOST_PROFILED, int(PROFILED_S / max(seconds, 1e-6))))


def _windows(events: Iterable[Any]) -> list[Window]:
    """The phases of the quieter half of the calls; the first warms the profiler up."""
    marks = [
        e for e in events if e.name() in PHASES and e.device_type() == torch.autograd.DeviceType.CPU
    ]
    found = sorted(
        (Window(PHASES[e.name()], e.start_ns(), e.end_ns()) for e in marks),
        key=lambda w: w.start_ns,
    )
    phases = len({w.phase for w in found})
    calls = [found[i : i + phases] for i in range(phases, len(found), phases)]
    calls.sort(key=lambda call: sum(w.end_ns - w.start_ns for w in call))
    return [window for call in calls[: (len(calls) + 1) // 2] for window in call]


def _phase(
    name: str, spent: dict[str, Any], windows: list[Window], plain_s: float | None, *, cuda: bool
) -> dict[str, Any]:
    rounds = max(1, len(windows))
    inside_ns = sum(s.nanoseconds for s in spent.values()) / rounds
    wall_ns = inside_ns if cuda else sum(w.end_ns - w.start_ns for w in windows) / rounds
    rows = [s.to_dict(name, rounds, wall_ns) for name, s in spent.items() if s.nanoseconds > 0]
    return {
        "name": name,
        "of": "kernels" if cuda else "operators",
        "plain_s": plain_s,
        "profiled_s": wall_ns * 1e-9,
        "outside_s": max(0.0, wall_ns - inside_ns) * 1e-9,
        "operators": sorted(rows, key=lambda row: -row["self_s"]),
    }


def _timeline(call: Call, dout: torch.Tensor | None, files: tuple[str, ...]) -> Timeline:
    """One call with every allocation and every line; arrays of NumPy's where there are any."""
    cuda = call.problem.device != "cpu"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    tracemalloc.start()
    try:
        with profile(activities=activities, profile_memory=True, record_shapes=True) as seen:
            with marked(files) as marks:
                _phases(call, dout)
            if cuda:
                torch.cuda.synchronize(call.problem.device)
    finally:
        tracemalloc.stop()
    roots = seen.profiler.kineto_results.experimental_event_tree()
    return Reader("cuda" if cuda else "cpu", _arrays(marks)).read(roots)


def _arrays(marks: Marks) -> list[tuple[int, int]]:
    """Nothing, unless more was held than Python's own objects would."""
    most = [peak for _, peak in marks.arrays]
    return marks.arrays if most and max(most) - min(most) > ARRAY_BYTES else []


def _caveats(memory: dict[str, Any], observed: int, flags: list[str]) -> Iterable[str]:
    """What keeps the picture from being the whole truth."""
    yield from flags
    if abs(memory["peak_bytes"] - observed) > max(AGREE * observed, SMALL):
        yield (
            f"the timeline's peak is {memory['peak_bytes'] / 2**20:.4g} MiB and the memory meter's "
            f"{observed / 2**20:.4g} MiB"
        )
    if not any(s["place"] for s in memory["sources"]) and memory["sources"]:
        yield "no allocation could be traced to a line: operators are named instead"
