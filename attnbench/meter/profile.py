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
from collections import defaultdict
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
from attnbench.meter.clocks import Step, clock_for
from attnbench.meter.memory import (
    ALLOCATES,
    ARRAY_BYTES,
    COMPILED,
    OPERATORS,
    Own,
    named,
    observe,
    own_of,
    shown_name,
    warm_profiler,
)
from attnbench.meter.ranks import runs_over_ranks
from attnbench.meter.timed import Job, Ready
from impls.loading import load_function
from impls.problem import Problem

MARK = "attnbench line: "
FORWARD, BACKWARD = "attnbench: forward", "attnbench: backward"
PHASES = {FORWARD: "forward", BACKWARD: "backward"}
CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


class Marks:
    """Puts a mark into the profile at each line of the variant's code.

    ``arrays``: bytes that Python's allocators hold at each mark, and the most since the one before,
    where they are traced.
    """

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self.arrays: list[tuple[int, int]] = []

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
        """For every function that is called: follow its lines if it is the variant's."""
        return self._follow if self._own(frame) else None

    def _follow(self, frame: FrameType, what: str, _: Any) -> Any:
        """For every line, and the end, of such a function."""
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


BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "bool": 1, "long int": 8,
    "int": 4, "c10::complex<float>": 8, "unsigned char": 1,
}  # fmt: skip
"""Bytes of a number, by the profiler's name of its type; others are not tensors."""
OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_")
"""They write their first operand and do not read it."""


class Window(NamedTuple):
    """A phase of one call: when it ran."""

    phase: str
    start_ns: int
    end_ns: int


@dataclass
class OperatorTime:
    """All calls of an operator in a phase."""

    nanoseconds: int = 0
    calls: int = 0
    flops: int = 0
    moved: int = 0
    """Bytes of its operands and results: what it must read and write at the least."""


OperatorTimes = dict[str, dict[str, OperatorTime]]
"""By phase and name."""


def phase_at(windows: Sequence[Window], at_ns: int) -> str | None:
    """The phase that an instant falls into; None outside all windows, which are in order."""
    number = bisect_right(windows, at_ns, key=lambda w: w.start_ns) - 1
    inside = number >= 0 and at_ns < windows[number].end_ns
    return windows[number].phase if inside else None


def operators(events: Sequence[Any], windows: Sequence[Window]) -> OperatorTimes:
    """Operators of the host."""
    times: OperatorTimes = defaultdict(lambda: defaultdict(OperatorTime))
    for own in own_of(named(events), (*OPERATORS, COMPILED), allocations=True):
        if (phase := phase_at(windows, own.event.start_ns())) is not None:
            time = times[phase][shown_name(own.name)]
            time.nanoseconds += own.nanoseconds
            time.calls += 1
            time.flops += own.event.flops()
            time.moved += _moved(own)
    return times


def kernels(events: Sequence[Any], windows: Sequence[Window]) -> OperatorTimes:
    """Kernels of the device, by the phase of the operator that launched each."""
    launched = {  # the driver's own calls are linked to an operator, and have numbers of their own
        e.correlation_id(): e
        for e in events
        if e.device_type() == CPU and e.correlation_id() > 0 and not e.linked_correlation_id()
    }
    times: OperatorTimes = defaultdict(lambda: defaultdict(OperatorTime))
    for event in events:
        if event.device_type() != CUDA or event.is_user_annotation():
            continue
        by = launched.get(event.linked_correlation_id())
        phase = phase_at(windows, by.start_ns()) if by is not None else None
        if by is not None and phase is not None:
            time = times[phase][event.name()]
            time.nanoseconds += event.duration_ns()
            time.calls += 1
            time.flops += by.flops()
    return times


def _moved(own: Own) -> int:
    """Bytes of an operator's operands and results, unless it handed all of them to another."""
    given = _given(own.event)
    if not given or any(_given(event) >= given for event in own.called):
        return 0
    return given + own.allocated


