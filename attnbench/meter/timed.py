"""A variant's call, ready to be timed, and how it is sampled."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attnbench.core import gpu
from attnbench.core.gpu import POWER_CAP, SLOWDOWNS, Absent, Board
from attnbench.core.record import Time
from attnbench.core.stats import median_interval, summary
from attnbench.gate.budget import EPSILON
from attnbench.gate.findings import Wrong
from attnbench.gate.gate import GateVerdict
from attnbench.gate.hygiene import check_form
from attnbench.gate.inputs import Attend, Call, Ends, Inputs, other_set
from attnbench.gate.reference import Defines, Judged
from attnbench.meter.clocks import Clock, GraphClock, clock_for, cuda_gpu
from attnbench.meter.ranks import Together
from impls.cost import Cost
from impls.problem import Problem
from impls.spec import Variant

WORDS = {"forward": "output"}
SAME = {"float64": 16.0, "float32": 4.0, "bfloat16": 1.0, "float16": 1.0}
"""How far results of one call may lie from another's, in spacings of the dtype: a kernel that adds
in whatever order its blocks finish is not bit for bit repeatable."""


class Values(NamedTuple):
    """What one call is given."""

    inputs: Ends
    dout: Tensor | None


def _drawer(device: torch.device) -> torch.Generator:
    """Chance of the ruler's own: torch's may be seeded by anybody."""
    generator = torch.Generator(device)
    generator.manual_seed(int.from_bytes(os.urandom(7)))
    return generator


class Signs:
    """The same values under signs that no call has seen."""

    def __init__(self, values: Values, truth: Sequence[Tensor]) -> None:
        self._values, self._truth = values, truth
        assert isinstance(values.inputs, Inputs)
        q, _, v = self._inputs = values.inputs
        self._qk, self._v = torch.ones_like(q[0, 0, 0]), torch.ones_like(v[0, 0, 0])
        self._chance = _drawer(q.device)

    def draw(self) -> Values:
        """New signs."""
        for signs in (self._qk, self._v):
            signs.bernoulli_(generator=self._chance).mul_(2).sub_(1)
        (q, k, v), dout = self._inputs, self._values.dout
        fresh = Inputs(q * self._qk, k * self._qk, v * self._v)
        return Values(fresh, None if dout is None else dout * self._v)

    def wanted(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """The truth under the signs drawn last."""
        signs = (self._v, self._qk, self._qk, self._v)
        return [tensor * sign for tensor, sign in zip(self._truth, signs, strict=False)]


class TimedTurns:
    """Two sets of values in turn; each must give what it gave when it was judged."""

    def __init__(
        self, values: Values, truth: Sequence[Tensor], second: Sequence[Tensor] | None = None
    ) -> None:
        self._sets = (values, Values(other_set(values.inputs), values.dout))
        self._first: list[Sequence[Tensor] | None] = [truth, second]
        self._judged = second is not None
        self._turn = 0
        self._signs: Tensor | None = None
        self._chance = _drawer(values.inputs[0].device)

    def sign_values(self) -> None:
        """From now on v comes under signs that no call has seen, and the output with them."""
        inputs = self._sets[0].inputs
        assert isinstance(inputs, Inputs)
        self._signs = torch.ones_like(inputs.v[0, 0, 0])

    def leave_signs(self) -> None:
        """The values as they were."""
        self._signs = None

    def draw(self) -> Values:
        """The other set."""
        self._turn = 1 - self._turn
        inputs, dout = self._sets[self._turn]
        if self._signs is None or not isinstance(inputs, Inputs):
            return self._sets[self._turn]
        self._signs.bernoulli_(generator=self._chance).mul_(2).sub_(1)
        dout = None if dout is None else dout * self._signs
        return Values(inputs._replace(v=inputs.v * self._signs), dout)

    def wanted(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """What this set gave at first, under the signs drawn last."""
        if (first := self._first[self._turn]) is None:
            first = self._first[self._turn] = [x.clone() for x in results]
        if self._signs is None:
            return first
        on = (True, False, False, True)  # the output and dv
        return [x * self._signs if s else x for x, s in zip(first, on, strict=False)]

    @property
    def judged(self) -> bool:
        """Whether somebody judged what both sets give."""
        return self._judged

    def alike(self) -> bool:
        """Whether both sets gave the same, though their values differ and nobody judged that."""
        a, b = self._first
        if self._judged:
            return False
        differ = not torch.equal(self._sets[0].inputs[-1], self._sets[1].inputs[-1])
        return differ and a is not None and b is not None and torch.equal(a[0], b[0])


class Timed:
    """A variant's call in one phase, ready to be timed: what goes before, and what counts."""

    def __init__(
        self,
        problem: Problem,
        attend: Attend,
        values: Values,
        truth: Sequence[Tensor],
        *,
        exact: bool,
        second: Sequence[Tensor] | None = None,
        zero: Collection[str] = (),
    ) -> None:
        """``truth``: output and gradients as they were judged, and ``second`` those of the other
        set; ``zero``: those that only round.
        """
        self.problem = problem
        self.call = Call(problem, attend, values.inputs)
        self._dout = None if values.dout is None else values.dout.clone()
        self.fresh: Signs | TimedTurns = (
            Signs(values, truth) if exact else TimedTurns(values, truth, second)
        )
        self._zero = zero
        self._names = ("forward", *self.call.names)
        self._off = torch.zeros(len(self._names), dtype=torch.float64, device=truth[0].device)
        self._form: str | None = None
        self._out: Tensor | None = None
        self._gradients: Sequence[Tensor] = ()
        self._given: Values | None = None
        self.unseen: tuple[Values, list[Tensor]] | None = None
        """The values that :meth:`load` put last, and what came of them: output and gradients."""
        self.names = tuple(name for name in self._names if name not in zero)
        """Output and gradients, but those that only round."""
        self._chance = _drawer(truth[0].device)

    def try_signs(self) -> None:
        """Whether signs on v come out on the output: then every call gets its own."""
        turns = self.fresh
        if self.problem.level != "core" or not isinstance(turns, TimedTurns) or not turns.judged:
            return
        turns.sign_values()
        off, form = self._off.clone(), self._form
        self.before()
        self.run()
        self.settle()
        if self.wrong() is not None:
            turns.leave_signs()
        self._off, self._form = off, form

    def before(self) -> None:
        """Hold the last result against what is right, and put fresh values in its place."""
        self.settle()
        self._take(self.fresh.draw())

    def load(self, values: Values) -> None:
        """Put these values there, for a call whose result is kept and held against nothing yet.

        Signs on the upstream gradient are drawn only after a forward pass that is not timed: it
        can't have prepared what nobody knew.
        """
        self.settle()
        self._take(values)
        if self._dout is not None:
            signs = torch.empty_like(self._dout).bernoulli_(generator=self._chance)
            self._dout.mul_(signs.mul_(2).sub_(1))
        self._given = Values(values.inputs, None if self._dout is None else self._dout.clone())

    def _take(self, values: Values) -> None:
        self.call.load(values.inputs)
        if self.problem.phase == "backward":
            self._out = self.call.forward()
        if self._dout is not None and values.dout is not None:
            self._dout.copy_(values.dout)

    def run(self) -> object:
        """What the clock sees."""
        if self.problem.phase != "backward":
            self._out = self.call.forward()
        if self.problem.gradients:
            assert self._out is not None and self._dout is not None
            self._gradients = self.call.backward(self._out, self._dout)
        return self._out

    def hold(self) -> Callable[[], None]:
        """A step that puts the last call's results back where :meth:`settle` looks for them.

        For a clock that replays a call without running any of its Python.
        """
        out, gradients = self._out, self._gradients

        def put_back() -> None:
            self._out, self._gradients = out, gradients

        return put_back

    def settle(self) -> None:
        """Take the last result in, outside the clock."""
        if self._out is None:
            return
        try:
            out = check_form(self.problem, self._out).detach().clone()  # as it is at this moment
            results = [out, *self._gradients]
            if self._given is not None:
                self.unseen, self._given = (self._given, results), None
                self._out, self._gradients = None, ()
                return
            if len(results) != len(self._names) and self.problem.gradients:
                raise Wrong("its weights are not those that it had when it was judged")
        except Wrong as wrong:
            self._form = str(wrong)
        else:
            for i, (got, want) in enumerate(zip(results, self.fresh.wanted(results), strict=True)):
                self._off[i] = torch.maximum(self._off[i], _deviation(got, want))
        self._out, self._gradients = None, ()

    def wrong(self) -> str | None:
        """None where every timed call gave what it should, else a sentence."""
        if self._form is not None:
            return f"while it was timed, {self._form}"
        if isinstance(self.fresh, TimedTurns) and self.fresh.alike():
            return "while it was timed it returned the same result for other inputs"
        off = dict(zip(self._names, self._off.tolist(), strict=True))
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
    off = {
        name: float(_deviation(got.detach(), want))
        for (name, got), want in zip(results.items(), truth, strict=True)
    }
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
class Job:
    """What a worker is asked to measure."""

    variant: Variant
    problem: Problem
    seed: int = 0
    budget_s: float = 0.3
    timed: bool = True
    """False: only the gate, and a record without a time."""
    bits: bool = False
    """Whether to try if the same values give the same bits."""
    energy: bool = False
    ceilings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """To send over a pipe."""
        return {
            "variant": self.variant.to_dict(),
            "problem": self.problem.to_dict(),
            "seed": self.seed,
            "budget_s": self.budget_s,
            "timed": self.timed,
            "bits": self.bits,
            "energy": self.energy,
            "ceilings": dict(self.ceilings),
        }

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> Job:
        """As it was sent."""
        variant, problem = Variant.from_dict(sent["variant"]), Problem.from_dict(sent["problem"])
        return cls(**{**sent, "variant": variant, "problem": problem})


