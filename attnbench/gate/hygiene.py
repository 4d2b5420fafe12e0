"""Checks of a call besides its values: the output's form, the inputs, late work, threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.core.device import device_for
from attnbench.gate.findings import Wrong, place
from attnbench.gate.inputs import (
    Attend,
    Call,
    Inputs,
    bytes_of,
    in_sight,
    other_set,
    weights_of,
)
from attnbench.gate.reference import Tensors
from impls.operators import OUTPUTS
from impls.problem import Problem

THREADS_CLOCK = 6
"""What Linux combines with a thread's number to name the clock of its processor time."""
WAIT_S = 5e-3
"""How long after a call to look for work that goes on."""
LATE_S = 1e-3
"""Processor time that threads at rest may take meanwhile, as housekeeping."""
FEW_PAIRS = 1 << 22
"""Pairs of queries and keys up to which the graphs of two calls are kept at a time."""
FULL_TOKENS = 64
"""Tokens that a cache in few bits may hold in full besides its new ones."""
QUIET_S = 1.0
"""The longest wait for other threads to come to rest."""
ASLEEP = 4_000_000
"""Cycles of a GPU, about two milliseconds: long enough for the host to queue a call meanwhile."""
OUTPUT_NAMES = ("forward", *OUTPUTS)
PUT_OFF = "its output changed after it had been returned: work was put off"
WROTE = "it wrote to its inputs (they were write-protected while it ran)"


def spent_elsewhere() -> float:
    """Processor seconds of all threads but the calling one."""
    return sum(
        had for thread, (had, _) in _threads().items() if thread != threading.get_native_id()
    )


def demanded() -> float:
    """Processor seconds that all threads had or waited for.

    Its growth over a time, divided by the time, is how many threads wanted to run on average.
    """
    return sum(had + waited for had, waited in _threads(waits=True).values())


def _threads(*, waits: bool = False) -> dict[int, tuple[float, float]]:
    """Of each thread, the seconds that it had and, where asked for, waited for a processor."""
    seconds = {}
    for task in Path("/proc/self/task").iterdir():
        waited, thread = 0.0, int(task.name)
        with suppress(OSError, IndexError):  # it has ended, or the system does not count it
            had = time.clock_gettime(~thread << 3 | THREADS_CLOCK)
            seconds[thread] = had, 0.0
            if waits:
                waited = int((task / "schedstat").read_text().split()[1]) * 1e-9
                seconds[thread] = had, waited
    return seconds


def check_form(problem: Problem, out: object, name: str = "forward") -> Tensor:
    """The output, or what comes besides it by that name; raises where it isn't a plain tensor of
    the right shape, dtype and device.
    """
    what = "the output" if name == "forward" else f"its {name}"
    if type(out) is not Tensor:
        raise Wrong(f"{what} is a {type(out).__name__}, not a plain torch.Tensor")
    shape, kind = tuple(problem.output_shape), problem.dtype
    if name in OUTPUTS:
        shape, kind = OUTPUTS[name].shape(problem), OUTPUTS[name].dtype_on(problem)
    got, want = tuple(out.shape), shape
    if problem.level != "core" and len(got) == 4:  # as the variant sees them
        got, want = (got[0], *got[2:]), (want[0], *want[2:])
    dtype = str(out.dtype)[6:]
    wrong = {
        f"has the shape {got}, not {want}": out.shape != shape,
        f"is {dtype}, not {kind}": dtype != kind,
        f"is on {out.device}, not on {problem.device}": (
            out.device.type != problem.device.split(":")[0]
        ),
        "is detached: no gradient can reach its inputs": (
            problem.gradients and not out.requires_grad
        ),
        f"has the layout {out.layout}, not a strided one": out.layout is not torch.strided,
        f"carries more than its values: {', '.join(vars(out))}": bool(vars(out)),
    }
    for problem_text, is_so in wrong.items():
        if is_so:
            raise Wrong(f"{what} {problem_text}")
    return out