def _given(event: Any) -> int:
    """Bytes of the tensors that an operator reads or overwrites; twice where it does both."""
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
    """``view``, ``in place`` or ``new``, by the operator's own schema."""
    schemas = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    returned = [r.alias_info for schema in schemas for r in schema.returns]
    aliases = [alias for alias in returned if alias is not None]
    if aliases and not any(alias.is_write for alias in aliases):
        return "view"
    return "in place" if aliases and name.endswith("_") else "new"


EVALUATES = "autograd::engine::evaluate_function: "
"""Prefix of autograd's own events."""
ARRAYS = "array"
"""Stands for the operator where Python's own allocators gave the memory, as for NumPy."""
TIMELINE_SMALL = 1 << 16
"""Less than this from Python's own allocators is not an array."""


class Allocator(NamedTuple):
    """What allocated: a line (``FILE:N``, or empty), an operator, and whether in backward."""

    place: str
    operator: str
    backward: bool


class MemoryStep(NamedTuple):
    """An instant, and the bytes that a source gained or lost."""

    at_ns: int
    source: Allocator
    nbytes: int


class LineSpan(NamedTuple):
    """A line, and when it began to run; it runs until the next one."""

    start_ns: int
    place: str
    backward: bool
    gradient: str = ""
    """Autograd's function that ran: ``BmmBackward0``."""


@dataclass
class Timeline:
    """One call."""

    steps: list[MemoryStep] = field(default_factory=list)
    spans: list[LineSpan] = field(default_factory=list)
    start_ns: int = 0
    turn_ns: int | None = None
    """Where backward begins."""
    end_ns: int = 0


class Reader:
    """Walks the tree of events in the order of time, and knows the line that runs."""

    def __init__(self, device: str, arrays: Sequence[tuple[int, int]]) -> None:
        self._timeline = Timeline()
        self._device, self._arrays = device, _Arrays(arrays)
        self._place, self._backward, self._gradient = "", False, ""
        self._alive: dict[tuple[int, int], tuple[Allocator, int]] = {}
        self._lines: dict[int, str] = {}
        """The line of each operator in forward, by autograd's sequence number."""
        self._numbers: list[int] = []
        self._operators: list[str] = []

    def read(self, roots: Iterable[Any]) -> Timeline:
        """The call from the beginning of forward to the last end."""
        self._visit(roots)
        self._timeline.steps += self._arrays.steps
        self._timeline.steps.sort(key=lambda step: step.at_ns)
        return self._timeline

    def _visit(self, nodes: Iterable[Any]) -> None:
        for node in sorted(nodes, key=lambda node: node.start_time_ns):
            if hasattr(node.extra_fields, "alloc_size"):
                self._allocation(node)
            elif node.name.startswith(MARK):
                source = Allocator(self._place, ARRAYS, self._backward)
                self._arrays.mark(node.start_time_ns, source)
                self._go_to(node.name.removeprefix(MARK), node.start_time_ns)
            elif node.name in PHASES:
                self._phase(node)
            else:
                self._operator(node)

    def _phase(self, node: Any) -> None:
        self._backward = node.name == BACKWARD
        if self._backward:
            self._numbers = sorted(self._lines)
            self._timeline.turn_ns = node.start_time_ns
        else:
            self._timeline.start_ns = node.start_time_ns
        self._go_to("", node.start_time_ns)
        self._visit(node.children)
        self._timeline.end_ns = node.end_time_ns
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
        self._visit(node.children)
        self._operators.pop()
        self._gradient = gradient
        if self._backward and known:
            self._go_to(place, node.end_time_ns)

    def _go_to(self, place: str, at_ns: int) -> None:
        self._place = place
        self._timeline.spans.append(LineSpan(at_ns, place, self._backward, self._gradient))

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
        self._timeline.steps.append(MemoryStep(node.start_time_ns, source, nbytes))