@dataclass(frozen=True)
class Ready:
    """A variant that has passed the gate."""

    job: Job
    attend: Attend
    define: Defines | None
    judged: Judged
    verdict: GateVerdict
    cost: Cost | None
    first_s: float
    """What the first call took."""
    shared: dict[str, Any]
    """What others share, as it stood before the variant was built."""

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
            second=verdict.second,
            zero=verdict.zero,
        )
        timed.try_signs()
        return timed

    def clock(self) -> Clock:
        """The clock of its phase on its device; ranks have their own."""
        if isinstance(self.attend, Together):
            return self.attend.clock()
        return clock_for(self.job.problem.device, self.job.problem.phase)


class Repeated(Protocol):
    """A call that is made again and again on values that change in place."""

    call: Call

    def before(self) -> object:
        """Put other values there."""

    def run(self) -> object:
        """What the clock sees."""

    def hold(self) -> Callable[[], object]:
        """What puts the results back where they are looked for, after a replay."""


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
        """All the names, and what is left over as the ruler's own."""
        total = perf_counter() - self._start
        own = total - sum(self.seconds.values())
        return {k: round(v, 6) for k, v in {**self.seconds, "own": own, "total": total}.items()}


Samples = Callable[[], list[float]]

IN_A_ROW = 5
"""Batches thrown away in a row before it is accepted that the device stays slow."""
WAIT_S = (0.05, 0.5)
"""The first wait, and the longest: each is twice the one before."""
CONTENDED = 0.9
"""Below this share of the processor a single thread was not running all the time."""


