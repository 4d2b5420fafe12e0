"""Where a call's time and memory go: operators or kernels by phase, and a timeline of which line
of code ran when, and what was alive that it had allocated."""

from __future__ import annotations

import inspect
import linecache
import shutil
import sys
import tempfile
import tracemalloc
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from operator import itemgetter
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._C._profiler import _RecordFunctionFast
from torch.autograd.profiler import profile, record_function

import impls
from attnbench.core.format import size
from attnbench.core.job import Job
from attnbench.core.record import Record, Status
from attnbench.gate.inputs import Call
from attnbench.meter.cell import Bench, NotReady
from attnbench.meter.clocks import Step, clock_for
from attnbench.meter.memory import (
    ALLOCATES,
    ARRAY_BYTES,
    COMPILED,
    OPERATORS,
    free_bytes,
    observe,
    own_of,
    shown_name,
    warm_profiler,
)
from attnbench.meter.ranks import note_of
from attnbench.meter.timer import Ready
from impls.loading import load_function

FORWARD, BACKWARD = "attnbench: forward", "attnbench: backward"
PHASES = {FORWARD: "forward", BACKWARD: "backward"}
CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
PLAIN, PLAIN_S = 25, 2.0  # calls under the clock, and about how long they may take together
LEAST_PROFILED, MOST_PROFILED, PROFILED_S = 2, 20, 0.4
FREE_SHARE = 0.4  # how much of the free memory may be taken beforehand
SMALL, AGREE = 1024, 0.01  # peaks that differ by less than either are the same


def answer(bench: Bench, job: Job, trace: str) -> dict[str, Any]:
    """The profile of a variant that passes the gate, else the record that says why there is none.

    A worker that has profiled is spoiled: the profiler has fragmented the heap, and what comes
    after would be slower for it.
    """
    if job.variant.ranks:
        reason = f"profile looks into one process, and {job.variant.label} runs over several"
        return {"record": Record.of(job.variant, job.problem, Status.UNSUPPORTED, reason).to_dict()}
    try:
        ready = bench.ready(job)
    except NotReady as stopped:
        return {"record": stopped.record.to_dict()}
    try:
        return {"profile": profiled(ready, Path(trace) if trace else None), "spoiled": True}
    except Exception as error:
        reason = (
            f"it passed the correctness check, and under the profiler raised "
            f"{type(error).__name__}: {error}"
        )
        record = Record.of(job.variant, job.problem, Status.FAILED, reason)
        return {"record": record.to_dict(), "spoiled": True}


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
    rounds = plain["forward_s"] + (plain["backward_s"] or 0.0)
    rounds = max(LEAST_PROFILED, min(MOST_PROFILED, int(PROFILED_S / max(rounds, 1e-6))))
    if not host:  # no clock runs from here on
        warm_profiler(kernels=True)
    seen = observe(problem, attend, inputs, dout, cost.peak_bytes if cost else None).memory
    first = _timeline(call, dout, files)
    if host:
        # Have the process hold pages for all that the profiled calls will allocate. The profiler's
        # notes take the memory that one call frees and the next would take again, so that the next
        # gets pages from the system that it has never touched: that is slower than many an
        # operator, and does not happen in plain calls.
        need = (rounds + 2) * sum(nbytes for _, _, nbytes in first.steps if nbytes > 0)
        need = min(need, int(FREE_SHARE * free_bytes(problem.device)))
        torch.empty(need, dtype=torch.uint8).fill_(0)
    phases = _profiled_phases(call, dout, rounds, plain, trace)
    timeline = _timeline(call, dout, files)
    p, memory = problem, memory_values(timeline)
    memory["scores_bytes"] = p.batch * p.heads * p.q_len * p.kv_len * p.item_bytes
    work = cost and {"flops": cost.flops, "bytes": cost.bytes}
    return {
        "variant": variant.label,
        "title": variant.title,
        "computes": variant.computes,
        "problem": problem.to_dict(),
        "slug": problem.slug,
        "threads": torch.get_num_threads(),
        "note": note_of(attend),
        "plain": plain,
        "phases": phases,
        "cost": work and {**work, "flop_rate": work["flops"] / plain["total_s"]},
        "memory": memory,
        "observed": seen.to_dict(),
        "lines": line_values(timeline, memory, timed=host),
        "caveats": list(_caveats(memory, seen.peak_bytes, seen.flags)),
    }


def _phases(call: Call, dout: torch.Tensor | None) -> None:
    with record_function(FORWARD):
        out = call.forward()
    if call.problem.gradients:
        assert dout is not None
        with record_function(BACKWARD):
            call.backward(out, dout)


