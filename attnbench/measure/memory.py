"""Memory: bytes live above the inputs at the worst instant, and what stays saved for backward.

On CUDA the caching allocator counts the bytes that were asked for. On the CPU the profiler reports
every allocation and release of torch's allocator, scratch inside kernels included, and their
running sum is exact; the process's own high-water mark checks it, since memory taken past that
allocator (NumPy's, a library's) is seen there alone.
"""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from attnbench.measure.events import MEMORY, Named, Own, named, own_of
from attnbench.record import Memory
from attnbench.truth.call import Attend, Call
from attnbench.truth.inputs import Ends
from impls.cost import output_bytes
from impls.problem import Problem

BETWEEN = "attnbench: between forward and backward"
ARRAY_BYTES = 1 << 18
"""Beyond this, what Python's own tracing saw is arrays and not small objects; and where torch's
allocator gave less than the output, that came from elsewhere too."""
UNSEEN_SHARE, UNSEEN_BYTES = 0.10, 32 << 20
"""A high-water mark beyond the sum by both of these: memory that torch's allocator did not give."""
HIGH_WATER, SURE = "high-water mark", 3
"""So often in a row it must be beyond before it is believed: a heap in pieces grows, too."""
OPERATOR = re.compile(r"\w+::\w+$|Torch-Compiled")
NO_KERNEL = tuple(
    f"aten::{name}" for name in (
        "empty", "resize_", "as_strided", "view", "_unsafe_view", "_reshape_alias", "alias",
        "detach", "unsqueeze", "expand", "select", "slice", "transpose",
    )
)  # fmt: skip
"""How the names of operators begin that launch nothing on a GPU."""
MOST_KERNELS = 12
MOST_THINGS = 20000
"""Of what a variant refers to, so many are looked at."""


