"""Memory: bytes live above the inputs at the worst instant, and what stays saved for backward.

On CUDA the caching allocator counts the requested bytes. On the CPU the profiler reports every
allocation and release of torch's allocator, scratch inside kernels included, and their running sum
is exact; the process's own high-water mark checks it, since memory taken past that allocator
(NumPy's, a library's) shows there alone.
"""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import profile, record_function

from attnbench.core.format import size
from attnbench.core.record import Memory
from attnbench.gate.inputs import Attend, Call, Inputs
from impls.cost import output_bytes
from impls.problem import Problem

OPERATORS = ("aten::", "torch_", "triton_", "mkldnn::", "quantized::", "Torch-Compiled")
"""Prefixes of what computes; the rest is the profiler's and autograd's bookkeeping."""
COMPILED = "## Call CompiledFxGraph"
"""Prefix of a compiled graph's call; its hash follows."""
MEMORY = "[memory]"  # the name of an allocation, or of a release

Event = tuple[str, Any]  # an event with its name, which takes long to read


class Own(NamedTuple):
    """An operator's event, without the operators that it called."""

    event: Any
    name: str
    nanoseconds: int
    called: list[Any]  # the events of the operators that it called itself


def shown_name(name: str) -> str:
    """The name as it is shown: a compiled graph's without its hash."""
    return "compiled graph" if name.startswith(COMPILED) else name


def own_of(events: Iterable[Event], names: tuple[str, ...] = OPERATORS) -> Iterator[Own]:
    """Each operator that ran, without the operators inside it."""
    by_thread = defaultdict[int, Any](list)
    for number, (name, event) in enumerate(events):
        if name.startswith(names):  # the longer of two that start at once called the other
            call = (event.start_ns(), -event.duration_ns(), number, name, event)
            by_thread[event.start_thread_id()].append(call)
    for calls in by_thread.values():
        yield from _of_thread(sorted(calls))


def _of_thread(calls: list[tuple[int, int, int, str, Any]]) -> Iterator[Own]:
    own = [-minus for _, minus, *_ in calls]
    calls_of: list[list[Any]] = [[] for _ in calls]
    within: list[tuple[int, int]] = []  # the calls that are not over: their ends, and which
    for at, (start, minus, _, _, event) in enumerate(calls):
        while within and within[-1][0] <= start:
            within.pop()
        if within:
            own[within[-1][1]] += minus
            calls_of[within[-1][1]].append(event)
        within.append((start - minus, at))
    for at, (_, _, _, name, event) in enumerate(calls):
        yield Own(event, name, own[at], calls_of[at])


BETWEEN = "attnbench: between forward and backward"
ARRAY_BYTES = 1 << 18  # beyond this, what Python's own tracing saw is arrays and not small objects
UNSEEN_SHARE, UNSEEN_BYTES = 0.10, 32 << 20
"""A high-water mark beyond the sum by both of these: memory that torch's allocator did not give."""
HIGH_WATER, SURE = "high-water mark", 3
"""How often in a row it must be beyond to be believed: a fragmented heap grows, too."""
OPERATOR = re.compile(r"\w+::\w+$|Torch-Compiled")
NO_KERNEL = re.compile(
    "aten::(empty|resize_|as_strided|view|_unsafe_view|_reshape_alias|alias|detach|unsqueeze|expand"
    "|select|slice|transpose)"
)
"""Prefixes of operators that launch nothing on a GPU."""
MOST_KERNELS = 12
MOST_THINGS = 20000  # how many of the objects that a variant refers to are looked at


def warm_profiler(*, kernels: bool = False) -> None:
    """The first profiles take longer than others, and memory of their own.

    They are autograd's: ``torch.profiler`` loads torch's compiler, two seconds of each process.
    ``kernels``: see a GPU's kernels as well. The first profile of a process decides whether any
    later one does. Only a process that takes no more times may: NVIDIA's tracing stays attached
    afterwards, and slows every launch.
    """
    device = "cuda" if kernels else None
    for _ in range(2):
        with profile(use_device=device, use_kineto=True, profile_memory=True):
            torch.ones(8, 8) @ torch.ones(8, 8)


class Observed(NamedTuple):
    """One profiled call: its memory, the operators that took longest, its results."""

    memory: Memory
    kernels: list[str]
    ran: frozenset[str]  # every operator that ran, on whatever device
    results: dict[str, torch.Tensor]  # output and gradients, by name
    launches: int
    """About how many kernels it launches on a GPU: the operators that call no other, but for those
    that only allocate or view a tensor."""


def observe(
    problem: Problem,
    attend: Attend,
    inputs: Inputs,
    dout: torch.Tensor | None,
    expected: int | None,
    grown: int | None = None,
    *,
    known: Observed | None = None,
    sure: int = SURE,
    settle: Callable[[], object] | None = None,
) -> Observed:
    """One call under the profiler, after others have warmed every cache.

    ``known``: what was seen of the variant at another length, which a GPU is not asked again.
    ``grown``: by how much the process grew in a call without it; measured here if not given.
    ``sure``: how many calls at most. ``settle`` is called before the profiler ends, and waits for
    threads that must not outlast it.
    """
    call = Call(problem, attend, inputs)
    if problem.device != "cpu":
        return _observe_cuda(call, dout, expected, known)
    run = partial(_run, call, dout, settle)
    for _ in range(sure):
        if grown is None:
            grown = growth(lambda: _run(call, dout))
        observed, grown = _observe_cpu(call, run, expected, grown), None
        if observed.memory.method != HIGH_WATER:
            break
    return observed