class Health(Protocol):
    """Watches while batches of samples are taken."""

    discarded: int
    """Samples thrown away."""

    def take(self, batch: Samples) -> list[float]:
        """The samples of a batch, taken while the device was itself."""

    def clocks(self) -> dict[str, float]:
        """The device's clocks, as observed."""

    def flags(self) -> list[str]:
        """What must be known."""


class Unwatched:
    """Nothing to watch; on a GPU, with the reason."""

    discarded = 0

    def __init__(self, why: str = "") -> None:
        self._why = why

    def take(self, batch: Samples) -> list[float]:
        """As they come."""
        return batch()

    def clocks(self) -> dict[str, float]:
        """None are known."""
        return {}

    def flags(self) -> list[str]:
        """Why slow-downs went unseen."""
        return [f"slow-downs were not watched for: {self._why}"] if self._why else []


class Watched:
    """A GPU under its driver's eyes."""

    def __init__(self, board: Board, wait: Callable[[float], object] = sleep) -> None:
        self._board, self._wait = board, wait
        self.discarded = 0
        self._mhz: list[float] = []
        self._batches = self._capped = 0
        self._stays: frozenset[str] = frozenset()
        """Slow-downs that did not end."""
        self._blind = ""

    def take(self, batch: Samples) -> list[float]:
        """The batch, again and again while the device is slowed down; at last as it is."""
        pause, tries = WAIT_S[0], 0
        while True:
            hot, capped = self._held_down_s("thermal"), self._held_down_s("power")
            reasons = self._reasons()
            samples = batch()
            mhz, reasons = self._board.sm_mhz(), reasons | self._reasons()
            if self._held_down_s("power") > capped:
                reasons |= {POWER_CAP}  # it came and went while nobody looked
            slow = reasons & SLOWDOWNS
            if not slow and self._held_down_s("thermal") > hot:
                slow = frozenset({"thermal"})  # as did this
            if not slow or self._stays:
                break
            self.discarded += len(samples)
            tries += 1
            if tries == IN_A_ROW:
                self._stays = slow
            self._wait(pause)
            pause = min(2 * pause, WAIT_S[1])
        self._batches += 1
        self._capped += POWER_CAP in reasons
        if not isinstance(mhz, Absent):
            self._mhz.append(mhz)
        return samples

    def clocks(self) -> dict[str, float]:
        """Of its processors, right after each batch that was kept."""
        if not self._mhz:
            return {}
        return {"sm_mhz": float(median(self._mhz)), "sm_mhz_min": float(min(self._mhz))}

    def flags(self) -> list[str]:
        """Slow-downs that stayed, and the power cap."""
        found = []
        if self._stays:
            why = ", ".join(sorted(self._stays))
            found.append(
                f"slowed down all the time ({why}): {self.discarded} samples were thrown "
                "away, then the rest kept"
            )
        if self._capped:
            limit = self._board.power_limit_w()
            least = "" if isinstance(limit, Absent) else f" of {limit:.0f} W"
            found.append(
                f"power-capped: in {self._capped} of {self._batches} batches the clocks "
                f"were held down to keep to the limit{least}"
            )
        if self._blind:
            found.append(f"slow-downs were not watched for: {self._blind}")
        return found

    def _reasons(self) -> frozenset[str]:
        found = self._board.reasons()
        if isinstance(found, Absent):
            self._blind = found.reason
            return frozenset()
        return found

    def _held_down_s(self, policy: str) -> float:
        found = self._board.held_down_s(policy)
        return 0.0 if isinstance(found, Absent) else found


