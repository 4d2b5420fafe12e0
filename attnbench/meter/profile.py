"""Where a call's time goes: its operators or kernels by phase, beside its :mod:`timeline`."""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
import tracemalloc
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
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
from attnbench.meter.ranks import note_of, runs_over_ranks
from attnbench.meter.timed import Job, Ready
from attnbench.meter.timeline import BACKWARD, FORWARD, Marks, Timeline, line_values, memory_values
from impls.loading import load_function

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
    if runs_over_ranks(job.variant):
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
            f"it passed the gate, and under the profiler raised {type(error).__name__}: {error}"
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
        once = sum(nbytes for _, _, nbytes in first.steps if nbytes > 0)
        _fault_in((rounds + 2) * once)
    phases = _profiled_phases(call, dout, rounds, plain, trace)
    timeline = _timeline(call, dout, files)
    p, memory = problem, memory_values(timeline)
    memory["scores_bytes"] = p.batch * p.heads * p.q_len * p.kv_len * p.item_bytes
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
        "cost": cost
        and {"flops": cost.flops, "bytes": cost.bytes, "flop_rate": cost.flops / plain["total_s"]},
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


def _plain(call: Call, dout: torch.Tensor | None) -> dict[str, Any]:
    """Medians of calls without the profiler."""
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


def _fault_in(nbytes: int) -> None:
    """Have the process hold pages for all that the profiled calls will allocate.

    The profiler's notes take the memory that one call frees and the next would take again, so that
    the next gets pages from the system that it has never touched: that is slower than many an
    operator, and does not happen in plain calls.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    torch.empty(min(nbytes, int(FREE_SHARE * free)), dtype=torch.uint8).fill_(0)


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
    return Timeline(roots, call.problem.device.partition(":")[0], arrays)


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


def _profiled_phases(
    call: Call, dout: torch.Tensor | None, rounds: int, plain: Mapping[str, Any], trace: Path | None
) -> list[dict[str, Any]]:
    """Operators or kernels by phase, from calls under the profiler."""

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
    events, cuda = seen.profiler.kineto_results.events(), call.problem.device != "cpu"
    windows = _windows(events)
    return by_phase((kernels if cuda else operators)(events), windows, plain, cuda=cuda)


class Window(NamedTuple):
    """A phase of one call: when it ran."""

    start_ns: int
    end_ns: int
    phase: str


def _windows(events: Iterable[Any]) -> list[Window]:
    """The phases of the quieter half of the calls, in order; the first call is a warm-up."""
    windows = sorted(
        Window(e.start_ns(), e.end_ns(), PHASES[e.name()])
        for e in events
        if e.name() in PHASES and e.device_type() == CPU
    )
    phases = len({w.phase for w in windows})
    calls = [windows[i : i + phases] for i in range(phases, len(windows), phases)]
    calls.sort(key=lambda call: sum(w.end_ns - w.start_ns for w in call))
    return sorted(window for call in calls[: (len(calls) + 1) // 2] for window in call)


class Ran(NamedTuple):
    """An operator without those that it called, or a kernel: when it began or was launched."""

    at_ns: int
    name: str
    nanoseconds: int
    flops: int
    moved: int  # bytes of its operands and results: what it must read and write at the least


def operators(events: Sequence[Any]) -> Iterator[Ran]:
    """Operators of the host."""
    for own in own_of(named(events), (*OPERATORS, COMPILED), allocations=True):
        name, event = shown_name(own.name), own.event
        yield Ran(event.start_ns(), name, own.nanoseconds, event.flops(), _moved(own))


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
