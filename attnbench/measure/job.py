"""What a cell is asked for, what stands ready once the gate is passed, and where its time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from attnbench.measure.clocks import Clock, clock_for
from attnbench.measure.gpu_clocks import GraphClock
from attnbench.measure.team.together import Together
from attnbench.measure.timed import Timed, Values
from attnbench.truth.call import Attend, Call
from attnbench.truth.differentiate import Defines
from attnbench.truth.gate import Verdict
from attnbench.truth.reference import Judged
from impls.cost import Cost
from impls.problem import Problem
from impls.spec import Variant


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
            "variant": self.variant.to_dict(), "problem": self.problem.to_dict(),
            "seed": self.seed, "budget_s": self.budget_s, "timed": self.timed,
            "bits": self.bits, "energy": self.energy, "ceilings": dict(self.ceilings),
        }  # fmt: skip

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
    verdict: Verdict
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
            problem, self.attend, self.values, verdict.truth,
            exact=self.job.variant.exact and problem.level == "core",
            second=verdict.second, zero=verdict.zero,
        )  # fmt: skip
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


class Spent:
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