def warm_profiler(*, kernels: bool = False) -> None:
    """The first profiles take most of a second, and memory of their own.

    ``kernels``: see a GPU's kernels as well. The first profile of a process decides whether any
    later one does. Only a process that takes no more times may: NVIDIA's tracing stays attached
    afterwards, and slows every launch.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * kernels
    for _ in range(2):
        with profile(activities=activities, profile_memory=True):
            torch.ones(8, 8) @ torch.ones(8, 8)


class Observed(NamedTuple):
    """One profiled call: its memory, the operators that took longest, what it gave."""

    memory: Memory
    kernels: list[str]
    ran: frozenset[str]
    """Every operator that ran, on whatever device."""
    results: dict[str, torch.Tensor]
    """Output and gradients, by name."""
    launches: int
    """About how many kernels it launches on a GPU: its operators that call no other, but for those
    that only allocate or look at a tensor in another way."""


def observe(problem: Problem, attend: Attend, inputs: Ends, dout: torch.Tensor | None,
            expected: int | None, grown: int | None = None, *, sure: int = SURE,
            settle: Callable[[], object] | None = None) -> Observed:  # fmt: skip
    """One call under the profiler, after others have warmed every cache.

    ``grown``: by how much the process grew in a call without; found here where nobody has looked.
    ``sure``: how often at most, where others have to call as often. ``settle`` is called before the
    profiler ends, by whoever has threads that must not outlast it.
    """
    call = Call(problem, attend, inputs)
    if problem.device != "cpu":
        return _observe_cuda(call, dout, expected)
    run = partial(_settled, call, dout, settle)
    for _ in range(sure):
        if grown is None:
            grown = growth(lambda: _run(call, dout))
        seen, grown = _observe_cpu(call, run, expected, grown), None
        if seen.memory.method != HIGH_WATER:
            break
    return seen


def growth(run: Callable[[], object]) -> int:
    """Bytes by which a call made the process larger, at the most: as it is with no profiler on."""
    resident = _reset_high_water()
    run()
    return _resident("VmHWM") - resident


def _observe_cuda(call: Call, dout: torch.Tensor | None, expected: int | None) -> Observed:
    device = call.problem.device
    gc.collect()
    base = _cuda_base(device)
    with profile(activities=[ProfilerActivity.CPU]) as seen:  # see warm_profiler
        results = _run(call, dout)
        torch.cuda.synchronize(device)
    events = named(seen.profiler.kineto_results.events())
    peak = torch.cuda.memory_stats(device)["requested_bytes.all.peak"] - base
    memory = Memory(
        peak_bytes=peak, saved_bytes=_cuda_saved(call) if call.problem.gradients else None,
        expected_bytes=expected, method="requested bytes of the caching allocator",
    )  # fmt: skip
    return _observed(memory, events, results)


def _observed(memory: Memory, events: list[Named], results: dict[str, torch.Tensor]) -> Observed:
    own = list(own_of(events))
    launches = sum(not each.called and not each.name.startswith(NO_KERNEL) for each in own)
    return Observed(memory, _operators(own), _ran(events), results, launches)


def _settled(call: Call, dout: torch.Tensor | None,
             settle: Callable[[], object] | None) -> dict[str, torch.Tensor]:  # fmt: skip
    results = _run(call, dout)
    if settle is not None:
        settle()
    return results


def _observe_cpu(call: Call, run: Callable[[], dict[str, torch.Tensor]], expected: int | None,
                 grown: int) -> Observed:  # fmt: skip
    resident, own_bytes = _reset_high_water(), output_bytes(call.problem)
    tracemalloc.start()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        results = run()
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    high = max(grown, _resident("VmHWM") - resident)
    events = named(seen.profiler.kineto_results.events())
    peak, between = _replay(events)
    method, flags = "allocation events", []
    if arrays > ARRAY_BYTES or peak < own_bytes:
        peak, method = peak + arrays, "allocation events and traced arrays"
    if peak < own_bytes:
        flags.append(
            "it allocated less than its output: what it holds since it was built is not seen"
        )
    if high > peak * (1 + UNSEEN_SHARE) + UNSEEN_BYTES:
        flags.append(f"the process grew by {high} bytes: memory taken past torch's allocator")
        peak, method = high, HIGH_WATER
    held = _held(call)
    if held > peak * UNSEEN_SHARE + ARRAY_BYTES:
        flags.append(f"it holds {held} bytes from call to call: they are not in its peak")
    saved = None if between is None else between - own_bytes
    memory = Memory(peak_bytes=peak, saved_bytes=saved, expected_bytes=expected, method=method,
                    flags=flags)  # fmt: skip
    return _observed(memory, events, results)


def _held(call: Call) -> int:
    """Bytes of the tensors that a variant holds, its weights left out: masks, scratch, results."""
    ruler = (*call.leaves, *call.new, *call.weights.values())
    known = {x.untyped_storage().data_ptr() for x in ruler}
    found: dict[int, int] = {}
    seen, todo = {id(call)}, [call.attend]
    while todo:
        thing: Any = todo.pop()
        if id(thing) in seen or isinstance(thing, ModuleType | type | FrameType):
            continue
        seen.add(id(thing))
        if type(thing) is torch.Tensor and thing.layout is torch.strided:
            found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, FunctionType):
            todo += [*(c.cell_contents for c in thing.__closure__ or () if _full(c)),
                     *(thing.__defaults__ or ())]  # fmt: skip
        elif len(seen) < MOST_THINGS:
            todo += gc.get_referents(thing)
    return sum(size for at, size in found.items() if at not in known)


def _full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _run(call: Call, dout: torch.Tensor | None) -> dict[str, torch.Tensor]:
    out = call.forward()
    if not call.problem.gradients:
        return {"forward": out}
    assert dout is not None
    with record_function(BETWEEN):
        pass
    return {"forward": out, **dict(zip(call.names, call.backward(out, dout), strict=True))}


def _replay(events: list[Named]) -> tuple[int, int | None]:
    """The highest running sum of allocations, and the sum between forward and backward."""
    steps: list[tuple[int, int]] = []
    between_at: int | None = None
    for name, event in events:
        if name == MEMORY:
            steps.append((event.start_ns(), event.nbytes()))
        elif name == BETWEEN:
            between_at = event.start_ns()
    total = peak = 0
    between: int | None = None
    for at, nbytes in sorted(steps, key=lambda step: step[0]):
        if between_at is not None and between is None and at >= between_at:
            between = total
        total += nbytes
        peak = max(peak, total)
    if between_at is not None and between is None:
        between = total
    return peak, between


def _ran(events: list[Named]) -> frozenset[str]:
    """Names of all operators that ran: the host's, which say the backend, whatever the device."""
    return frozenset(name for name in {name for name, _ in events} if OPERATOR.match(name))


def _operators(all_own: Iterable[Own]) -> list[str]:
    """Names of torch's operators that ran, longest time of their own first."""
    spent: dict[str, int] = {}
    for own in all_own:
        spent[own.name] = spent.get(own.name, 0) + own.nanoseconds
    ran = [name for name, own in spent.items() if own > 0]
    return sorted(ran, key=lambda name: -spent[name])[:MOST_KERNELS]


def _cuda_base(device: str) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_stats(device)["requested_bytes.all.current"])


def _cuda_saved(call: Call) -> int:
    device = call.problem.device
    base = _cuda_base(device)
    out = call.forward()
    torch.cuda.synchronize(device)
    live = int(torch.cuda.memory_stats(device)["requested_bytes.all.current"]) - base
    return live - out.numel() * out.element_size()


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _reset_high_water() -> int:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _resident("VmHWM")
    return _resident("VmRSS")
