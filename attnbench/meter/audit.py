"""The audit of a time: a second clock, values that no call has seen, and the operators that ran.

On the CPU the second clock counts what the whole process spends on a call, on all its threads, from
its start until nothing of it runs any more: a call that hands its work to other threads shows more
processors than it was given, or goes on working after it has returned. On CUDA it is the host's,
from an idle device to an idle device: it includes what ran outside the stream of the events.

A variant may also recognise values, exactly or by a few numbers that signs do not change, and
return what it kept. So calls on the values that it was judged on and calls on values drawn this
moment are timed in turn: a variant that computes takes as long for both. The results on unseen
values are compared with the truth, too: the output of every call, in random rows, and of one random
call the gradients.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor

import attnbench
from attnbench.core.device import Step, device_for
from attnbench.core.format import counted, duration
from attnbench.core.lock import collector_off
from attnbench.core.record import SLOW_HOST, Error
from attnbench.core.stats import median_interval
from attnbench.gate import budget
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import check_finite, demanded, spent_elsewhere
from attnbench.gate.inputs import CHANNELS, TOKENS, Inputs
from attnbench.gate.oracle import compare, exact
from attnbench.gate.plants import PLANTED
from attnbench.gate.reference import Defines, axes_of, differentiated, rows_of, wide
from attnbench.meter.clocks import Clock
from attnbench.meter.timed import WORDS, Timed, Values, secret_generator, signs_like
from impls.spec import Variant

PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_FOLDERS = {
    "attnbench": [*attnbench.__path__],
    "torch": [*torch.__path__],
    "Python": [sysconfig.get_path("stdlib"), os.path.dirname(contextlib.__file__)],  # noqa: PTH120
}


@lru_cache(maxsize=4096)
def owner_of(file: str) -> str:
    """``attnbench``, ``torch``, ``Python``, ``library`` or ``other``, by the folder of a file.

    Packages are libraries even inside Python's own folder, as without a virtual environment.
    """
    place = os.path.normpath(file)
    for owner, folders in _FOLDERS.items():
        if any(place.startswith(folder + os.sep) for folder in folders):
            installed = owner == "Python" and any(name in place for name in PACKAGES)
            return "library" if installed else owner
    return "library" if any(name in place for name in PACKAGES) else "other"


MOST_CALLS, ENOUGH_S = 8, 2e-3  # as many calls as fill so many seconds
SURE = 5  # how often calls are looked at before a number is called false
WAIT_S = (2e-3, 0.05)
"""The wait after a call, at least and at most: a third of the call. Nothing should run in it."""
LATE_S, LATE_SHARE = 5e-4, 0.3
"""Work after the return: more than both of these, of processor time and of the wait, every time."""
ODD_PROCESSORS, MORE_PROCESSORS = 1.1, 1.3
"""Per thread: beyond the first more calls are looked at, and beyond the second it is too many."""
EVENTS_MISS = 0.9  # an end-to-end time below this share of the events' time: one of them is wrong
LAUNCH_BOUND, ESCAPED_S = 1.5, 50e-6

HOME = {"attnbench", "torch", *sys.stdlib_module_names}  # whose code may run between calls
READ = ("impls.problem", "impls.operators")  # between calls, too: data


class Audit(NamedTuple):
    """What the second clock shows."""

    seconds: float
    clock: str
    flags: Sequence[str] = ()
    implausible: str | None = None
    """Why the first clock's number is false; None where it may be true."""
    least: float = 0.0  # the quickest call by this clock


class HostCall(NamedTuple):
    """One call on the CPU, in seconds."""

    wall: float
    spent: float  # processor time of all threads while the call ran
    wanted: float
    """The same, and what they waited for a processor: a busy machine may give two threads one."""
    late: float  # processor time of other threads after it had returned
    waited: float


def audit_host(timed: Timed, threads: int) -> Audit:
    """A few calls, each followed by a wait in which nothing should run.

    What looks odd is looked at again, and all the calls together decide: on a busy machine a few
    honest calls may look too busy, and a few false ones idle enough. Raises :class:`Wrong` where
    the variant's code runs between calls.
    """
    calls: list[HostCall] = []
    for _ in range(SURE):
        calls += _host_calls(timed)
        if judge_host(calls, threads, ODD_PROCESSORS).implausible is None:
            break
    return judge_host(calls, threads)


