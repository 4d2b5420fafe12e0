"""The operators or kernels of a call by phase, a trace, and its memory.

In the worker that measures: :func:`answer` is what the verb asks it for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.autograd.profiler import profile, record_function
from torch.autograd.profiler_util import FunctionEvent, Interval

from attnbench.core.device import Step, device_for
from attnbench.core.record import Record, Status
from attnbench.core.wire import Job, convert, plain
from attnbench.gate.inputs import Call
from attnbench.meter.cell import Bench
from attnbench.meter.clocks import clock_for
from attnbench.meter.endings import NotReady
from attnbench.meter.memory import (
    COMPILED,
    OPERATORS,
    observe,
    shown_name,
    warm_profiler,
)
from attnbench.meter.ranks import note_of
from attnbench.meter.timer import Ready

FORWARD, BACKWARD = "attnbench: forward", "attnbench: backward"
PHASES = {FORWARD: "forward", BACKWARD: "backward"}
CPU = torch.autograd.DeviceType.CPU
PLAIN, PLAIN_S = 25, 2.0  # calls under the clock, and about how long they may take together
LEAST_PROFILED, MOST_PROFILED, PROFILED_S = 2, 20, 0.4
FREE_SHARE = 0.4  # how much of the free memory may be taken beforehand


def answer(bench: Bench, question: Mapping[str, Any]) -> dict[str, Any]:
    """The profile of a variant that passes the gate, else the record that says why there is none.

    A worker that has profiled is spoiled: the profiler has fragmented the heap, and what comes
    after would be slower for it.
    """
    job = convert(question["job"], Job)
    if job.variant.ranks:
        reason = f"profile looks into one process, and {job.variant.label} runs over several"
        return {"record": plain(Record.of(job.variant, job.problem, Status.UNSUPPORTED, reason))}
    try:
        ready = bench.ready(job)
    except NotReady as stopped:
        return {"record": plain(stopped.record)}
    try:
        return {"profile": profile_call(ready, question["trace"]), "spoiled": True}
    except Exception as error:
        reason = (
            f"it passed the correctness check, and under the profiler raised "
            f"{type(error).__name__}: {error}"
        )
        record = Record.of(job.variant, job.problem, Status.FAILED, reason)
        return {"record": plain(record), "spoiled": True}


def profile_call(ready: Ready, trace: str) -> dict[str, Any]:
    """The profile of one variant's call, as plain values; the trace goes to a file."""
    variant, problem, cost = ready.job.variant, ready.job.problem, ready.cost
    inputs, dout = ready.values
    call, device = Call(problem, ready.attend, inputs), device_for(problem.device)
    _run_phases(call, dout)
    took = _time_plain(call, dout)
    rounds = took["forward_s"] + (took["backward_s"] or 0.0)
    rounds = max(LEAST_PROFILED, min(MOST_PROFILED, int(PROFILED_S / max(rounds, 1e-6))))
    if device.queued:  # no clock runs from here on
        warm_profiler(kernels_on=device.device.type)
    expected = cost.peak_bytes if cost else None
    memory = observe(problem, ready.attend, inputs, dout, expected).memory
    if not device.queued:
        # The profiler's notes take memory that one call frees and the next would take again. Hold
        # pages for all calls beforehand: fresh ones from the system are slower than an operator.
        need = (rounds + 2) * 2 * (memory.peak_bytes or 0)
        need = min(need, int(FREE_SHARE * device.free_bytes()))
        torch.empty(need, dtype=torch.uint8).fill_(0)
    scores = problem.batch * problem.heads * problem.q_len * problem.kv_len
    work = cost and {"flops": cost.flops, "bytes": cost.bytes}
    return {
        "variant": variant.label,
        "computes": variant.computes,
        "problem": plain(problem),
        "slug": str(problem),
        "threads": torch.get_num_threads(),
        "note": note_of(ready.attend),
        "plain": took,
        "phases": _profile_phases(call, dout, rounds, took, trace),
        "cost": work and {**work, "flop_rate": work["flops"] / took["total_s"]},
        "memory": {**plain(memory), "scores_bytes": scores * problem.item_bytes},
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


def _profile_phases(
    call: Call, dout: torch.Tensor | None, rounds: int, plain: Mapping[str, Any], trace: str
) -> list[dict[str, Any]]:
    """Operators or kernels by phase, from some calls under the profiler.

    torch.profiler's own class would load torch's compiler first.
    """
    device = device_for(call.problem.device)
    kind = device.device.type if device.queued else None
    with profile(use_kineto=True, use_device=kind, with_flops=True) as watched:
        for _ in range(rounds + 1):
            _run_phases(call, dout)
        device.synchronize()
    watched.export_chrome_trace(trace)
    return by_phase(watched.function_events, plain, cuda=device.queued)


Execution = tuple[float, str, float, int]
"""When it began or was launched, its name, its microseconds and its flops."""


def executions(events: Iterable[FunctionEvent], *, cuda: bool) -> Iterator[Execution]:
    """Operators of the host without those that they called, or kernels of the device."""
    for event in events:
        if event.device_type != CPU or event.is_user_annotation:
            continue
        start, flops = event.time_range.start, event.flops or 0
        for kernel in event.kernels if cuda else ():
            yield start, kernel.name, kernel.duration, flops
        if not cuda and event.name.startswith((*OPERATORS, COMPILED)):
            yield start, shown_name(event.name), event.self_cpu_time_total, flops


def by_phase(
    events: Iterable[FunctionEvent], plain: Mapping[str, Any], *, cuda: bool
) -> list[dict[str, Any]]:
    """Each phase of a call with its operators, longest first; the first call is warm-up.

    ``flops`` is None where torch does not know them.
    """
    events = list(events)
    windows = [
        (e.time_range, PHASES[e.name]) for e in events if e.name in PHASES and e.device_type == CPU
    ]
    windows = sorted(windows, key=lambda window: window[0].start)
    names = list(dict.fromkeys(name for _, name in windows))
    windows = windows[len(names) :]
    sums: dict[str, dict[str, Any]] = {name: defaultdict(lambda: np.zeros(3)) for name in names}
    for start, name, microseconds, flops in executions(events, cuda=cuda):
        at = bisect_right(windows, start, key=lambda window: window[0].start) - 1
        if at >= 0 and start < windows[at][0].end:
            sums[windows[at][1]][name] += (microseconds * 1e-6, 1, flops)
    return [
        _phase(name, [span for span, of in windows if of == name], sums[name], plain, cuda=cuda)
        for name in names
    ]


def _phase(
    name: str,
    spans: list[Interval],
    sums: Mapping[str, Any],
    plain: Mapping[str, Any],
    *,
    cuda: bool,
) -> dict[str, Any]:
    """A phase of one call, its sums shared out among all calls."""
    inside_s = float(sum(row[0] for row in sums.values())) / len(spans)
    wall_s = inside_s if cuda else sum(x.end - x.start for x in spans) * 1e-6 / len(spans)
    rows = []
    for operator, total in sorted(sums.items(), key=lambda row: -row[1][0]):
        seconds, calls, flops = (total / len(spans)).tolist()
        rates = {"flops": flops or None, "flop_rate": flops / seconds if flops else None}
        share = seconds / wall_s if wall_s else 0.0
        if seconds > 0:
            rows.append(
                {"name": operator, "self_s": seconds, "share": share, "calls": calls, **rates}
            )
    return {
        "name": name,
        "of": "kernels" if cuda else "operators",
        "plain_s": plain[f"{name}_s"],
        "profiled_s": wall_s,
        "outside_s": max(0.0, wall_s - inside_s),
        "operators": rows,
    }
