"""The operators or kernels of a call by phase, a trace, and its allocations.

In the worker that measures: :func:`answer` is what ``profiles`` asks it for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.profiler import profile, record_function

from attnbench.core.device import Step, device_for
from attnbench.core.job import Job
from attnbench.core.record import Record, Status
from attnbench.gate.inputs import Call
from attnbench.meter.cell import Bench
from attnbench.meter.clocks import clock_for
from attnbench.meter.endings import NotReady
from attnbench.meter.memory import (
    COMPILED,
    MEMORY,
    OPERATORS,
    observe,
    own_of,
    shown_name,
    warm_profiler,
)
from attnbench.meter.ranks import note_of
from attnbench.meter.timer import Ready

FORWARD, BACKWARD = "attnbench: forward", "attnbench: backward"
PHASES = {FORWARD: "forward", BACKWARD: "backward"}
CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
PLAIN, PLAIN_S = 25, 2.0  # calls under the clock, and about how long they may take together
LEAST_PROFILED, MOST_PROFILED, PROFILED_S = 2, 20, 0.4
FREE_SHARE = 0.4  # how much of the free memory may be taken beforehand
ALIKE = 0.01  # allocations whose sizes differ by less are as large


def answer(bench: Bench, question: Mapping[str, Any]) -> dict[str, Any]:
    """The profile of a variant that passes the gate, else the record that says why there is none.

    A worker that has profiled is spoiled: the profiler has fragmented the heap, and what comes
    after would be slower for it.
    """
    job = Job.from_dict(question["job"])
    if job.variant.ranks:
        reason = f"profile looks into one process, and {job.variant.label} runs over several"
        return {"record": Record.of(job.variant, job.problem, Status.UNSUPPORTED, reason).to_dict()}
    try:
        ready = bench.ready(job)
    except NotReady as stopped:
        return {"record": stopped.record.to_dict()}
    try:
        return {"profile": profile_call(ready, question["trace"]), "spoiled": True}
    except Exception as error:
        reason = (
            f"it passed the correctness check, and under the profiler raised "
            f"{type(error).__name__}: {error}"
        )
        record = Record.of(job.variant, job.problem, Status.FAILED, reason)
        return {"record": record.to_dict(), "spoiled": True}


def profile_call(ready: Ready, trace: str) -> dict[str, Any]:
    """The profile of one variant's call, as plain values; the trace goes to a file."""
    variant, problem, cost = ready.job.variant, ready.job.problem, ready.cost
    inputs, dout = ready.values
    call, device = Call(problem, ready.attend, inputs), device_for(problem.device)
    _run_phases(call, dout)
    plain = _time_plain(call, dout)
    rounds = plain["forward_s"] + (plain["backward_s"] or 0.0)
    rounds = max(LEAST_PROFILED, min(MOST_PROFILED, int(PROFILED_S / max(rounds, 1e-6))))
    if device.queued:  # no clock runs from here on
        warm_profiler(kernels_on=device.device.type)
    expected = cost.peak_bytes if cost else None
    memory = observe(problem, ready.attend, inputs, dout, expected).memory
    allocated = _allocations(call, dout)
    if not device.queued:
        # Have the process hold pages for all that the profiled calls will allocate. The profiler's
        # notes take the memory that one call frees and the next would take again, so that the next
        # gets pages from the system that it has never touched: that is slower than many an
        # operator, and does not happen in plain calls.
        need = min((rounds + 2) * sum(allocated), int(FREE_SHARE * device.free_bytes()))
        torch.empty(need, dtype=torch.uint8).fill_(0)
    largest = max(allocated, default=0)
    alike = sum(nbytes >= (1 - ALIKE) * largest for nbytes in allocated)
    scores = problem.batch * problem.heads * problem.q_len * problem.kv_len
    work = cost and {"flops": cost.flops, "bytes": cost.bytes}
    return {
        "variant": variant.label,
        "computes": variant.computes,
        "problem": problem.to_dict(),
        "slug": str(problem),
        "threads": torch.get_num_threads(),
        "note": note_of(ready.attend),
        "plain": plain,
        "phases": _profile_phases(call, dout, rounds, plain, trace),
        "cost": work and {**work, "flop_rate": work["flops"] / plain["total_s"]},
        "memory": {
            **memory.to_dict(),
            "scores_bytes": scores * problem.item_bytes,
            "largest": {"bytes": largest, "count": alike},
        },
    }


def _run_phases(call: Call, dout: torch.Tensor | None) -> None:
    with record_function(FORWARD):
        out = call.forward()
    if call.problem.gradients:
        assert dout is not None
        with record_function(BACKWARD):
            call.backward(out, dout)