def values_of(call: Call, out: object) -> Tensors:
    """All that a call's last forward pass gave, as :func:`outputs_among` has it."""
    return outputs_among(call.problem, {"forward": out, **call.besides})


def outputs_among(problem: Problem, results: Mapping[str, object]) -> Tensors:
    """The outputs among results, each of the right form; of a log-sum-exp what it says of the rows
    that see something.
    """
    tensors = {n: check_form(problem, x, n) for n, x in results.items() if n in OUTPUT_NAMES}
    return {n: in_sight(x) if n in OUTPUTS else x for n, x in tensors.items()}


def check_blind(call: Call) -> None:
    """Raise where a log-sum-exp is -inf in other rows than those that see nothing."""
    if (lse := call.besides.get("lse")) is None:
        return
    problem = call.problem
    blind = torch.from_numpy(problem.mask.blind_rows(problem.shape).copy()).to(lse.device)
    wrong = (lse == -torch.inf) != (blind & (not problem.sinks))
    if bool(wrong.any()):
        batch, head, row = (int(i) for i in wrong.nonzero()[0])
        value = float(lse[batch, head, row])
        sees = "sees some key" if value == -torch.inf else "sees nothing: it must be -inf"
        raise Wrong(f"its lse is {value:g} in {place(batch, head, row)}, which {sees}")


def check_finite(what: str, tensor: Tensor) -> None:
    """Raise where a row holds NaN or infinity, whether it is among the judged rows or not."""
    finite = tensor.isfinite()
    if bool(finite.all()):
        return
    batch, head, row = (int(i) for i in (~finite).nonzero()[0, :3])
    value = float(tensor[batch, head, row][~finite[batch, head, row]][0])
    rows = int((~finite.all(-1)).sum())
    many = f"{rows} rows are" if rows > 1 else "one row is"
    raise Wrong(f"{many} not finite in {what}: {place(batch, head, row)} holds {value}")


def check_inputs_kept(
    call: Call, inputs: Inputs, versions: Mapping[str, int] | None = None
) -> None:
    """Raise where a call has written to its inputs since they had these versions, or were new."""
    for name, leaf in call.leaves.items():
        if not torch.equal(leaf.detach(), inputs[name]):
            raise Wrong(f"it changed its input {name}")
        if leaf._version != (versions[name] if versions else 0):
            raise Wrong(f"it wrote to its input {name} and put it back")


def check_no_input(call: Call, out: Tensor) -> None:
    """Raise where the output, or what came besides, shares memory with an input."""
    outputs = {"output": out, **call.besides}
    for name, leaf in call.leaves.items():
        for what, x in outputs.items():
            if leaf.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                raise Wrong(f"its {what} lies in the memory of its input {name}")


def check_weights(problem: Problem, attend: object, define: object) -> None:
    """Raise where the weights are not those of the definition, by name, shape and value."""
    weights, expected = weights_of(attend), weights_of(define)
    if missing := sorted(set(expected) ^ set(weights)):
        raise Wrong(f"its weights and those of its definition differ: {', '.join(missing)}")
    for name, weight in weights.items():
        if problem.gradients and not weight.requires_grad:
            raise Wrong(f"its weight {name} takes no gradient")
        if weight.shape != expected[name].shape or not torch.equal(weight, expected[name]):
            raise Wrong(f"its weight {name} is not that of its definition")


