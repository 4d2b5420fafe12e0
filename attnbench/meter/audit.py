"""The second clock: what the first may not have seen.

On the CPU the first clock is the host's, around one call. The second counts what the whole process
spends on a call, on all its threads, from its start until nothing of it runs any more: a call that
hands its work to others shows more processors than it was given, or goes on working after it has
returned. On CUDA the first clock are events, and the second is the host's, from an idle device to
an idle device: what ran where the events do not look is in it.

Their disagreement sets a flag, or where the first clock's number is false, says why.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import sysconfig
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from time import perf_counter, process_time, sleep
from types import FrameType

import torch

import attnbench
from attnbench.core.lock import collector_off
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import demanded, spent_elsewhere
from attnbench.meter.clocks import cuda_gpu
from attnbench.meter.timed import Timed
from impls import problem
from impls.spec import Variant


class Owner(StrEnum):
    """To whom a file of code belongs."""

    RULER = "attnbench"
    TORCH = "torch"
    PYTHON = "Python"
    LIBRARY = "a library"
    OTHER = "other"


def _folders(*paths: str | None) -> tuple[str, ...]:
    return tuple({os.path.realpath(path) + os.sep for path in paths if path})


PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_PATHS = sysconfig.get_paths()
_LIBRARIES = _folders(_PATHS["purelib"], _PATHS["platlib"])
_PYTHON = _folders(_PATHS["stdlib"], _PATHS["platstdlib"], os.path.dirname(contextlib.__file__))  # noqa: PTH120
_KNOWN = {Owner.RULER: _folders(*attnbench.__path__), Owner.TORCH: _folders(*torch.__path__)}


@lru_cache(maxsize=4096)
def real(file: str) -> str:
    """The file with every link followed; a cache, since hooks ask at each call of a function."""
    return os.path.realpath(file)


@lru_cache(maxsize=4096)
def owner_of(file: str) -> Owner:
    """Whose file it is, spelled as ``co_filename`` or ``__file__`` have it.

    A Python without a virtual environment has its packages inside its own folder: they are
    libraries all the same. A linked package is one too, wherever the link leads.
    """
    if file.startswith("<frozen "):
        name = file.removeprefix("<frozen ").rstrip(">").partition(".")[0]
        return Owner.PYTHON if name in sys.stdlib_module_names else Owner.OTHER
    found = real(file)
    for owner, folders in _KNOWN.items():
        if found.startswith(folders):
            return owner
    if found.startswith(_LIBRARIES) or any(name in file + found for name in PACKAGES):
        return Owner.LIBRARY
    return Owner.PYTHON if found.startswith(_PYTHON) else Owner.OTHER


def owner_of_frame(frame: FrameType) -> Owner:
    """Whose code runs in a frame.

    Code without its source names the file that it was compiled from, wherever that was: where there
    is no such file, its module says where it was loaded from.
    """
    file = frame.f_code.co_filename
    found = owner_of(file)
    if found is Owner.OTHER and file.endswith(".py") and not os.path.exists(file):  # noqa: PTH110
        names = frame.f_globals
        module = sys.modules.get(str(names.get("__name__")))
        if module is not None and vars(module) is names:
            return owner_of(str(names.get("__file__", "")))
    return found


CALLS = (1, 8)
"""At least and at most so many calls; as many as fill ``ENOUGH_S``."""
ENOUGH_S = 2e-3
SURE = 5
"""So often at most it is looked at before a number is called false."""
WAIT_S = (2e-3, 0.05)
"""After a call, at least and at most: a third of the call, in which nothing of it should run."""
LATE_S, LATE_SHARE = 5e-4, 0.3
"""Work after the return: more than both of these, of processor time and of the wait, every time."""
ODD_PROCESSORS, MORE_PROCESSORS = 1.1, 1.3
"""For each thread that was given: from the one on more calls are looked at, and more than the other
is too many."""
EVENTS_MISS = 0.9
"""An end-to-end time below this share of the events' time: one of them is wrong."""
LAUNCH_BOUND = 1.5
ESCAPED_S = 50e-6