def _host_calls(timed: Timed) -> list[HostCall]:
    """A few, between which none of the variant's code may run."""
    calls: list[HostCall] = []
    while not calls or (len(calls) < MOST_CALLS and sum(c.wall for c in calls) < ENOUGH_S):
        with _no_foreign_code(timed):
            timed.before()
        start, demand = perf_counter(), demanded()
        wall, spent = perf_counter(), process_time()
        result = timed.run()
        wall, spent = perf_counter() - wall, process_time() - spent
        demand = demanded() - demand  # over a little more than the call: reading takes time too
        demand *= wall / (perf_counter() - start)
        wait, elsewhere = min(max(WAIT_S[0], wall / 3), WAIT_S[1]), spent_elsewhere()
        sleep(wait)
        calls.append(HostCall(wall, spent, demand, spent_elsewhere() - elsewhere, wait))
        del result
        with _no_foreign_code(timed):
            timed.settle()
    return calls


@contextmanager
def _no_foreign_code(timed: Timed) -> Iterator[None]:
    """Raise :class:`Wrong` where the variant's code runs between calls: hooks, handlers, callbacks.

    Not for a phase in which it is called there: the forward pass before a backward one, a memory.
    """
    if timed.problem.phase == "backward" or timed.call.steps:
        yield
        return
    ran: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        ours = module.partition(".")[0] in HOME or module.startswith(("namedtuple_", *READ))
        if event == "call" and (not ours or module.startswith(PLANTED)):
            ran.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

    with collector_off():  # as while it is timed: the collector's callbacks are not the variant's
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
    if ran:
        raise Wrong(f"its code ran between calls, where no clock looks: {', '.join(sorted(ran))}")


def judge_host(calls: list[HostCall], threads: int, most: float = MORE_PROCESSORS) -> Audit:
    """What some calls show; ``most``: processors per thread that are not too many."""
    wall, demand = sum(c.wall for c in calls), sum(c.wanted for c in calls)
    seconds, reason = [c.spent + c.late for c in calls], None
    if all(c.late > LATE_S and c.late > LATE_SHARE * c.waited for c in calls):
        reason = (
            "it went on working after it had returned: "
            f"{duration(median(c.late for c in calls))} of processor time that the host's clock "
            "did not see"
        )
    elif wall >= ENOUGH_S and demand > most * threads * wall:
        limit = counted(threads, "thread")
        reason = f"it kept {demand / wall:.2g} processors busy and was given {limit}"
    return Audit(median(seconds), "process", (), reason, min(seconds))


def audit_device(
    timed: Timed, run: Step, events_s: float, ahead: bool, low_s: float | None = None
) -> Audit:
    """A few calls on CUDA from end to end, by the host's clock; more where they look odd.

    ``run`` is what the events timed: the call, or the replay of its graph. ``low_s``: the lower end
    of the interval of the events' time.
    """
    calls: list[tuple[float, float]] = []
    device = device_for(timed.problem.device)
    for _ in range(SURE):
        for _ in range(MOST_CALLS):
            timed.before()
            device.flush()  # as cold as the events found it
            device.synchronize()
            start = perf_counter()
            result = run()
            launched = perf_counter()
            device.synchronize()
            calls.append((launched - start, perf_counter() - start))
            del result
            timed.settle()
        audit = judge_device(calls, events_s, ahead, low_s)
        if audit.implausible is None:
            break
    return audit


def judge_device(
    calls: Sequence[tuple[float, float]],
    events_s: float,
    ahead: bool = True,
    low_s: float | None = None,
) -> Audit:
    """What some calls show beside the time that the events gave.

    Of each: seconds until it had returned, and until the device was idle again. Where calls were
    not queued ahead, gaps between launches are in the events' time, which may be the longer one.
    """
    total, after = median(all for _, all in calls), median(all - back for back, all in calls)
    longest = median_interval([all for _, all in calls])[1]
    afterwards = median_interval([all - back for back, all in calls])[0]
    both = f"{duration(events_s)} by events, {duration(total)} from end to end"
    flags, reason = [], None
    if longest < EVENTS_MISS * (low_s or events_s) and ahead:
        reason = f"the clocks disagree: {both}"
    elif afterwards > LAUNCH_BOUND * events_s + ESCAPED_S:
        reason = (
            f"the device worked on where the events do not look ({both}; it was busy for "
            f"{duration(after)} after the call had returned)"
        )
    elif total > LAUNCH_BOUND * events_s:
        flags = [SLOW_HOST[0] + both]
    return Audit(total, "e2e", flags, reason)


