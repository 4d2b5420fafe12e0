"""A variant's call, ready to be timed, and how it is sampled."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.core import gpu
from attnbench.core.format import duration, percent
from attnbench.core.gpu import POWER_CAP, SLOWDOWNS, Absent, Board
from attnbench.core.job import Job
from attnbench.core.record import Time
from attnbench.core.stats import median_interval, summary
from attnbench.gate.budget import EPSILON
from attnbench.gate.findings import Wrong
from attnbench.gate.gate import GateVerdict
from attnbench.gate.hygiene import check_form
from attnbench.gate.inputs import Attend, Call, Inputs, other_set
from attnbench.gate.reference import Defines, Judged
from attnbench.meter.clocks import LEAST, Clock, GraphClock, clock_for, cuda_gpu
from attnbench.meter.ranks import RanksClock, Together
from impls.cost import Cost
from impls.operators import OUTPUT, OUTPUT_AXES, Signs, operator
from impls.problem import Problem

WORDS = {"forward": "output"}
SAME = {"float64": 16.0, "float32": 4.0, "bfloat16": 1.0, "float16": 1.0}
"""How far results of one call may lie from another's, in spacings of the dtype: a kernel that adds
in whatever order its blocks finish is not bit for bit repeatable."""


class Values(NamedTuple):
    """What one call is given."""

    inputs: Inputs
    dout: Tensor | None


def secret_generator(device: str | torch.device) -> torch.Generator:
    """A generator with a random seed: a variant may seed torch's own."""
    return torch.Generator(device).manual_seed(int.from_bytes(os.urandom(7)))


def signs_like(x: Tensor, chance: torch.Generator) -> Tensor:
    """Random signs of a tensor's shape."""
    return torch.empty_like(x).bernoulli_(generator=chance).mul_(2).sub_(1)


class FreshValues:
    """Values for every timed call, and the results that each must give.

    An exact variant gets the judged values under its operator's :class:`Signs`: on the channels of
    q and k, which leave the scores as they are, and on those of v, which come out on the output.
    Any other gets two sets of values in turn, and signs that come out where ``signed`` is set.
    """

    def __init__(
        self,
        values: Values,
        truth: Sequence[Tensor],
        second: Sequence[Tensor] | None = None,
        *,
        exact: bool,
        signs: Sequence[Signs],
    ) -> None:
        """``second``: what the other set must give, where that was judged."""
        self._sets, self._results = [values], [truth]
        if not exact:
            self._sets.append(Values(other_set(values.inputs), values.dout))
            self._results.append(second or ())
        self.judged = exact or second is not None  # whether the results of every set were judged
        self.signs = [each for each in signs if exact or OUTPUT in each.names]
        self.signed, self._turn = exact, 0
        self._chance = secret_generator(values.inputs.device)
        self._drawn: dict[str, Tensor] = {}
        """The present signs of each input and of the output, as they multiply it."""

    def draw(self) -> Values:
        """The next set, under new signs."""
        self._turn = (self._turn + 1) % len(self._sets)
        inputs, dout = self._sets[self._turn]
        self._drawn = {}
        if not self.signed:
            return Values(inputs, dout)
        for each in self.signs:
            row = inputs[each.names[0]].new_empty(inputs.size(each.axis))
            drawn = signs_like(row, self._chance)
            for name in (n for n in each.names if n == OUTPUT or n in inputs):
                axes = OUTPUT_AXES if name == OUTPUT else inputs.specs[name].axes
                self._drawn[name] = drawn.view([-1 if a == each.axis else 1 for a in axes])
        signed = {n: x * self._drawn[n] if n in self._drawn else x for n, x in inputs.items()}
        if dout is not None and OUTPUT in self._drawn:
            dout = dout * self._drawn[OUTPUT]
        return Values(Inputs(signed, inputs.specs), dout)

    def wanted(self, results: Sequence[Tensor], names: Sequence[str]) -> Sequence[Tensor]:
        """What the values drawn last must give; for a set not judged, what it gave at first."""
        if not self._results[self._turn]:
            self._results[self._turn] = [x.clone() for x in results]
        first = self._results[self._turn]
        signs = [self._drawn.get(OUTPUT if n == "forward" else n.removeprefix("d")) for n in names]
        return [x if by is None else x * by for x, by in zip(first, signs, strict=False)]

    def alike(self) -> bool:
        """Whether two sets of other values gave the same results, and that was never judged."""
        if self.judged or not all(self._results):
            return False
        one, other = (values.inputs for values in self._sets)
        a, b = self._results
        return any(not torch.equal(one[n], other[n]) for n in one) and torch.equal(a[0], b[0])