def growth(run: Callable[[], object]) -> int:
    """Bytes by which a call makes the process larger, at the most, with no profiler on."""
    resident = _reset_high_water()
    run()
    return _kernel_bytes("VmHWM") - resident


def _observe_cuda(
    call: Call, dout: torch.Tensor | None, expected: int | None, known: Observed | None
) -> Observed:
    device, saved = call.problem.device, None

    def requested(which: str) -> int:
        torch.cuda.synchronize(device)
        return int(torch.cuda.memory_stats(device)[f"requested_bytes.all.{which}"])

    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    base = requested("current")
    profiler: Any = nullcontext() if known else profile(use_kineto=True)  # see warm_profiler
    with profiler as profiler_:
        results = _run(call, dout)
        torch.cuda.synchronize(device)
    peak = requested("peak") - base
    if call.problem.gradients:
        before = requested("current")
        out = call.forward()
        saved = requested("current") - before - out.numel() * out.element_size()
    memory = Memory(peak, saved, expected, "requested bytes of the caching allocator")
    if known is not None:
        return known._replace(memory=memory, results=results)
    events = [(e.name(), e) for e in profiler_.kineto_results.events()]
    return _observed(memory, events, results)


def _observed(memory: Memory, events: list[Event], results: dict[str, torch.Tensor]) -> Observed:
    own, spent = list(own_of(events)), Counter[str]()
    launches = sum(not each.called and not NO_KERNEL.match(each.name) for each in own)
    for each in own:
        spent[each.name] += each.nanoseconds
    longest = [name for name, nanoseconds in spent.most_common(MOST_KERNELS) if nanoseconds > 0]
    ran = frozenset(name for name in {name for name, _ in events} if OPERATOR.match(name))
    return Observed(memory, longest, ran, results, launches)


def _observe_cpu(
    call: Call, run: Callable[[], dict[str, torch.Tensor]], expected: int | None, rise: int
) -> Observed:
    resident, own_bytes = _reset_high_water(), output_bytes(call.problem)
    tracemalloc.start()
    with profile(use_kineto=True, profile_memory=True) as profiler:
        results = run()
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    high = max(rise, _kernel_bytes("VmHWM") - resident)
    events = [(e.name(), e) for e in profiler.kineto_results.events()]
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
    held_bytes = _held_bytes(call)
    if held_bytes > peak * UNSEEN_SHARE + ARRAY_BYTES:
        flags.append(f"it holds {size(held_bytes)} from call to call: it is not in its peak")
    saved = None if between is None else between - own_bytes
    return _observed(Memory(peak, saved, expected, method, flags), events, results)


def _held_bytes(call: Call) -> int:
    """Bytes of the tensors that a variant holds, its weights left out: masks, scratch, results."""
    ruler = (*call.leaves.values(), *call.new.values(), *call.weights.values())
    own = {x.untyped_storage().data_ptr() for x in ruler}
    sizes: dict[int, int] = {}
    visited, todo = {id(call)}, list[Any]([call.attend])
    while todo:
        thing = todo.pop()
        if id(thing) in visited or isinstance(thing, ModuleType | type | FrameType):
            continue
        visited.add(id(thing))
        if type(thing) is torch.Tensor and thing.layout is torch.strided:
            sizes[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, FunctionType):  # not its globals
            todo += [*(thing.__closure__ or ()), *(thing.__defaults__ or ())]
        elif len(visited) < MOST_THINGS:
            todo += gc.get_referents(thing)
    return sum(size for at, size in sizes.items() if at not in own)


def _run(
    call: Call, dout: torch.Tensor | None, settle: Callable[[], object] | None = None
) -> dict[str, torch.Tensor]:
    results = {"forward": call.forward()}
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


def _kernel_bytes(field: str, file: str = "/proc/self/status") -> int:
    """What the kernel reports under a name, in kilobytes; 0 where it doesn't."""
    with Path(file).open() as lines:
        return next((int(x.split()[1]) * 1024 for x in lines if x.startswith(field)), 0)


def _reset_high_water() -> int:
    """Begin a new high-water mark; returns what the process holds now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _kernel_bytes("VmHWM")
    return _kernel_bytes("VmRSS")


FREE_SHARE = 0.9  # how much of the free memory may be taken


def check_room(need: int, device: str, what: str, beside: str) -> None:
    """Raise MemoryError where so many bytes would not fit, rather than try.

    ``what`` needs them, ``beside`` (above, or with) its inputs. Where a GPU's driver has too
    little, torch first gives back what it keeps: not every library gets its memory from torch.
    """
    if device != "cpu" and need > FREE_SHARE * torch.cuda.mem_get_info(device)[0]:
        release(device)
    free = free_bytes(device)
    if need > FREE_SHARE * free:
        raise MemoryError(
            f"predicted, not run: {what} needs {size(need)} {beside} its inputs and {size(free)} "
            "are free"
        )


def free_bytes(device: str) -> int:
    """What the machine has free, or this process may still take."""
    if device != "cpu":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused  # which torch keeps for later
    free = _kernel_bytes("MemAvailable", "/proc/meminfo")
    limit = getrlimit(RLIMIT_DATA)[0]
    if limit == RLIM_INFINITY:
        return free
    return min(free, limit - _kernel_bytes("VmData"))


def release(device: str) -> None:
    """Collect garbage, and give back the GPU memory that torch keeps unused."""
    gc.collect()
    if device != "cpu":
        with suppress(RuntimeError):  # the context is gone, with all its memory
            torch.cuda.empty_cache()
