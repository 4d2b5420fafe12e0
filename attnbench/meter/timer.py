"""Time: a variant that is ready, how its calls are sampled, and what may have disturbed them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import torch

from attnbench.core.device import device_for
from attnbench.core.format import duration, percent
from attnbench.core.gpu import POWER_CAP, SLOWDOWNS, Absent, Board
from attnbench.core.record import Time
from attnbench.core.stats import median_interval, summary
from attnbench.core.wire import Job
from attnbench.gate.gate import GateVerdict
from attnbench.gate.inputs import Attend
from attnbench.gate.reference import Defines, Judged
from attnbench.meter.clocks import LEAST, Clock, GraphClock, clock_for
from attnbench.meter.ranks import RanksClock, Together
from attnbench.meter.timed import Repeated, Timed, Values
from impls.cost import Cost
from impls.operators import signs


@dataclass(frozen=True)
class Ready:
    """A variant that has passed the gate."""

    job: Job
    attend: Attend
    define: Defines | None
    judged: Judged
    verdict: GateVerdict
    cost: Cost | None
    first_s: float  # what the first call took
    shared: dict[str, Any]  # what variants share, as it was before this one was built

    @property
    def values(self) -> Values:
        """What it was judged on."""
        return Values(self.judged.inputs, self.judged.dout)

    def timed(self) -> Timed:
        """Its call, with tensors of its own."""
        verdict, problem = self.verdict, self.job.problem
        timed = Timed(
            problem,
            self.attend,
            self.values,
            verdict.truth,
            exact=self.job.variant.exact and problem.level == "core",
            signs=signs(self.job.variant.operator, problem),
            second=verdict.second,
            zero=verdict.zero,
        )
        timed.try_signs()
        return timed

    def clock(self) -> Clock:
        """The clock of its phase on its device; ranks have their own."""
        if isinstance(self.attend, Together):
            return RanksClock(self.attend)
        return clock_for(self.job.problem.device, self.job.problem.phase)


def prepare(clock: Clock, timed: Repeated) -> None:
    """Let a clock that replays calls record this one."""
    if not isinstance(clock, GraphClock):
        return
    timed.before()
    if timed.call.moves:
        clock.leave("what it remembers of the tokens before lies elsewhere for each call")
    else:
        clock.prepare(timed.before, timed.run, timed.hold)


class TimeSpent:
    """Where a cell's wall time goes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = perf_counter()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the block's time under a name."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + perf_counter() - start

    def closed(self) -> dict[str, float]:
        """Seconds by name, with the total and what no name counts."""
        total = perf_counter() - self._start
        own = total - sum(self.seconds.values())
        return {k: round(v, 6) for k, v in {**self.seconds, "own": own, "total": total}.items()}


IN_A_ROW = 5  # batches thrown away in a row before it is accepted that the device stays slow
WAIT_S = (0.05, 0.5)  # the first wait, and the longest: each is twice the one before
CONTENDED = 0.9  # below this share of the processor a single thread was not running all the time


class Health:
    """Watches a device while batches of samples are taken, and throws away those of a slow one."""

    def __init__(
        self, board: Board | Absent | None, wait: Callable[[float], object] = sleep
    ) -> None:
        """``board``: the device's, or why it can't be watched; None of a processor."""
        self._board, self._wait, self.discarded = board, wait, 0
        self._blind = ""
        self._batches = self._capped = 0
        self._stays: frozenset[str] = frozenset()  # slow-downs that did not end

    def take(self, batch: Callable[[], list[float]]) -> list[float]:
        """The batch, again and again while the device is slowed down; at last as it is."""
        for tries in range(IN_A_ROW + 1):
            before = self._reasons()
            samples = batch()
            reasons = before | self._reasons()
            slow = reasons & SLOWDOWNS
            if not slow or self._stays:
                break
            self.discarded += len(samples)
            if tries == IN_A_ROW - 1:
                self._stays = slow
            self._wait(min(WAIT_S[0] * 2**tries, WAIT_S[1]))
        self._batches += 1
        self._capped += POWER_CAP in reasons
        return samples

    def _reasons(self) -> frozenset[str]:
        """What holds the device's clocks down."""
        reasons = self._board.reasons() if isinstance(self._board, Board) else self._board
        if isinstance(reasons, Absent):
            self._blind = reasons.reason
        return reasons if isinstance(reasons, frozenset) else frozenset()

    def flags(self) -> list[str]:
        """Slow-downs that stayed, the power cap, and why slow-downs went unseen."""
        flags = []
        if self._stays:
            flags.append(
                f"slowed down all the time ({', '.join(sorted(self._stays))}): {self.discarded} "
                "samples were thrown away, then the rest kept"
            )
        if self._capped and isinstance(self._board, Board):
            limit = self._board.power_limit_w()
            least = "" if isinstance(limit, Absent) else f" of {limit:.0f} W"
            flags.append(
                f"power-capped: in {self._capped} of {self._batches} batches the clocks "
                f"were held down to keep to the limit{least}"
            )
        if self._blind:
            flags.append(f"slow-downs were not watched for: {self._blind}")
        return flags


