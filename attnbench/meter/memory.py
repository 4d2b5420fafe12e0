"""Memory: bytes live above the inputs at the worst instant, and what stays saved for backward.

On a GPU the caching allocator counts the requested bytes. On the CPU the profiler reports every
allocation and release of torch's allocator, scratch inside kernels included, and their running sum
is exact; the process's own high-water mark checks it, since memory taken past that allocator
(NumPy's, a library's) shows there alone.
"""

from __future__ import annotations

import re
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import profile, record_function

from attnbench.core.device import Device, device_for
from attnbench.core.format import size
from attnbench.core.record import Memory
from attnbench.gate.inputs import Attend, Call, Inputs, cache_bytes
from impls.cost import output_bytes
from impls.problem import Problem

OPERATORS = ("aten::", "torch_", "triton_", "mkldnn::", "quantized::", "Torch-Compiled")
"""Prefixes of what computes; the rest is the profiler's and autograd's bookkeeping."""
COMPILED = "## Call CompiledFxGraph"
"""Prefix of a compiled graph's call; its hash follows."""
MEMORY = "[memory]"  # the name of an allocation, or of a release

Event = tuple[str, Any]  # an event with its name, which takes long to read


def shown_name(name: str) -> str:
    """The name as it is shown: a compiled graph's without its hash."""
    return "compiled graph" if name.startswith(COMPILED) else name


def own_times(events: Iterable[Event]) -> Iterator[tuple[str, int]]:
    """Each operator that ran, with its nanoseconds without the operators that it called."""
    by_thread = defaultdict[int, list[tuple[int, int, int, str]]](list)
    for number, (name, event) in enumerate(events):
        if name.startswith(OPERATORS):  # the longer of two that start at once called the other
            call = (event.start_ns(), -event.duration_ns(), number, name)
            by_thread[event.start_thread_id()].append(call)
    for calls in by_thread.values():
        calls.sort()
        own = [-minus for _, minus, *_ in calls]
        within: list[tuple[int, int]] = []  # the calls that are not over: their ends, and which
        for at, (start, minus, *_) in enumerate(calls):
            while within and within[-1][0] <= start:
                within.pop()
            if within:
                own[within[-1][1]] += minus
            within.append((start - minus, at))
        yield from ((name, mine) for (*_, name), mine in zip(calls, own, strict=True))


BETWEEN = "attnbench: between forward and backward"
ARRAY_BYTES = 1 << 18  # beyond this, what Python's own tracing saw is arrays and not small objects
UNSEEN_SHARE, UNSEEN_BYTES = 0.10, 32 << 20
"""A high-water mark beyond the sum by both of these: memory that torch's allocator did not give."""
HIGH_WATER, SURE = "high-water mark", 3
"""How often in a row it must be beyond to be believed: a fragmented heap grows, too."""
OPERATOR = re.compile(r"\w+::\w+$|Torch-Compiled")
MOST_KERNELS = 12


def warm_profiler(*, kernels_on: str | None = None) -> None:
    """The first profiles take longer than others, and memory of their own.

    They are autograd's: ``torch.profiler`` loads torch's compiler, two seconds of each process.
    ``kernels_on``: a kind of device whose kernels are seen as well. The first profile of a process
    decides whether any later one does. Only a process that takes no more times may: NVIDIA's
    tracing stays attached afterwards, and slows every launch.
    """
    for _ in range(2):
        with profile(use_device=kernels_on, use_kineto=True, profile_memory=True):
            torch.ones(8, 8) @ torch.ones(8, 8)


class Observed(NamedTuple):
    """One profiled call: its memory, the operators that took longest, its results."""

    memory: Memory
    kernels: list[str]
    ran: frozenset[str]  # every operator that ran, on whatever device
    results: dict[str, torch.Tensor]  # outputs and gradients, by name


def observe(
    problem: Problem,
    attend: Attend,
    inputs: Inputs,
    dout: torch.Tensor | None,
    expected: int | None,
    grown: int | None = None,
    *,
    sure: int = SURE,
    settle: Callable[[], object] | None = None,
) -> Observed:
    """One call under the profiler, after others have warmed every cache.

    ``grown``: by how much the process grew in a call without it; measured here if not given.
    ``sure``: how many calls at most. ``settle`` is called before the profiler ends, and waits for
    threads that must not outlast it.
    """
    call, device = Call(problem, attend, inputs), device_for(problem.device)
    if device.queued:
        return _observe_queued(call, dout, expected, device)
    for _ in range(sure):
        if grown is None:
            grown = growth(lambda: _run(call, dout), device)
        rise, grown = grown, None
        observed = _observe_events(lambda: _run(call, dout, settle), call, expected, device, rise)
        if observed.memory.method != HIGH_WATER:
            break
    return observed