ENTRY = "aten::scaled_dot_product_attention"  # what torch runs first, whatever the backend
BACKENDS = {
    "cudnn_attention": "cuDNN",
    "flash_attention": "FlashAttention-2",
    "efficient_attention": "memory-efficient attention",
    "attention_math": "plain products",
}
"""What stands behind ``aten::_scaled_dot_product_`` on a GPU."""
ATTENTION = ("attention", "attn", "transformer")
MOST = 4  # names that a sentence can carry


def unattested(variant: Variant, device: str, ran: Collection[str]) -> str | None:
    """None where the operator that the row forces did run, else a sentence with both names.

    A name may go on after a colon: regions of compiled code are numbered. What ran is shown by the
    operators of attention, else by the first of all.
    """
    operator = variant.attested_by(device)
    if operator is None or any(name == operator or name.startswith(f"{operator}:") for name in ran):
        return None
    attention = [n for n in sorted(ran) if any(word in n for word in ATTENTION) and n != ENTRY]
    telling = attention or sorted(ran)
    more = f" and {len(telling) - MOST} others" if len(telling) > MOST else ""
    names = ", ".join(telling[:MOST]) or "no operator of torch's"
    return f"it should run {operator} and ran {names}{more}"


def chosen(variant: Variant, device: str, ran: Collection[str]) -> str:
    """Of a row that leaves the backend to torch, what ran: ``torch chose cuDNN (…)``."""
    if not device_for(device).queued or variant.attested_by(device) is not None:
        return ""
    names = {f"aten::_scaled_dot_product_{name}": word for name, word in BACKENDS.items()}
    return "; ".join(f"torch chose {names[op]} ({op})" for op in sorted(ran) if op in names)


ROUNDS = (3, 12, 24)  # calls of each kind at first, and then where all before look suspicious
DEAR_S = 0.01  # for a call that takes longer, one of each kind at first
FASTER, NEARLY_ALL = 1.5, 2 / 3
"""How much faster in the median, with how many of the calls on unseen values slower than that."""
LEAST_S = 2e-5  # saving less than this is not worth remembering for, and may come from the caches
ROWS = 8
LOOSER = 4.0  # the yardstick was taken on other values of the kind
GRADIENT_SCORES = 1 << 18
"""Up to so many scores the gradients of one call are compared, in every row."""
OWN_SCORES = 1 << 20
"""And up to so many its output with a variant's own definition: the gate has checked rows of
another set, whatever the size."""


def unseen(inputs: Inputs) -> Inputs:
    """Values of the same kind that no call has seen: moved along the tokens, channels scaled."""
    chance = random.SystemRandom()
    generator = secret_generator(inputs.device)

    def scaled(x: Tensor, axis: int) -> Tensor:
        by = torch.empty(x.shape[axis], dtype=torch.float32, device=x.device)
        by.uniform_(0.9, 1.1, generator=generator)
        by *= signs_like(by, generator)
        return (x * by.view([-1 if at == axis else 1 for at in range(x.dim())])).to(x.dtype)

    moved = inputs.along(lambda x, axis: x.roll(chance.randrange(x.shape[axis]), axis), *TOKENS)
    return Inputs({**moved, **moved.drawn_as("normal").along(scaled, *CHANNELS)}, inputs.specs)


def check_remembers_nothing(
    timed: Timed,
    clock: Clock,
    values: Values,
    define: Defines | None,
    plain: Mapping[str, Error],
    seconds: float,
) -> float:
    """Raise :class:`Wrong` where it is faster on values it has seen, or wrong on others.

    ``seconds``: of a call, about. Returns the least of one on unseen values.
    """
    judge = UnseenJudge(timed, define, plain)
    for rounds in (1 if seconds > DEAR_S else ROUNDS[0], *ROUNDS[1:]):
        old, new = _in_turn(timed, clock, values, rounds, judge)
        of_seen, of_new = median(old), median(new)
        slower = sum(n > of_seen for n in new)
        if of_new / of_seen < FASTER or slower < NEARLY_ALL * rounds or of_new - of_seen < LEAST_S:
            judge.kept()
            return min(new)
    raise Wrong(
        f"it is {of_new / of_seen:.2g} times as fast on values that it has seen: it remembers "
        "results"
    )