class Repeated:
    """A variant's call in one phase, made again and again on values that change in place."""

    def __init__(self, problem: Problem, attend: Attend, values: Values) -> None:
        self.problem, self.call = problem, Call(problem, attend, values.inputs)
        self._dout = None if values.dout is None else values.dout.clone()
        self._out: Tensor | None = None
        self._gradients: Sequence[Tensor] = ()

    def before(self) -> None:
        """Put other values in place."""
        raise NotImplementedError

    def run(self) -> object:
        """What the clock sees."""
        if self.problem.phase != "backward":
            self._out = self.call.forward()
        if self.problem.gradients:
            assert self._out is not None and self._dout is not None
            self._gradients = self.call.backward(self._out, self._dout)
        return self._out

    def hold(self) -> Callable[[], None]:
        """A step that puts the results of the last call back, for a clock that replays it."""
        out, gradients = self._out, self._gradients

        def put_back() -> None:
            self._out, self._gradients = out, gradients

        return put_back

    def _forward_first(self) -> None:
        if self.problem.phase == "backward":
            self._out = self.call.forward()


class Timed(Repeated):
    """A variant's call, ready to be timed; the result of every call is compared."""

    def __init__(
        self,
        problem: Problem,
        attend: Attend,
        values: Values,
        truth: Sequence[Tensor],
        *,
        exact: bool,
        signs: Sequence[Signs],
        second: Sequence[Tensor] | None = None,
        zero: Collection[str] = (),
    ) -> None:
        """``truth``: output and gradients as they were judged, and ``second`` those of the other
        set; ``zero``: those that are only rounding.
        """
        super().__init__(problem, attend, values)
        self.fresh = FreshValues(values, truth, second, exact=exact, signs=signs)
        self._zero, self._all_names = zero, ("forward", *self.call.names)
        self.names = tuple(name for name in self._all_names if name not in zero)
        self._off = torch.zeros(len(self._all_names), dtype=torch.float64, device=truth[0].device)
        self._form: str | None = None
        self._given: Values | None = None
        self.unseen: tuple[Values, list[Tensor]] | None = None
        """The values of the last :meth:`load`, with the output and gradients of the call."""
        self._chance = secret_generator(truth[0].device)

    def try_signs(self) -> None:
        """Put signs on the values from now on, where they come out on the output."""
        if self.fresh.signed or not self.fresh.signs or not self.fresh.judged:
            return
        off, form = self._off.clone(), self._form
        self.fresh.signed = True
        self.before()
        self.run()
        self.settle()
        self.fresh.signed = self.wrong() is None
        self._off, self._form = off, form

    def before(self) -> None:
        """Compare the last result, and put fresh values in place."""
        self.settle()
        self._take(self.fresh.draw())

    def load(self, values: Values) -> None:
        """Put these values in place for a call whose result :attr:`unseen` keeps, uncompared.

        Signs on the upstream gradient are drawn after a forward pass that is not timed, which can't
        have prepared for them.
        """
        self.settle()
        self._take(values)
        if self._dout is not None:
            self._dout.mul_(signs_like(self._dout, self._chance))
        self._given = Values(values.inputs, None if self._dout is None else self._dout.clone())

    def _take(self, values: Values) -> None:
        self.call.load(values.inputs)
        self._forward_first()
        if self._dout is not None and values.dout is not None:
            self._dout.copy_(values.dout)

    def settle(self) -> None:
        """Compare the last result, or keep it, outside the clock."""
        if self._out is None:
            return
        try:
            out = check_form(self.problem, self._out).detach().clone()  # as it is at this moment
            results = [out, *self._gradients]
            if self._given is not None:
                self.unseen, self._given = (self._given, results), None
            elif len(results) != len(self._all_names) and self.problem.gradients:
                raise Wrong("its weights are not those that it had when it was judged")
            else:
                for i, pair in enumerate(
                    zip(results, self.fresh.wanted(results, self._all_names), strict=True)
                ):
                    self._off[i] = torch.maximum(self._off[i], _deviation(*pair))
        except Wrong as wrong:
            self._form = str(wrong)
        self._out, self._gradients = None, ()

    def wrong(self) -> str | None:
        """None where every timed call gave what it should, else a sentence."""
        if self._form is None and self.fresh.alike():
            return "while it was timed it returned the same result for other inputs"
        if self._form is not None:
            return f"while it was timed, {self._form}"
        off = dict(zip(self._all_names, self._off.tolist(), strict=True))
        changed = _changed(self.problem.dtype, off, self._zero)
        return None if changed is None else f"while it was timed {changed}"