def health_for(device: str) -> Health:
    """A watcher for one measurement on a device."""
    if device == "cpu":
        return Unwatched()
    board = gpu.board(cuda_gpu(device).uuid)
    return Unwatched(board.reason) if isinstance(board, Absent) else Watched(board)


class Processor:
    """What this process and thread got of the processor since this was made."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._waits = perf_counter(), process_time(), _waits()

    def flags(self, calls: int, threads: int) -> list[str]:
        """Whether others took it, or the calls let it go themselves.

        A thread that sleeps or waits gives the processor back of its own will, and the system
        counts how often. Several threads wait honestly for one another: then it tells nothing.
        """
        wall = max(perf_counter() - self._wall, 1e-9)
        share = (process_time() - self._cpu) / wall
        if share >= CONTENDED:
            return []
        if threads == 1 and _waits() - self._waits >= calls:
            return [
                f"it waited: {1 - share:.0%} of each call without the processor, of its own will"
            ]
        return [f"contended: {share:.0%} of a processor"]


def _waits() -> int:
    """How often this thread has given the processor back of its own will."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


LEAST = 7
"""Samples in any case: the fewest whose range holds the median 98 times in 100."""
ENOUGH = 20
MOST = 400
NARROW = 0.01
"""Converged: the interval of the median is within this of it on either side."""
PLATEAU = 64
"""Noise that did not change over so many samples will not get better."""