def _time_plain(call: Call, dout: torch.Tensor | None) -> dict[str, Any]:
    problem, clock = call.problem, clock_for(call.problem.device, call.problem.phase)
    outputs: list[torch.Tensor] = []

    def seconds(before: Step, run: Step) -> float:
        (first,) = clock.samples(before, run, 1)
        more = clock.samples(before, run, max(2, min(PLAIN - 1, int(PLAIN_S / first))))
        return median([first, *more])

    def forward() -> None:
        outputs[:] = [call.forward()]

    forward_s, backward_s = seconds(lambda: None, call.forward), None
    if problem.gradients:
        assert dout is not None
        backward_s = seconds(forward, lambda: call.backward(outputs[0], dout))
    both = 0.0 if problem.phase == "backward" else forward_s
    return {
        "clock": clock.name,
        "forward_s": forward_s,
        "backward_s": backward_s,
        "total_s": both + (backward_s or 0.0),
    }


def _watch(call: Call, run: Callable[[], object], **options: Any) -> Any:
    """Run under the profiler; torch.profiler's own class would load torch's compiler first."""
    device, more = device_for(call.problem.device), {"profile_memory": True, **options}
    kind = device.device.type if device.queued else None
    with profile(use_kineto=True, use_device=kind, **more) as watched:
        run()
        device.synchronize()
    return watched


def _allocations(call: Call, dout: torch.Tensor | None) -> list[int]:
    """Bytes of each allocation of one call, on its own device."""
    events = _watch(call, lambda: _run_phases(call, dout)).kineto_results.events()
    here = getattr(torch.autograd.DeviceType, call.problem.device.partition(":")[0].upper())
    sizes = (e.nbytes() for e in events if e.name() == MEMORY and e.device_type() == here)
    return [nbytes for nbytes in sizes if nbytes > 0]


def _profile_phases(
    call: Call, dout: torch.Tensor | None, rounds: int, plain: Mapping[str, Any], trace: str
) -> list[dict[str, Any]]:
    """Operators or kernels by phase, from the quieter half of some calls under the profiler."""

    def run() -> None:
        for _ in range(rounds + 1):
            _run_phases(call, dout)

    watched = _watch(call, run, with_flops=True)
    watched.export_chrome_trace(trace)
    events, cuda = watched.kineto_results.events(), device_for(call.problem.device).queued
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


class Execution(NamedTuple):
    """An operator without those that it called, or a kernel: when it began or was launched."""

    at_ns: int
    name: str
    nanoseconds: int
    flops: int


def operators(events: Sequence[Any]) -> Iterator[Execution]:
    """Operators of the host."""
    for own in own_of(((e.name(), e) for e in events), (*OPERATORS, COMPILED)):
        name, event = shown_name(own.name), own.event
        yield Execution(event.start_ns(), name, own.nanoseconds, event.flops())


def kernels(events: Sequence[Any]) -> Iterator[Execution]:
    """Kernels of the device, at the instant of the operator that launched each."""
    launched = {  # the driver's own calls are linked to an operator, and have numbers of their own
        e.correlation_id(): e
        for e in events
        if e.device_type() == CPU and e.correlation_id() > 0 and not e.linked_correlation_id()
    }
    for event in events:
        by = launched.get(event.linked_correlation_id())
        if event.device_type() == CUDA and not event.is_user_annotation() and by is not None:
            yield Execution(by.start_ns(), event.name(), event.duration_ns(), by.flops())


def by_phase(
    executions: Iterable[Execution],
    windows: Sequence[Window],
    plain: Mapping[str, Any],
    *,
    cuda: bool,
) -> list[dict[str, Any]]:
    """Each phase of a call with its operators, longest first.

    ``flops`` is None where torch does not know them.
    """
    sums: dict[str, dict[str, Any]] = {
        w.phase: defaultdict(lambda: np.zeros(3, dtype=np.int64)) for w in windows
    }
    for each in executions:
        at = bisect_right(windows, each.at_ns, key=lambda w: w.start_ns) - 1
        if at >= 0 and each.at_ns < windows[at].end_ns:
            sums[windows[at].phase][each.name] += (each.nanoseconds, 1, each.flops)
    result = []
    for phase, by_name in sums.items():
        spans = [w.end_ns - w.start_ns for w in windows if w.phase == phase]
        inside_ns = float(sum(row[0] for row in by_name.values())) / len(spans)
        wall_ns = inside_ns if cuda else sum(spans) / len(spans)
        rows = []
        for name, total in sorted(by_name.items(), key=lambda row: -row[1][0]):
            nanoseconds, calls, flops = (total / len(spans)).tolist()
            if nanoseconds > 0:
                rows.append(
                    {
                        "name": name,
                        "self_s": nanoseconds * 1e-9,
                        "share": nanoseconds / wall_ns if wall_ns else 0.0,
                        "calls": calls,
                        "flops": flops or None,
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