class _Arrays:
    """The readings of Python's allocators at each mark, as steps; the last array is freed first."""

    def __init__(self, readings: Sequence[tuple[int, int]]) -> None:
        self._readings = iter(readings)
        self._before: tuple[int, int] | None = None
        self._held: list[tuple[Allocator, int]] = []
        self.steps: list[MemoryStep] = []

    def mark(self, at_ns: int, source: Allocator) -> None:
        """The line of ``source`` has ended."""
        reading = next(self._readings, None)
        if reading is None:
            return
        held, most = reading
        if self._before is not None:
            then_ns, base = self._before
            if (scratch := most - max(base, held)) > TIMELINE_SMALL:
                self.steps.append(MemoryStep(then_ns, source, scratch))
                self.steps.append(MemoryStep(at_ns, source, -scratch))
            if (more := held - base) > TIMELINE_SMALL:
                self._held.append((source, more))
                self.steps.append(MemoryStep(then_ns, source, more))
            elif more < -TIMELINE_SMALL:
                self._free(at_ns, -more)
        self._before = (at_ns, held)

    def _free(self, at_ns: int, nbytes: int) -> None:
        while self._held and nbytes > 0:
            source, there = self._held.pop()
            self.steps.append(MemoryStep(at_ns, source, -min(there, nbytes)))
            if there > nbytes:
                self._held.append((source, there - nbytes))
            nbytes -= there


def _operator_of(around: Sequence[str]) -> str:
    """The innermost operator that allocated for itself."""
    ran = [name for name in around if name.startswith(OPERATORS)]
    own = [name for name in ran if not name.startswith(ALLOCATES)]
    return shown_name((own or ran or list(around) or [""])[-1])


MOST_MOMENTS = 1200
MOST_SOURCES = 8
"""How many sources are listed for their bytes at the peak, and as many more for their bytes over
time; the others are summed."""
REST = Allocator("", "all the rest", False)
TINY = 64
"""Allocations of fewer bytes are scalars, and not listed."""
ALIKE = 0.01


class Moment(NamedTuple):
    """An instant, and what is alive after it."""

    at_ns: int
    total: int
    alive: dict[Allocator, int]