HOME = (Owner.RULER, Owner.TORCH, Owner.PYTHON)
"""Whose code runs between calls."""
PROBLEM = real(problem.__file__)
"""Its properties are read there; variants lie beside it."""
PLANTED = real(attnbench.__path__[0]) + "/gate/planted_"

_synchronize = torch.cuda.synchronize


@dataclass(frozen=True)
class Audit:
    """What the second clock says."""

    seconds: float
    clock: str
    flags: list[str] = field(default_factory=list)
    implausible: str | None = None
    """Why the first clock's number is false; None where it may be true."""
    least: float = 0.0
    """What the quickest call took by this clock."""


@dataclass(frozen=True)
class HostCall:
    """One call on the CPU, in seconds."""

    wall: float
    spent: float
    """Processor time of all threads while the call ran."""
    wanted: float
    """The same, and what they waited for a processor: on a busy machine two get but one."""
    late: float
    """Processor time of other threads after it had returned."""
    waited: float


def audit_host(timed: Timed, threads: int) -> Audit:
    """A few calls, each followed by a wait in which nothing should run.

    What looks odd is looked at again, and all the calls together say whether it is: on a busy
    machine a few may look like anything, the honest too busy and the false idle enough.
    """
    calls: list[HostCall] = []
    for _ in range(SURE):
        calls += _host_calls(timed)
        if judge_host(calls, threads, ODD_PROCESSORS).implausible is None:
            break
    return judge_host(calls, threads)


def _host_calls(timed: Timed) -> list[HostCall]:
    calls: list[HostCall] = []
    while len(calls) < CALLS[0] or (
        len(calls) < CALLS[1] and sum(c.wall for c in calls) < ENOUGH_S
    ):
        with _nobody_else_runs(timed):
            timed.before()
        calls.append(_host_call(timed))
        with _nobody_else_runs(timed):
            timed.settle()
    return calls


@contextmanager
def _nobody_else_runs(timed: Timed) -> Iterator[None]:
    """Raise :class:`Wrong` where the variant's code runs between calls: hooks, handlers, callbacks.

    Not where the ruler itself calls it there: the forward pass before a backward one, a memory.
    """
    if timed.problem.phase == "backward" or timed.call.steps:
        yield
        return
    ran: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        made = frame.f_globals.get("__name__", "")
        if event != "call" or str(made).startswith("namedtuple_"):
            return
        file = real(frame.f_code.co_filename)
        known = owner_of_frame(frame) in HOME or file == PROBLEM
        if not known or file.startswith(PLANTED):
            ran.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

    with collector_off():  # as while it is timed: callbacks of the collector are no variant's
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
    if ran:
        raise Wrong(f"its code ran between calls, where no clock looks: {', '.join(sorted(ran))}")


def _host_call(timed: Timed) -> HostCall:
    start, wanted = perf_counter(), demanded()
    wall, spent = perf_counter(), process_time()
    kept = timed.run()
    wall_end, spent_end = perf_counter(), process_time()
    wanted = demanded() - wanted  # over a little more than the call: asking takes time too
    wanted *= (wall_end - wall) / (perf_counter() - start)
    wait, before = min(max(WAIT_S[0], (wall_end - wall) / 3), WAIT_S[1]), spent_elsewhere()
    sleep(wait)
    late = spent_elsewhere() - before
    del kept
    return HostCall(wall_end - wall, spent_end - spent, wanted, late, wait)


def judge_host(calls: list[HostCall], threads: int, most: float = MORE_PROCESSORS) -> Audit:
    """What some calls show; ``most``: processors to a thread that are not too many."""
    wall, wanted = sum(c.wall for c in calls), sum(c.wanted for c in calls)
    seconds = statistics.median(c.spent + c.late for c in calls)
    reason = None
    if all(c.late > LATE_S and c.late > LATE_SHARE * c.waited for c in calls):
        late = statistics.median(c.late for c in calls)
        reason = (
            f"it went on working after it had returned: {late * 1e3:.2g} ms of processor time "
            "that the host's clock did not see"
        )
    elif wall >= ENOUGH_S and wanted > most * threads * wall:
        given = f"{threads} thread" + "s" * (threads > 1)
        reason = f"it kept {wanted / wall:.2g} processors busy and was given {given}"
    return Audit(seconds, "process", [], reason, min(c.spent + c.late for c in calls))