def growth(run: Callable[[], object], device: Device) -> int:
    """Bytes by which a call raises what is in use, at the most, with no profiler on."""
    before = device.reset_peak()
    run()
    return device.peak_bytes() - before


def _observe_queued(
    call: Call, dout: torch.Tensor | None, expected: int | None, device: Any
) -> Observed:
    saved, before = None, device.reset_peak()
    with profile(use_kineto=True) as profiler:  # of no kernel: see warm_profiler
        results = _run(call, dout)
        device.synchronize()
    peak = device.peak_bytes() - before
    if call.problem.gradients:
        before = device.live_bytes()
        out = call.forward()
        saved = device.live_bytes() - before - out.numel() * out.element_size()
        saved -= sum(x.nbytes for x in call.besides.values())
    method = "requested bytes of the caching allocator"
    memory = Memory(peak, saved, expected, method, cache_bytes=cache_bytes(call))
    return _observed(memory, _events(profiler), results)


def _observe_events(
    run: Callable[[], dict[str, torch.Tensor]],
    call: Call,
    expected: int | None,
    device: Device,
    rise: int,
) -> Observed:
    before, own_bytes = device.reset_peak(), output_bytes(call.problem)
    tracemalloc.start()
    with profile(use_kineto=True, profile_memory=True) as profiler:
        results = run()
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    high = max(rise, device.peak_bytes() - before)
    events = _events(profiler)
    peak, between = _replay(events)
    method, flags = "allocation events", []
    if arrays > ARRAY_BYTES or peak < own_bytes:
        peak, method = peak + arrays, "allocation events and traced arrays"
    if peak < own_bytes:
        flags.append(
            "it allocated less than its output: what it holds since it was built is not seen"
        )
    if high > peak * (1 + UNSEEN_SHARE) + UNSEEN_BYTES:
        flags.append(f"the process grew by {size(high)}: memory taken past torch's allocator")
        peak, method = high, HIGH_WATER
    saved = None if between is None else between - own_bytes
    memory = Memory(peak, saved, expected, method, flags, cache_bytes(call))
    return _observed(memory, events, results)


def _events(profiler: Any) -> list[Event]:
    return [(e.name(), e) for e in profiler.kineto_results.events()]


def _observed(memory: Memory, events: list[Event], results: dict[str, torch.Tensor]) -> Observed:
    spent = Counter[str]()
    for name, nanoseconds in own_times(events):
        spent[name] += nanoseconds
    longest = [name for name, nanoseconds in spent.most_common(MOST_KERNELS) if nanoseconds > 0]
    ran = frozenset(name for name in {name for name, _ in events} if OPERATOR.match(name))
    return Observed(memory, longest, ran, results)


def _run(
    call: Call, dout: torch.Tensor | None, settle: Callable[[], object] | None = None
) -> dict[str, torch.Tensor]:
    results = {"forward": call.forward(), **call.besides}
    if call.problem.gradients:
        assert dout is not None
        with record_function(BETWEEN):
            pass
        gradients = call.backward(results["forward"], dout)
        results.update(zip(call.names, gradients, strict=True))
    if settle is not None:
        settle()
    return results


def _replay(events: list[Event]) -> tuple[int, int | None]:
    """The highest running sum of allocations, and the sum between forward and backward."""
    steps = [(e.start_ns(), e.nbytes()) for name, e in events if name == MEMORY]
    turn = next((e.start_ns() for name, e in events if name == BETWEEN), None)
    total = peak = 0
    for _, nbytes in sorted(steps, key=itemgetter(0)):
        total += nbytes
        peak = max(peak, total)
    return peak, None if turn is None else sum(nbytes for at, nbytes in steps if at < turn)


FREE_SHARE = 0.9  # how much of the free memory may be taken


def check_room(need: int, device: Device, what: str, beside: str) -> None:
    """Raise MemoryError where so many bytes would not fit, rather than try.

    ``what`` needs them, ``beside`` (above, or with) its inputs. Where a GPU's driver has too
    little, torch first gives back what it keeps: not every library gets its memory from torch.
    """
    if need > FREE_SHARE * device.driver_free_bytes():
        device.release()
    free = device.free_bytes()
    if need > FREE_SHARE * free:
        raise MemoryError(
            f"predicted, not run: {what} needs {size(need)} {beside} its inputs and {size(free)} "
            "are free"
        )