def check_memory_kept(call: Call, most: float) -> None:
    """Raise where a step changes the memory that it was given, or can't go on from its own."""
    if not call.steps:
        return
    first = call.forward().clone()
    new = call.new.map(Tensor.clone)
    for x in call.new.values():
        x.mul_(2)
    call.forward()
    for name, values in new.items():
        call.new[name].copy_(values)
    if not torch.equal(first, call.forward()):
        raise Wrong("its step changed the memory that it was given")
    if call.problem.kv_len < 2 * call.problem.q_len:
        return
    try:
        again = call.two_steps().double()
    except torch.OutOfMemoryError:  # no fault of its step's
        raise
    except (TypeError, AttributeError, IndexError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise Wrong(f"its step can't go on from the memory that a step returned: {why}") from None
    off = float((again - first.double()).norm() / first.double().norm().clamp(min=1e-30))
    if not off <= most and not getattr(call.attend, "forgets", False):
        raise Wrong(f"two steps are not as one: the last output is off by {off:.2g}, relative")


def check_bits(call: Call) -> None:
    """Raise where a cache takes more bytes than its codes, two float32 a token and head for each
    of keys and values, and a block of tokens in full.
    """
    p = call.problem
    if not call.steps or p.kv_dtype is None:
        return
    width, heads = p.head_dim + p.v_head_dim, p.batch * p.kv_heads
    coded = width if p.kv_dtype != "int4" else (p.head_dim + 1) // 2 + (p.v_head_dim + 1) // 2
    full = (FULL_TOKENS + p.q_len) * width * p.item_bytes
    most = heads * (p.kv_len * (coded + 2 * 2 * 4) + full)
    if (size := bytes_of(call.memory)) > most:
        raise Wrong(
            f"its cache of {p.kv_dtype} takes {size:,} bytes, and the codes with their scales "
            f"{most:,} at the most: it keeps something else too"
        )


class FirstCall(NamedTuple):
    """A call's outputs by name, copies made when they came, and whether gradients can be had from
    the first.
    """

    outputs: Tensors
    at_once: Tensors
    graph: bool

    @classmethod
    def of(cls, call: Call, *, graph: bool) -> FirstCall:
        """A call made now; raises where an output has another form."""
        out = call.forward()
        values_of(call, out)
        check_blind(call)
        outputs = {"forward": out, **call.besides}
        at_once = {name: x.detach().clone() for name, x in outputs.items()}
        if not graph:
            outputs = {name: x.detach() for name, x in outputs.items()}
        return cls(outputs, at_once, graph)


class RepeatedCall:
    """A call that is kept while others are made, of which two or more must change nothing of it.

    Its graph is kept too where two fit at a time. ``one_graph``: only the last call's gradients can
    be had, as over several processes.
    """

    def __init__(
        self, problem: Problem, attend: Attend, inputs: Inputs, *, one_graph: bool
    ) -> None:
        self.call = Call(problem, attend, inputs)
        pairs = problem.batch * problem.heads * problem.q_len * problem.kv_len
        graph = problem.gradients and pairs <= FEW_PAIRS and not one_graph
        self.first = FirstCall.of(self.call, graph=graph)

    def check_output(self) -> None:
        """Raise where later calls changed an output."""
        for name, x in self.first.outputs.items():
            if not _same(self.first.at_once[name], x.detach()):
                what = "output" if name == "forward" else name
                raise Wrong(
                    f"its {what} is overwritten by a later call: it must return memory of its own "
                    "each time, or its row must declare reuses_output"
                )

    def check_gradients(
        self, gradients: Tensors, dout: Tensor | None, most: float, zero: Collection[str]
    ) -> None:
        """Raise where ``gradients`` from after later calls are not those of a new call.

        They may differ by ``most``, relative, but for those that are ``zero`` in truth.
        """
        if dout is None or not self.first.graph:
            return
        expected = self.call.backward(self.call.forward(), dout)
        for name, want in zip(self.call.names, expected, strict=True):
            if name in zero or not want.isfinite().all():  # which is a fault of its own
                continue
            if not (gradients[name] - want).norm() <= most * want.norm():
                raise Wrong(f"a later call changed what its {name} is made from")


Announce = Callable[[str], None]
"""Takes the reason to report if the process now dies of a forbidden access; empty at the end."""

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Pages:
    """Copies of tensors on pages of their own, write-protected while a call runs.

    The process dies where the call writes to them. Nothing is protected without ``announce``.
    """

    def __init__(self, announce: Announce | None) -> None:
        self.announce = announce
        self._pages: list[mmap.mmap] = []

    def place(self, x: Tensor) -> Tensor:
        """The tensor's copy on a page; the tensor itself where nothing is protected."""
        if self.announce is None:
            return x
        page = mmap.mmap(-1, max(1, x.numel() * x.element_size()))
        self._pages.append(page)
        read = partial(torch.frombuffer, page, dtype=x.dtype, count=x.numel())
        read().copy_(x.detach().flatten())
        return read().view(x.shape).requires_grad_(x.requires_grad)

    @contextmanager
    def protected(self) -> Iterator[None]:
        """Protect the pages, and announce what it means if the process dies meanwhile."""
        if self.announce is None:
            yield
            return
        try:
            for page in self._pages:
                _protect(page, mmap.PROT_READ)
            self.announce(WROTE)
            yield
            self.announce("")
        finally:
            for page in self._pages:  # a variant may have kept one of them
                with suppress(OSError):
                    _protect(page, mmap.PROT_READ | mmap.PROT_WRITE)


def _protect(page: mmap.mmap, how: int) -> None:
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if _mprotect(start, len(page), how) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def check_nothing_goes_on(
    problem: Problem,
    attend: Attend,
    inputs: Inputs,
    pages: Pages | None = None,
) -> tuple[Call, Tensor]:
    """Raise where a call goes on after its return, so that its output changes.

    ``inputs`` must be other values than those of the calls before, so that an earlier output left
    in memory differs. Gives the call, whose tensors lie on ``pages``, and its output.
    """
    if (device := device_for(problem.device)).queued:
        return _check_in_order(problem, attend, inputs, device)
    call, pages = Call(problem, attend, inputs), pages or Pages(None)
    call.leaves, call.new = call.leaves.map(pages.place), call.new.map(pages.place)
    with pages.protected():
        out = call.forward()
    check_at_once = _copies(call, out)
    time.sleep(WAIT_S)
    check_at_once()
    return call, out


def _check_in_order(
    problem: Problem, attend: Attend, inputs: Inputs, device: Any
) -> tuple[Call, Tensor]:
    """Raise where work that is queued after a call on a GPU doesn't find its output.

    The call and a copy of its output are queued while the device sleeps, so that no gap between
    launches lets late work on another stream be done in time.
    """
    call = Call(problem, attend, other_set(inputs))
    call.forward()  # leaves an output of other values in memory
    call.load(inputs)
    device.sleep(ASLEEP)
    out = call.forward()
    check_at_once = _copies(call, out)
    device.synchronize()
    check_at_once()
    return call, out


def wait_for_quiet() -> None:
    """Wait until other threads are at rest, at most ``QUIET_S``."""
    until = time.monotonic() + QUIET_S
    while time.monotonic() < until:
        before = spent_elsewhere()
        time.sleep(WAIT_S)
        if spent_elsewhere() - before <= LATE_S:
            return


def _copies(call: Call, out: object) -> Callable[[], None]:
    """Copies of a call's outputs, as what raises where one is another than its copy by then; those
    that have no values to copy are left out.
    """

    def plain(x: object) -> bool:
        return type(x) is Tensor and x.layout is torch.strided and not x.is_meta

    outputs: list[Any] = [x for x in (out, *call.besides.values()) if plain(x)]
    at_once = [x.detach().clone() for x in outputs]

    def check() -> None:
        if not all(_same(was, x.detach()) for was, x in zip(at_once, outputs, strict=True)):
            raise Wrong(PUT_OFF)

    return check


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def counted_threads() -> list[threading.Thread]:
    """The threads that Python knows of, but for tqdm's monitor: torch's compiler may start it."""
    monitor = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "monitor", None)
    return [thread for thread in threading.enumerate() if thread is not monitor]


def check_nothing_left(before: Collection[threading.Thread]) -> None:
    """Raise where there is a thread that was not there before."""
    left = [thread for thread in counted_threads() if thread not in before]
    if left:
        names = ", ".join(thread.name for thread in left)
        raise Wrong(f"it left {len(left)} thread{'s' if len(left) > 1 else ''} running: {names}")