def _in_turn(
    timed: Timed, clock: Clock, values: Values, rounds: int, judge: UnseenJudge
) -> tuple[list[float], list[float]]:
    """Seconds on seen and on unseen values.

    What goes before a call is the same for both: values are drawn, then either are put in place.
    """
    old: list[float] = []
    new: list[float] = []
    kinds = [(old, False), (new, True)] * rounds
    for taken, fresh in random.SystemRandom().sample(kinds, len(kinds)):

        def before(fresh: bool = fresh) -> None:
            new_values, copied = unseen(values.inputs), values.inputs.map(Tensor.clone)
            timed.load(Values(new_values if fresh else copied, values.dout))

        taken += clock.samples(before, timed.run, 1)
        timed.settle()
        if fresh:
            judge.output()
    return old, new


class UnseenJudge:
    """Compares results on unseen values with the truth."""

    def __init__(self, timed: Timed, define: Defines | None, plain: Mapping[str, Error]) -> None:
        self._timed, self._define, self._plain = timed, define, plain
        self._chance = random.SystemRandom()
        self._kept: tuple[Values, list[Tensor]] | None = None
        self._calls, p = 0, timed.problem
        self._scores = p.batch * p.heads * p.q_len * p.kv_len

    def output(self) -> None:
        """Raise Wrong where the last call is wrong in a few rows, and keep it by chance."""
        if self._timed.unseen is None:  # of another form: the timed call has reported it
            return
        check_finite("the output on values it had not seen", self._timed.unseen[1][0])
        if self._define is None:
            self._check_rows(*self._timed.unseen)
        self._calls += 1
        if self._chance.randrange(self._calls) == 0:
            self._kept = self._timed.unseen

    def kept(self) -> None:
        """Raise Wrong where the random call kept is wrong: its gradients too, if affordable."""
        if self._kept is None:
            return
        (values, results), problem = self._kept, self._timed.problem
        if self._define is not None and self._scores <= OWN_SCORES:
            self._check_rows(values, results)
        if not problem.gradients or self._scores > GRADIENT_SCORES:
            return
        rows = torch.arange(problem.q_len, device=results[0].device)
        truth = self._truth(values.inputs, rows, values.dout)
        tensors = dict(zip(self._timed.all_names, results, strict=True))
        for name in self._timed.names:
            axes = axes_of(name, values.inputs.specs)
            self._check(name, rows_of(tensors[name], axes, rows), truth[name])

    def _check_rows(self, values: Values, results: Sequence[Tensor]) -> None:
        n = self._timed.problem.q_len
        numbers = self._chance.sample(range(n), min(ROWS, n))
        rows = torch.tensor(sorted(numbers), device=results[0].device)
        truth = self._truth(values.inputs, rows, None)
        for name, whole in zip(self._timed.call.outputs, results, strict=False):
            self._check(name, rows_of(whole, axes_of(name, values.inputs.specs), rows), truth[name])

    def _truth(self, inputs: Inputs, rows: Tensor, dout: Tensor | None) -> Mapping[str, Tensor]:
        if self._define is not None:
            return differentiated(self._timed.problem, wide(inputs), rows, dout, self._define)
        by_name = inputs.arguments[1]
        return exact(self._timed.problem, *inputs.qkv, rows, dout, **by_name).tensors

    def _check(self, name: str, got: Tensor, want: Tensor) -> None:
        dtype = self._timed.problem.dtype
        try:
            budget.check_unsampled(name, got, want, self._plain[name], dtype, LOOSER)
        except Wrong:
            worst = compare(got, want).worst_row or float("nan")
            raise Wrong(
                f"on values that it had not seen its {WORDS.get(name, name)} is off: the worst "
                f"row by {worst:.2g}"
            ) from None