def moments(steps: Sequence[MemoryStep], most: int) -> list[Moment]:
    """What is alive over time, at some instants at most: the highest and last of each stretch."""
    totals = list(accumulate(step.nbytes for step in steps))
    kept = set(range(len(steps)))
    if len(steps) > most:
        length = -(-len(steps) // (most // 2))
        stretches = [range(i, min(i + length, len(steps))) for i in range(0, len(steps), length)]
        kept = {max(some, key=totals.__getitem__) for some in stretches}
        kept |= {some[-1] for some in stretches}
    result, alive = [], defaultdict[Allocator, int](int)
    for number, (at_ns, source, nbytes) in enumerate(steps):
        alive[source] += nbytes
        if number in kept:
            there = {source: held for source, held in alive.items() if held}
            result.append(Moment(at_ns, totals[number], there))
    return result


def memory_values(timeline: Timeline, problem: Problem) -> dict[str, Any]:
    """The peak, and what is alive over time by the sources that had most."""
    over_time = moments(timeline.steps, MOST_MOMENTS)
    peak = max(over_time, key=lambda m: m.total, default=Moment(timeline.start_ns, 0, {}))
    turn = timeline.turn_ns
    before_turn = [m.total for m in over_time if turn is not None and m.at_ns < turn]
    pairs = problem.batch * problem.heads * problem.q_len * problem.kv_len

    def ms(at_ns: int) -> float:
        return (at_ns - timeline.start_ns) * 1e-6

    return {
        "peak_bytes": peak.total,
        "peak_ms": ms(peak.at_ns),
        "peak_phase": "backward" if turn is not None and peak.at_ns >= turn else "forward",
        "turn_ms": None if turn is None else ms(turn),
        "turn_bytes": None if turn is None else [0, *before_turn][-1],
        "end_ms": ms(timeline.end_ns),
        "scores_bytes": pairs * problem.item_bytes,
        "largest": _largest(timeline.steps),
        "at_ms": [ms(m.at_ns) for m in over_time],
        **_by_source(over_time, peak),
    }


def _by_source(over_time: Sequence[Moment], peak: Moment) -> dict[str, Any]:
    """The sources that hold most, and each one's bytes over time."""
    area: dict[Allocator, int] = defaultdict(int)
    for moment, then in zip(over_time, [*over_time[1:], *over_time[-1:]], strict=True):
        for source, nbytes in moment.alive.items():
            area[source] += nbytes * (then.at_ns - moment.at_ns)
    listed = sorted(peak.alive, key=lambda s: -peak.alive[s])[:MOST_SOURCES]
    others = sorted(area.keys() - set(listed), key=lambda s: -area[s])
    listed, rest = listed + others[:MOST_SOURCES], others[MOST_SOURCES:]

    def row(alive: dict[Allocator, int]) -> list[int]:
        of_rest = [sum(alive.get(s, 0) for s in rest)] if rest else []
        return [alive.get(s, 0) for s in listed] + of_rest

    rows, at_peak = [row(m.alive) for m in over_time], row(peak.alive)
    sources = [
        {
            "place": _place(s.place),
            "code": _code(s.place),
            "operator": s.operator,
            "backward": s.backward,
            "peak_bytes": at_peak[i],
            "most_bytes": max(r[i] for r in rows),
        }
        for i, s in enumerate([*listed, *([REST] if rest else [])])
    ]
    return {"sources": sources, "alive": rows}


def _largest(steps: Iterable[MemoryStep]) -> dict[str, Any]:
    """The largest single allocation, and how many were as large (to a hundredth)."""
    most = max((step.nbytes for step in steps if step.nbytes > 0), default=0)
    alike = [step for step in steps if step.nbytes > 0 and step.nbytes >= (1 - ALIKE) * most]
    forward = sum(not step.source.backward for step in alike)
    return {"bytes": most, "count": len(alike), "forward": forward}


def line_values(timeline: Timeline, memory: dict[str, Any], *, timed: bool) -> list[dict[str, Any]]:
    """Each line's share of the time, with what its gradient takes, and the bytes it allocated."""
    ends = [*(span.start_ns for span in timeline.spans[1:]), timeline.end_ns]
    spent: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    functions: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for span, end in zip(timeline.spans, ends, strict=True):
        if span.place:
            length = max(0, end - span.start_ns)
            spent[span.place][span.backward] += length
            functions[span.place][span.gradient] += length * span.backward
    allocated: dict[str, int] = defaultdict(int)
    for _, source, nbytes in timeline.steps:
        if nbytes > TINY:
            allocated[source.place] += nbytes
    at_peak: dict[str, int] = defaultdict(int)
    for source in memory["sources"]:
        at_peak[source["place"]] += source["peak_bytes"]
    whole = max(1, timeline.end_ns - timeline.start_ns)
    lines = []
    for place, (forward, backward) in sorted(spent.items(), key=lambda x: -sum(x[1]) * timed):
        if not allocated[place] and not (timed and forward > 0.001 * whole):
            continue
        by_function = functions[place]
        lines.append(
            {
                "place": _place(place),
                "code": _code(place),
                "forward_share": forward / whole if timed else None,
                "backward_share": backward / whole if timed else None,
                "gradient": max(by_function, key=by_function.__getitem__) if backward else "",
                "allocated_bytes": allocated[place],
                "peak_bytes": at_peak[_place(place)],
            }
        )
    return lines


def _place(place: str) -> str:
    """``einsum.py:22``"""
    return place.rpartition("/")[2]


def _code(place: str) -> str:
    """The line itself."""
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file else ""


PLAIN = 25
"""Calls under the clock."""
PLAIN_S, PROFILED_S = 2.0, 0.4
"""About how long they may take together."""
LEAST_PROFILED, MOST_PROFILED = 2, 20
FREE_SHARE = 0.4
"""How much of the free memory may be taken beforehand."""
SMALL, AGREE = 1024, 0.01
"""Peaks that differ by less than either are the same."""


def answer(bench: Bench, job: Job, trace: str) -> dict[str, Any]:
    """The profile of a variant that passes the gate, else the record that says why there is none.

    A worker that has profiled is spoiled: the profiler has fragmented the heap, and what comes
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
        result = profiled(ready, Path(trace) if trace else None)
    except Exception as error:
        reason = (
            f"it passed the gate, and under the profiler raised {type(error).__name__}: {error}"
        )
        record = Record.of(job.variant, job.problem, Status.FAILED, reason)
        return {"record": record.to_dict(), "spoiled": True}
    return {"profile": result, "spoiled": True}


def profiled(ready: Ready, trace: Path | None) -> dict[str, Any]:
    """All that is known of one variant's call, as plain values."""
    variant, problem, attend, cost = ready.job.variant, ready.job.problem, ready.attend, ready.cost
    inputs, dout = ready.values
    call, host = Call(problem, attend, inputs), problem.device == "cpu"
    # the variant's code: the table's package, its own file, and its core's
    builds = [load_function(row.build) for row in (variant, variant.core) if row]
    files = (str(Path(impls.__file__).parent), *map(inspect.getfile, builds))
    _phases(call, dout)
    plain = _plain(call, dout)
    if not host:  # no clock runs from here on
        warm_profiler(kernels=True)
    expected = cost.peak_bytes if cost else None
    seen = observe(problem, attend, inputs, dout, expected).memory
    first = _timeline(call, dout, files)
    if host:
        once = sum(step.nbytes for step in first.steps if step.nbytes > 0)
        _fault_in((_rounds(plain["total_s"]) + 2) * once)
    phases = _by_phase(call, dout, plain, trace)
    timeline = _timeline(call, dout, files)
    memory = memory_values(timeline, problem)
    note = getattr(attend, "note", None)
    work = None
    if cost is not None:
        rate = cost.flops / plain["total_s"]
        work = {"flops": cost.flops, "bytes": cost.bytes, "flop_rate": rate}
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
        "cost": work,
        "memory": memory,
        "observed": seen.to_dict(),
        "lines": line_values(timeline, memory, timed=host),
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

    The profiler's notes take the memory that one call frees and the next would take again, so that
    the next gets pages from the system that it has never touched: that is slower than many an
    operator, and does not happen in plain calls.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = min(nbytes, int(FREE_SHARE * free))
    torch.empty(wanted, dtype=torch.uint8).fill_(0)


def _plain(call: Call, dout: torch.Tensor | None) -> dict[str, Any]:
    """Medians of calls without the profiler."""
    problem, clock = call.problem, clock_for(call.problem.device, call.problem.phase)

    def once(before: Step, run: Step) -> float:
        (first,) = clock.samples(before, run, 1)
        more = clock.samples(before, run, max(2, min(PLAIN - 1, int(PLAIN_S / first))))
        return median([first, *more])

    forward_s, backward_s = once(lambda: None, call.forward), None
    total_s = forward_s
    if problem.gradients:
        assert dout is not None
        kept: list[torch.Tensor] = []

        def forward() -> None:
            kept[:] = [call.forward()]

        backward_s = once(forward, lambda: call.backward(kept[0], dout))
        total_s = backward_s if problem.phase == "backward" else forward_s + backward_s
    return {
        "clock": clock.name,
        "forward_s": forward_s,
        "backward_s": backward_s,
        "total_s": total_s,
    }


def _traced(call: Call, run: Callable[[], object], **options: Any) -> Any:
    """The profile of something run."""
    cuda = call.problem.device != "cpu"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    with profile(
        activities=activities, record_shapes=True, profile_memory=True, **options
    ) as result:
        run()
        if cuda:
            torch.cuda.synchronize(call.problem.device)
    return result


def _by_phase(
    call: Call, dout: torch.Tensor | None, plain: dict[str, Any], trace: Path | None
) -> list[dict[str, Any]]:
    """Operators or kernels, from calls under the profiler."""
    cuda = call.problem.device != "cpu"
    rounds = _rounds(plain["forward_s"] + (plain["backward_s"] or 0.0))

    def run() -> None:
        for _ in range(rounds + 1):
            _phases(call, dout)

    seen = _traced(call, run, with_flops=True)
    if trace is not None:
        with tempfile.TemporaryDirectory() as folder:  # torch would follow a link that lies there
            seen.export_chrome_trace(str(made := Path(folder) / trace.name))
            trace.unlink(missing_ok=True)
            with made.open("rb") as source, trace.open("xb") as target:
                shutil.copyfileobj(source, target)
    events = seen.profiler.kineto_results.events()
    windows = _windows(events)
    times = (kernels if cuda else operators)(events, windows)
    result = []
    for name in dict.fromkeys(w.phase for w in windows):
        spans = [w.end_ns - w.start_ns for w in windows if w.phase == name]
        inside_ns = sum(t.nanoseconds for t in times[name].values()) / len(spans)
        wall_ns = inside_ns if cuda else sum(spans) / len(spans)
        rows = [
            _row(operator, time, len(spans), wall_ns)
            for operator, time in times[name].items()
            if time.nanoseconds > 0
        ]
        result.append(
            {
                "name": name,
                "of": "kernels" if cuda else "operators",
                "plain_s": plain[f"{name}_s"],
                "profiled_s": wall_ns * 1e-9,
                "outside_s": max(0.0, wall_ns - inside_ns) * 1e-9,
                "operators": sorted(rows, key=lambda row: -row["self_s"]),
            }
        )
    return result


def _row(name: str, time: OperatorTime, rounds: int, phase_ns: float) -> dict[str, Any]:
    """An operator in one call. ``flops`` and ``bytes`` are None where torch does not know them."""
    seconds = time.nanoseconds / rounds * 1e-9
    flops = time.flops / rounds or None
    return {
        "name": name,
        "self_s": seconds,
        "share": seconds * 1e9 / phase_ns if phase_ns else 0.0,
        "calls": time.calls / rounds,
        "flops": flops,
        "bytes": time.moved / rounds or None,
        "flop_rate": flops / seconds if flops and seconds else None,
    }


def _rounds(seconds: float) -> int:
    """How many calls of such a length are profiled."""
    return max(LEAST_PROFILED, min(MOST_PROFILED, int(PROFILED_S / max(seconds, 1e-6))))


def _windows(events: Iterable[Any]) -> list[Window]:
    """The phases of the quieter half of the calls, in order; the first call is a warm-up."""
    windows = sorted(
        (
            Window(PHASES[e.name()], e.start_ns(), e.end_ns())
            for e in events
            if e.name() in PHASES and e.device_type() == CPU
        ),
        key=lambda w: w.start_ns,
    )
    phases = len({w.phase for w in windows})
    calls = [windows[i : i + phases] for i in range(phases, len(windows), phases)]
    calls.sort(key=lambda call: sum(w.end_ns - w.start_ns for w in call))
    quiet = [window for call in calls[: (len(calls) + 1) // 2] for window in call]
    return sorted(quiet, key=lambda w: w.start_ns)


def _timeline(call: Call, dout: torch.Tensor | None, files: tuple[str, ...]) -> Timeline:
    """One call with every allocation and every line; arrays of NumPy's where there are any."""
    marks = Marks(files)

    def run() -> None:
        with marks.on():
            _phases(call, dout)

    tracemalloc.start()
    try:
        seen = _traced(call, run)
    finally:
        tracemalloc.stop()
    most = [peak for _, peak in marks.arrays]
    # less than this is Python's own objects
    arrays = marks.arrays if most and max(most) - min(most) > ARRAY_BYTES else []
    roots = seen.profiler.kineto_results.experimental_event_tree()
    return Reader(call.problem.device.partition(":")[0], arrays).read(roots)


def _caveats(memory: dict[str, Any], observed: int, flags: list[str]) -> Iterator[str]:
    """What keeps the picture from being the whole truth."""
    yield from flags
    if abs(memory["peak_bytes"] - observed) > max(AGREE * observed, SMALL):
        yield (
            f"the timeline's peak is {memory['peak_bytes'] / 2**20:.4g} MiB and the memory meter's "
            f"{observed / 2**20:.4g} MiB"
        )
    if not any(s["place"] for s in memory["sources"]) and memory["sources"]:
        yield "no allocation could be traced to a line: operators are named instead"