def health_for(device: str) -> Health:
    """A watcher for one measurement on a device."""
    return Health(device_for(device).board())


def _processor_now() -> tuple[float, float, int]:
    """Wall time, processor time, and how often this thread has given the processor back itself."""
    waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return perf_counter(), process_time(), waits


def processor_flags(wall: float, cpu: float, waits: int, calls: int, threads: int) -> list[str]:
    """Flags where other processes took the processor, or the calls gave it back themselves.

    A thread that sleeps or waits gives the processor back voluntarily, which the system counts.
    With several threads this says nothing: they wait for one another.
    """
    busy = cpu / max(wall, 1e-9)
    if busy >= CONTENDED:
        return []
    if threads == 1 and waits >= calls:
        return [
            f"it waited: {percent(1 - busy)} of each call without the processor, of its own will"
        ]
    return [f"contended: {percent(busy)} of a processor"]


ENOUGH, MOST = 20, 400
LONGEST_S = 0.5
"""For as long at the most a clock takes the least that it is content with, beyond seven."""
NEAR_FLOOR = 20.0
"""Times of so many empty kernels, or fewer, hold much of what events themselves take."""
NARROW = 0.01  # converged: the interval of the median is within this of it on either side


def warm_up(timed: Repeated, clock: Clock, budget_s: float) -> tuple[float, list[str]]:
    """Call until the second half is as fast as the first, or the budget is spent; the seconds of
    that, and a flag where it is not steady.
    """
    seconds: list[float] = []
    start = perf_counter()
    while True:
        seconds += clock.samples(timed.before, timed.run, 2)
        half = len(seconds) // 2
        first, second = (torch.tensor(x).median().item() for x in (seconds[:half], seconds[half:]))
        steady = len(seconds) >= 4 and abs(first - second) <= 0.05 * second
        spent = perf_counter() - start
        if spent >= budget_s or (steady and spent >= budget_s / 4):
            return spent, [] if steady or len(seconds) < 8 else ["not steady"]


def measure_time(
    timed: Repeated,
    clock: Clock,
    budget_s: float,
    flags: list[str],
    *,
    health: Health | None = None,
    floor_s: float | None = None,
) -> Time:
    """Samples until converged, or at the budget (after as many as the clock wants).

    ``health`` watches the device meanwhile, and throws away what was taken while it was slow.
    ``floor_s`` is what an empty kernel takes by the same clock.
    """
    health = health or Health(None)
    samples: list[float] = []
    start, before, stop = perf_counter(), _processor_now(), ""
    while not stop:
        if clock.batch == 1:
            count = 1 if len(samples) < ENOUGH else 5
        elif not samples:  # how long one takes is not known yet
            count = 1
        else:
            spent_s = perf_counter() - start
            fits = (budget_s - spent_s) / (spent_s / len(samples) + 1e-9)
            count = max(1, min(clock.batch, int(fits)))
        samples += health.take(partial(clock.samples, timed.before, timed.run, count))
        least = clock.least if clock.least * median(samples) <= LONGEST_S else LEAST
        stop = _why_stop(samples, perf_counter() - start, budget_s, least)
    timed.settle()
    flags = [*flags, *clock.flags, *health.flags(), *_drift(samples)]
    if clock.name == "host":
        wall, cpu, waits = (b - a for a, b in zip(before, _processor_now(), strict=True))
        flags += processor_flags(wall, cpu, int(waits), len(samples), torch.get_num_threads())
    if floor_s and clock.name != "e2e" and median(samples) < NEAR_FLOOR * floor_s:
        flags.append(f"near the floor of its clock: an empty kernel takes {duration(floor_s)}")
    mhz = clock.mhz
    clocks = {"sm_mhz": float(median(mhz)), "sm_mhz_min": float(min(mhz))} if mhz else {}
    more: dict[str, Any] = {"discarded": health.discarded, "clocks": clocks, "flags": flags}
    return Time(*summary(samples), len(samples), clock.name, stop, samples, **more)


def _why_stop(samples: list[float], spent_s: float, budget_s: float, least: int = LEAST) -> str:
    """``converged`` or ``budget``; empty where more are to be taken."""
    if (n := len(samples)) < least:
        return ""
    last = spent_s >= budget_s or n >= MOST
    if n >= ENOUGH and (last or spent_s >= budget_s / 2):
        low, high = median_interval(samples)
        middle = median(samples)
        if high - middle <= NARROW * middle and middle - low <= NARROW * middle:
            return "converged"
    return "budget" if last else ""


def _drift(samples: list[float]) -> list[str]:
    """Whether the last third differs from the first by more than both intervals allow."""
    if (third := len(samples) // 3) < LEAST:
        return []
    first, last = summary(samples[:third]), summary(samples[-third:])
    change = last.median / first.median - 1
    if (first.low <= last.high and last.low <= first.high) or abs(change) <= NARROW:
        return []
    return [
        f"drifting: the last third of the samples took {percent(change, '+')} against the first"
    ]