def _plain(call: Call, dout: torch.Tensor | None) -> dict[str, Any]:
    problem, clock = call.problem, clock_for(call.problem.device, call.problem.phase)
    kept: list[torch.Tensor] = []

    def seconds(before: Step, run: Step) -> float:
        (first,) = clock.samples(before, run, 1)
        more = clock.samples(before, run, max(2, min(PLAIN - 1, int(PLAIN_S / first))))
        return median([first, *more])

    def forward() -> None:
        kept[:] = [call.forward()]

    forward_s, backward_s = seconds(lambda: None, call.forward), None
    if problem.gradients:
        assert dout is not None
        backward_s = seconds(forward, lambda: call.backward(kept[0], dout))
    both = 0.0 if problem.phase == "backward" else forward_s
    return {
        "clock": clock.name,
        "forward_s": forward_s,
        "backward_s": backward_s,
        "total_s": both + (backward_s or 0.0),
    }


def _traced(call: Call, run: Callable[[], object], **options: Any) -> Any:
    """What the profiler saw; torch.profiler's own class would load torch's compiler first."""
    device = None if call.problem.device == "cpu" else call.problem.device
    more = {"record_shapes": True, "profile_memory": True, **options}
    with profile(use_kineto=True, use_device=device and device.partition(":")[0], **more) as seen:
        run()
        if device is not None:
            torch.cuda.synchronize(device)
    return seen


def _timeline(call: Call, dout: torch.Tensor | None, files: tuple[str, ...]) -> Timeline:
    """One call with every allocation and every line; arrays of NumPy's where there are any."""
    arrays: list[tuple[int, int]] = []

    def run() -> None:
        with _marks(files, arrays):
            _phases(call, dout)

    tracemalloc.start()
    try:
        seen = _traced(call, run)
    finally:
        tracemalloc.stop()
    most = [peak for _, peak in arrays]
    if not most or max(most) - min(most) <= ARRAY_BYTES:
        arrays = []  # they are Python's own objects
    roots = seen.kineto_results.experimental_event_tree()
    return Timeline(roots, call.problem.device.partition(":")[0], arrays)


def _caveats(memory: dict[str, Any], observed: int, flags: list[str]) -> Iterator[str]:
    """What keeps the picture from being the whole truth."""
    yield from flags
    if abs(memory["peak_bytes"] - observed) > max(AGREE * observed, SMALL):
        yield (
            f"the timeline's peak is {size(memory['peak_bytes'])} and the memory meter's "
            f"{size(observed)}"
        )
    if not any(s["place"] for s in memory["sources"]) and memory["sources"]:
        yield "no allocation could be traced to a line: operators are named instead"


