"""Where one variant's time and memory go: operators by phase, a trace, memory by line of code.

Three looks at the same call, each undisturbed by the others: plain calls under the clock; calls
under the profiler for operators and the trace; one call with its allocations and its lines. None of
it is part of any timing that a record holds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from attnbench.measure.cell import Bench, NotReady
from attnbench.measure.clocks import clock_for
from attnbench.measure.job import Job, Ready
from attnbench.measure.memory import ARRAY_BYTES, observe, warm_profiler
from attnbench.measure.profile.lines import Marks, files_of, marked
from attnbench.measure.profile.operators import When, Window, kernels, operators
from attnbench.measure.profile.timeline import BACKWARD, FORWARD, Reader, Timeline
from attnbench.measure.profile.told import line_values, memory_values
from attnbench.measure.team.made import runs_over_ranks
from attnbench.record import Record, Status
from attnbench.truth.call import Call

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
        "variant": variant.label, "title": variant.title, "computes": variant.computes,
        "problem": problem.to_dict(), "slug": problem.slug, "threads": torch.get_num_threads(),
        "note": str(note()) if callable(note) else "", "plain": plain, "phases": phases,
        "cost": None if cost is None else {"flops": cost.flops, "bytes": cost.bytes,
                                           "flop_rate": cost.flops / plain["total_s"]},
        "memory": memory, "observed": seen.to_dict(),
        "lines": line_values(timeline, memory, timed=problem.device == "cpu"),
        "caveats": list(_caveats(memory, seen.peak_bytes, seen.flags)),
    }  # fmt: skip


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
        "clock": clock.name, "forward_s": once(nothing, call.forward), "backward_s": None
    }  # fmt: skip
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


def _by_phase(call: Call, dout: torch.Tensor | None, plain: dict[str, Any],
              trace: Path | None) -> list[dict[str, Any]]:  # fmt: skip
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
        _phase(phase, found.get(phase, {}), [w for w in windows if w.phase == phase],
               plain[f"{phase}_s"], cuda=cuda)
        for phase in dict.fromkeys(w.phase for w in windows)
    ]  # fmt: skip


def _rounds(seconds: float) -> int:
    """How many calls of such a length are profiled."""
    return max(LEAST_PROFILED, min(MOST_PROFILED, int(PROFILED_S / max(seconds, 1e-6))))


def _windows(events: Iterable[Any]) -> list[Window]:
    """The phases of the quieter half of the calls; the first warms the profiler up."""
    marks = [e for e in events if e.name() in PHASES
             and e.device_type() == torch.autograd.DeviceType.CPU]  # fmt: skip
    found = sorted(
        (Window(PHASES[e.name()], e.start_ns(), e.end_ns()) for e in marks),
        key=lambda w: w.start_ns,
    )
    phases = len({w.phase for w in found})
    calls = [found[i : i + phases] for i in range(phases, len(found), phases)]
    calls.sort(key=lambda call: sum(w.end_ns - w.start_ns for w in call))
    return [window for call in calls[: (len(calls) + 1) // 2] for window in call]


def _phase(name: str, spent: dict[str, Any], windows: list[Window], plain_s: float | None, *,
           cuda: bool) -> dict[str, Any]:  # fmt: skip
    rounds = max(1, len(windows))
    inside_ns = sum(s.nanoseconds for s in spent.values()) / rounds
    wall_ns = inside_ns if cuda else sum(w.end_ns - w.start_ns for w in windows) / rounds
    rows = [s.to_dict(name, rounds, wall_ns) for name, s in spent.items() if s.nanoseconds > 0]
    return {
        "name": name, "of": "kernels" if cuda else "operators", "plain_s": plain_s,
        "profiled_s": wall_ns * 1e-9, "outside_s": max(0.0, wall_ns - inside_ns) * 1e-9,
        "operators": sorted(rows, key=lambda row: -row["self_s"]),
    }  # fmt: skip


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