def unlike(
    problem: Problem, results: Mapping[str, Tensor], truth: Sequence[Tensor], zero: Collection[str]
) -> str | None:
    """How one call's output and gradients differ from what they were when they were judged."""
    try:
        check_form(problem, results["forward"])
    except Wrong as wrong:
        return str(wrong)
    pairs = zip(results.items(), truth, strict=True)
    off = {name: float(_deviation(got.detach(), want)) for (name, got), want in pairs}
    return _changed(problem.dtype, off, zero)


def _changed(dtype: str, off: Mapping[str, float], zero: Collection[str]) -> str | None:
    for name, far in off.items():
        if name not in zero and not far <= SAME[dtype] * EPSILON[dtype]:
            return (
                f"its {WORDS.get(name, name)} was not what it was when it was judged "
                f"(off by {far:.2g}, relative)"
            )
    return None


def _deviation(got: Tensor, want: Tensor) -> Tensor:
    """The relative Frobenius distance, as a tensor: reading it would wait for the device."""
    wide = torch.float64 if got.dtype == torch.float64 else torch.float32
    away = torch.linalg.vector_norm(got - want, dtype=wide)
    size = torch.linalg.vector_norm(want, dtype=wide)
    return torch.where(away == 0, away, away / size).double()


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
        core = problem.level == "core"
        timed = Timed(
            problem,
            self.attend,
            self.values,
            verdict.truth,
            exact=self.job.variant.exact and core,
            signs=operator(self.job.variant.operator).signs if core else (),
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
    """Watches a GPU while batches of samples are taken, and throws away those of a slow one."""

    def __init__(
        self, board: Board | Absent | None, wait: Callable[[float], object] = sleep
    ) -> None:
        """``board``: the GPU's, the reason why it can't be watched, or None where there is none."""
        self._board = None if isinstance(board, Absent) else board
        self._blind = board.reason if isinstance(board, Absent) else ""
        self._wait, self.discarded = wait, 0
        self._batches = self._capped = 0
        self._stays: frozenset[str] = frozenset()  # slow-downs that did not end

    def take(self, batch: Callable[[], list[float]]) -> list[float]:
        """The batch, again and again while the device is slowed down; at last as it is."""
        if (board := self._board) is None:
            return batch()
        for tries in range(IN_A_ROW + 1):
            before, hot, capped = self._slowed(board)
            samples = batch()
            after, hot_since, capped_since = self._slowed(board)
            slow, power = (before | after) & SLOWDOWNS, POWER_CAP in before | after
            power |= capped_since > capped  # it came and went within the batch
            if not slow and hot_since > hot:
                slow = frozenset({"thermal"})  # as did this
            if not slow or self._stays:
                break
            self.discarded += len(samples)
            if tries == IN_A_ROW - 1:
                self._stays = slow
            self._wait(min(WAIT_S[0] * 2**tries, WAIT_S[1]))
        self._batches += 1
        self._capped += power
        return samples

    def _slowed(self, board: Board) -> tuple[frozenset[str], float, float]:
        """Why clocks are held down, and for how many seconds in all: by heat, by power."""
        reasons, seconds = board.reasons(), [board.held_down_s(why) for why in ("thermal", "power")]
        if isinstance(reasons, Absent):
            self._blind, reasons = reasons.reason, frozenset()
        hot, capped = (0.0 if isinstance(s, Absent) else s for s in seconds)
        return reasons, hot, capped

    def flags(self) -> list[str]:
        """Slow-downs that stayed, the power cap, and why slow-downs went unseen."""
        flags = []
        if self._stays:
            flags.append(
                f"slowed down all the time ({', '.join(sorted(self._stays))}): {self.discarded} "
                "samples were thrown away, then the rest kept"
            )
        if self._capped and self._board is not None:
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
    return Health(None if device == "cpu" else gpu.board(cuda_gpu(device).uuid))


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
PLATEAU = 64  # noise that did not change over so many samples will not get better


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
    timed: Timed, clock: Clock, budget_s: float, flags: list[str], *, health: Health | None = None,
    floor_s: float | None = None,
) -> Time:  # fmt: skip
    """Samples until converged, on a plateau, or at the budget (after as many as the clock wants).

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
    """``converged``, ``plateau`` or ``budget``; empty where more are to be taken."""
    if (n := len(samples)) < least:
        return ""
    last = spent_s >= budget_s or n >= MOST
    if n >= ENOUGH and (last or spent_s >= budget_s / 2):
        low, high = median_interval(samples)
        middle = median(samples)
        if high - middle <= NARROW * middle and middle - low <= NARROW * middle:
            return "converged"
        if n >= 2 * PLATEAU:
            now, then = (summary(some) for some in (samples, samples[:-PLATEAU]))
            noise, earlier = ((s.q75 - s.q25) / s.median for s in (now, then))
            if abs(noise - earlier) < 0.05 * noise:
                return "plateau"
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