@dataclass(frozen=True)
class DeviceCall:
    """One call on CUDA by the host's clock, in seconds, from an idle device."""

    launched: float
    """Until the call had returned."""
    total: float
    """Until the device was idle again."""


def audit_device(timed: Timed, events_s: float) -> Audit:
    """A few calls from end to end."""
    calls = []
    device = torch.device(timed.problem.device)
    for _ in range(CALLS[1]):
        timed.before()
        cuda_gpu(timed.problem.device).flush()  # as cold as the events found it
        _synchronize(device)
        start = perf_counter()
        kept = timed.run()
        launched = perf_counter()
        _synchronize(device)
        calls.append(DeviceCall(launched - start, perf_counter() - start))
        del kept
        timed.settle()
    return judge_device(calls, events_s)


def judge_device(calls: list[DeviceCall], events_s: float) -> Audit:
    """What some calls show beside the time that the events gave."""
    total = statistics.median(c.total for c in calls)
    after = statistics.median(c.total - c.launched for c in calls)
    said = f"{events_s * 1e3:.3g} ms by events, {total * 1e3:.3g} ms from end to end"
    if total < EVENTS_MISS * events_s:
        return Audit(total, "e2e", [], f"the clocks disagree: {said}")
    if after > LAUNCH_BOUND * events_s + ESCAPED_S:
        reason = (
            f"the device worked on where the events do not look ({said}; it was busy for "
            f"{after * 1e3:.3g} ms after the call had returned)"
        )
        return Audit(total, "e2e", [], reason)
    flags = [f"launch-bound: {said}"] if total > LAUNCH_BOUND * events_s else []
    return Audit(total, "e2e", flags)


ENTRY = "aten::scaled_dot_product_attention"
"""What torch runs first whatever the backend: it tells nothing."""
BACKENDS = {
    "cudnn_attention": "cuDNN",
    "flash_attention": "FlashAttention-2",
    "efficient_attention": "memory-efficient attention",
    "attention_math": "plain products",
}
"""What stands behind ``aten::_scaled_dot_product_`` on a GPU."""
ATTENTION = ("attention", "attn", "transformer")
MOST = 4
"""Names that a sentence can carry."""


def unattested(variant: Variant, device: str, ran: Collection[str]) -> str | None:
    """None where what the row says must run did run, else both names in a sentence.

    A name may go on after a colon: regions of compiled code are numbered.
    """
    named = getattr(variant, "attested_by", None)  # rows of an earlier commit do not say
    wanted = named(device) if named else None
    if wanted is None or any(name == wanted or name.startswith(f"{wanted}:") for name in ran):
        return None
    return f"it should run {wanted} and ran {_listed(ran)}"


def chosen(variant: Variant, device: str, ran: Collection[str]) -> str:
    """Of a row that leaves the backend to torch, what ran on a GPU: ``torch chose cuDNN (…)``."""
    if device == "cpu" or getattr(variant, "attested_by", lambda _: None)(device) is not None:
        return ""
    names = {f"aten::_scaled_dot_product_{name}": word for name, word in BACKENDS.items()}
    return "; ".join(f"torch chose {names[op]} ({op})" for op in sorted(ran) if op in names)


def _listed(ran: Collection[str]) -> str:
    """The operators of attention, without the entry and the gradients; else the first of all."""
    telling = sorted(name for name in ran if _tells(name)) or sorted(ran)
    more = f" and {len(telling) - MOST} others" if len(telling) > MOST else ""
    return (", ".join(telling[:MOST]) or "no operator of torch's") + more


def _tells(name: str) -> bool:
    own = any(word in name for word in ATTENTION)
    return own and name != ENTRY and not name.endswith("_backward")