def warm_up(timed: Timed, clock: Clock, budget_s: float) -> tuple[float, list[str]]:
    """Call until the second half is as fast as the first, or the budget is spent."""
    taken: list[float] = []
    start = perf_counter()
    while True:
        taken += clock.samples(timed.before, timed.run, 2)
        half = len(taken) // 2
        first, second = (torch.tensor(x).median().item() for x in (taken[:half], taken[half:]))
        steady = len(taken) >= 4 and abs(first - second) <= 0.05 * second
        spent = perf_counter() - start
        if steady and spent >= budget_s / 4:
            return spent, []
        if spent >= budget_s:
            return spent, [] if steady or len(taken) < 8 else ["not steady"]


def measure_time(
    timed: Timed, clock: Clock, budget_s: float, flags: list[str], *, health: Health | None = None
) -> Time:
    """Samples until converged, on a plateau, or at the budget (after seven at the least).

    ``health`` watches the device meanwhile, and throws away what was taken while it was slow.
    """
    health = health or Unwatched()
    samples: list[float] = []
    start, processor = perf_counter(), Processor()
    stop = ""
    while not stop:
        count = _batch(clock, samples, perf_counter() - start, budget_s)
        samples += health.take(partial(clock.samples, timed.before, timed.run, count))
        stop = _why_stop(samples, perf_counter() - start, budget_s)
    timed.settle()
    flags = [*flags, *getattr(clock, "flags", ()), *health.flags(), *_drift(samples)]
    if clock.name == "host":
        flags += processor.flags(len(samples), torch.get_num_threads())
    s = summary(samples)
    return Time(
        median_s=s.median,
        low_s=s.low,
        high_s=s.high,
        q25_s=s.q25,
        q75_s=s.q75,
        min_s=s.least,
        n=len(samples),
        clock=clock.name,
        stop=stop,
        samples_s=samples,
        discarded=health.discarded,
        clocks=health.clocks(),
        flags=flags,
    )


def _batch(clock: Clock, samples: list[float], spent_s: float, budget_s: float) -> int:
    """How many samples to take before looking again."""
    most: int = getattr(clock, "batch", 1)
    if most == 1:
        return 1 if len(samples) < ENOUGH else 5
    if not samples:  # nobody knows yet how long one takes
        return 1
    fits = (budget_s - spent_s) / (spent_s / len(samples) + 1e-9)
    return max(1, min(most, int(fits)))


def _why_stop(samples: list[float], spent_s: float, budget_s: float) -> str:
    n = len(samples)
    if n < LEAST:
        return ""
    last = spent_s >= budget_s or n >= MOST
    if n >= ENOUGH and (last or spent_s >= budget_s / 2):
        low, high = median_interval(samples)
        middle = summary(samples).median
        if high - middle <= NARROW * middle and middle - low <= NARROW * middle:
            return "converged"
        noise = _noise(samples)
        if n >= 2 * PLATEAU and abs(noise - _noise(samples[:-PLATEAU])) < 0.05 * noise:
            return "plateau"
    return "budget" if last else ""


def _noise(samples: list[float]) -> float:
    s = summary(samples)
    return (s.q75 - s.q25) / s.median


def _drift(samples: list[float]) -> list[str]:
    """Whether the last third is not the first, by more than both intervals allow."""
    third = len(samples) // 3
    if third < LEAST:
        return []
    first, last = summary(samples[:third]), summary(samples[-third:])
    apart = last.low > first.high or last.high < first.low
    change = last.median / first.median - 1
    if not apart or abs(change) <= NARROW:
        return []
    return [f"drifting: the last third of the samples took {change:+.1%} against the first"]