def _profiled_phases(
    call: Call, dout: torch.Tensor | None, rounds: int, plain: Mapping[str, Any], trace: Path | None
) -> list[dict[str, Any]]:
    """Operators or kernels by phase, from the quieter half of some calls under the profiler."""

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
    events, cuda = seen.kineto_results.events(), call.problem.device != "cpu"
    windows = sorted(
        Window(e.start_ns(), e.end_ns(), PHASES[e.name()])
        for e in events
        if e.name() in PHASES and e.device_type() == CPU
    )
    each = len({w.phase for w in windows})
    calls = [windows[i : i + each] for i in range(each, len(windows), each)]  # the first is warm-up
    calls.sort(key=lambda call: sum(w.end_ns - w.start_ns for w in call))
    quiet = sorted(window for call in calls[: (len(calls) + 1) // 2] for window in call)
    return by_phase((kernels if cuda else operators)(events), quiet, plain, cuda=cuda)


class Window(NamedTuple):
    """A phase of one call: when it ran."""

    start_ns: int
    end_ns: int
    phase: str


class Ran(NamedTuple):
    """An operator without those that it called, or a kernel: when it began or was launched."""

    at_ns: int
    name: str
    nanoseconds: int
    flops: int
    moved: int  # bytes of its operands and results: what it must read and write at the least


def operators(events: Sequence[Any]) -> Iterator[Ran]:
    """Operators of the host."""
    names = [(event.name(), event) for event in events]
    for own in own_of(names, (*OPERATORS, COMPILED), allocations=True):
        given, event = _given(own.event), own.event
        if not given or any(_given(called) >= given for called in own.called):
            moved = 0  # it handed all of its operands to another
        else:
            moved = given + own.allocated
        name = shown_name(own.name)
        yield Ran(event.start_ns(), name, own.nanoseconds, event.flops(), moved)


def kernels(events: Sequence[Any]) -> Iterator[Ran]:
    """Kernels of the device, at the instant of the operator that launched each."""
    launched = {  # the driver's own calls are linked to an operator, and have numbers of their own
        e.correlation_id(): e
        for e in events
        if e.device_type() == CPU and e.correlation_id() > 0 and not e.linked_correlation_id()
    }
    for event in events:
        by = launched.get(event.linked_correlation_id())
        if event.device_type() == CUDA and not event.is_user_annotation() and by is not None:
            yield Ran(by.start_ns(), event.name(), event.duration_ns(), by.flops(), 0)


def by_phase(
    ran: Iterable[Ran], windows: Sequence[Window], plain: Mapping[str, Any], *, cuda: bool
) -> list[dict[str, Any]]:
    """Each phase of a call with its operators, longest first.

    ``flops`` and ``bytes`` are None where torch does not know them.
    """
    sums: dict[str, dict[str, Any]] = {
        w.phase: defaultdict(lambda: np.zeros(4, dtype=np.int64)) for w in windows
    }
    for each in ran:
        at = bisect_right(windows, each.at_ns, key=lambda w: w.start_ns) - 1
        if at >= 0 and each.at_ns < windows[at].end_ns:
            sums[windows[at].phase][each.name] += (each.nanoseconds, 1, each.flops, each.moved)
    result = []
    for phase, found in sums.items():
        spans = [w.end_ns - w.start_ns for w in windows if w.phase == phase]
        inside_ns = float(sum(row[0] for row in found.values())) / len(spans)
        wall_ns = inside_ns if cuda else sum(spans) / len(spans)
        rows = []
        for name, total in sorted(found.items(), key=lambda row: -row[1][0]):
            nanoseconds, calls, flops, moved = (total / len(spans)).tolist()
            if nanoseconds > 0:
                rows.append(
                    {
                        "name": name,
                        "self_s": nanoseconds * 1e-9,
                        "share": nanoseconds / wall_ns if wall_ns else 0.0,
                        "calls": calls,
                        "flops": flops or None,
                        "bytes": moved or None,
                        "flop_rate": flops / nanoseconds * 1e9 if flops else None,
                    }
                )
        result.append(
            {
                "name": phase,
                "of": "kernels" if cuda else "operators",
                "plain_s": plain[f"{phase}_s"],
                "profiled_s": wall_ns * 1e-9,
                "outside_s": max(0.0, wall_ns - inside_ns) * 1e-9,
                "operators": rows,
            }
        )
    return result


BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "bool": 1, "long int": 8,
    "int": 4, "c10::complex<float>": 8, "unsigned char": 1,
}  # fmt: skip
"""Bytes of a number, by the profiler's name of its type; others are not tensors."""
OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_")
"""They write their first operand and do not read it."""


def _given(event: Any) -> int:
    """Bytes of the tensors that an operator reads or overwrites; twice where it does both."""
    name, kind = event.name(), _kind(event.name())
    if kind == "view" or name.startswith(ALLOCATES):
        return 0
    typed = zip(event.shapes(), event.dtypes(), strict=False)
    sizes = [prod(shape) * BYTES[dtype] for shape, dtype in typed if dtype in BYTES]
    if kind == "in place" and name not in OVERWRITES:
        sizes += sizes[:1]
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


MARK = "attnbench line: "
EVALUATES = "autograd::engine::evaluate_function: "  # prefix of autograd's own events
ARRAYS, LEAST_ARRAY = "array", 1 << 16
"""The operator's name where Python's own allocators gave the memory, as for NumPy, and the fewest
bytes from them that are an array."""


@contextmanager
def _marks(files: tuple[str, ...], arrays: list[tuple[int, int]]) -> Iterator[None]:
    """Inside the block, put a mark into the profile at each line of the variant's code.

    Where Python's allocators are traced, ``arrays`` gets what they hold at each mark, and the most
    since the one before.
    """

    def own(frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(files)

    def follow(frame: FrameType, what: str, _: Any) -> Any:
        """For every line of such a function, and its end: the line of its caller goes on."""
        at: FrameType | None = frame
        if what == "return":
            at = frame.f_back
            while at is not None and not own(at):
                at = at.f_back
        if what in ("line", "return"):
            if tracemalloc.is_tracing():
                arrays.append(tracemalloc.get_traced_memory())
                tracemalloc.reset_peak()
            place = "" if at is None else f"{at.f_code.co_filename}:{at.f_lineno}"
            with _RecordFunctionFast(MARK + place):
                pass
        return follow

    before = sys.gettrace()
    sys.settrace(lambda frame, what, _: follow if own(frame) else None)
    try:
        yield
    finally:
        sys.settrace(before)


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
        """``arrays``: as :func:`_marks` has them."""
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
            elif node.name in PHASES:
                self._backward = node.name == BACKWARD
                if self._backward:
                    self._numbers, self.turn_ns = sorted(self._lines), node.start_time_ns
                else:
                    self.start_ns = node.start_time_ns
                self._go_to("", node.start_time_ns)
                self._visit(node.children)
                self.end_ns = node.end_time_ns
                self._go_to("", node.end_time_ns)
            else:
                self._operator(node)

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

    # the largest single allocation, and how many were as large
    most = max(0, *gained.tolist()) if kept else 0
    alike = [s for _, s, nbytes in timeline.steps if nbytes > 0 and nbytes >= (1 - ALIKE) * most]

    def ms(at: int) -> float:
        return (at - timeline.start_ns) * 1e-6

    return {
        "peak_bytes": peak,
        "peak_ms": ms(peak_ns),
        "peak_phase": "backward" if turn is not None and peak_ns >= turn else "forward",
        "turn_ms": None if turn is None else ms(turn),
        "turn_bytes": None if turn is None else int(totals[turned - 1]) if turned else 0,
        "end_ms": ms(timeline.end_ns),
        "largest": {
            "bytes": most,
            "count": len(alike),
            "forward": sum(not source.backward for source in alike),
        },
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
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file else ""
