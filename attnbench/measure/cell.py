"""One cell: gate, then meters, then one record. Whatever goes wrong ends in a status."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from attnbench.measure import ceilings as ceiling
from attnbench.measure.clocks import clock_for
from attnbench.measure.memory import observe
from attnbench.measure.time import measure_time, warm_up
from attnbench.measure.timed import Timed, Values
from attnbench.record import Record, Status, Work
from attnbench.truth.call import Attend, Call
from attnbench.truth.gate import Verdict, gate
from attnbench.truth.inputs import make
from attnbench.truth.reference import Judged, judge
from impls.cost import Cost
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported, Variant

RULER = {Path(__file__).resolve().parents[1]}
NOTE = 500
"""Characters of what a variant may say of itself."""
FREE_SHARE = 0.9
"""Of the free memory, how much a call may be expected to take."""


@dataclass(frozen=True)
class Job:
    """What a worker is asked to measure."""

    variant: Variant
    problem: Problem
    seed: int = 0
    budget_s: float = 0.3
    timed: bool = True
    """False: only the gate, and a record without a time."""
    ceilings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """To send over a pipe."""
        return {
            "variant": self.variant.to_dict(), "problem": self.problem.to_dict(),
            "seed": self.seed, "budget_s": self.budget_s, "timed": self.timed,
            "ceilings": dict(self.ceilings),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> Job:
        """As it was sent."""
        variant, problem = Variant.from_dict(sent["variant"]), Problem.from_dict(sent["problem"])
        return cls(**{**sent, "variant": variant, "problem": problem})


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


class Bench:
    """Measures cell after cell, keeping what the cells of one problem share."""

    def __init__(self) -> None:
        self._judged: tuple[tuple[Problem, int], Judged] | None = None

    def judged(self, problem: Problem, seed: int) -> Judged:
        """The problem's inputs and truth; made once for all the variants that follow."""
        key = (problem, seed)
        if self._judged is None or self._judged[0] != key:
            self._judged = None
            self._judged = (key, judge(problem, make(problem, seed), seed))
        return self._judged[1]

    def measure(self, job: Job) -> Record:
        """The cell's record, whatever happens short of the process dying."""
        spent, variant = Spent(), job.variant
        now = datetime.now(UTC).isoformat(timespec="seconds")
        blank = Record.of(
            variant, job.problem, Status.FAILED, "nothing was said", seed=job.seed, started=now
        )
        try:
            if (refusal := variant.supports(job.problem)) is not None:
                raise Unsupported(refusal)
            cost = _cost(variant, job.problem)
            blank = replace(blank, cost=Work(flops=cost.flops, bytes=cost.bytes) if cost else None)
            record = self._measured(job, blank, spent, cost)
        except Unsupported as error:
            record = replace(blank, status=Status.UNSUPPORTED, reason=str(error))
        except Unavailable as error:
            record = replace(
                blank, status=Status.UNAVAILABLE, reason=error.reason, remedy=error.remedy
            )
        except Exception as error:
            record = replace(blank, **_failure(error))
        if self._judged and self._judged[0] == (job.problem, job.seed):
            record = replace(record, entropy=self._judged[1].entropy)
        return replace(record, spent_s=spent.closed())

    def _measured(self, job: Job, record: Record, spent: Spent, cost: Cost | None) -> Record:
        variant, problem = job.variant, job.problem
        _refuse_what_cannot_fit(problem, cost)
        with spent.on("inputs"):
            judged = self.judged(problem, job.seed)
        build = load_function(variant.build)
        with spent.on("setup"):
            attend: Attend = build(problem, **variant.chosen)
        if not callable(attend):
            raise TypeError(f"build returned {attend!r}; it must return attend(q, k, v)")
        with spent.on("warmup"):
            first_s = _first_call(problem, attend, judged)
        with spent.on("gate"):
            define = None
            if variant.definition is not None:
                define = load_function(variant.definition)(problem, **variant.chosen)
            verdict = gate(judged, attend, define, job.seed)
        record = replace(record, error=verdict.error or None, distance=verdict.distance)
        if verdict.reason is not None:
            return replace(record, status=Status.WRONG, reason=verdict.reason)
        note = getattr(attend, "note", None)
        record = replace(record, note=str(note())[:NOTE] if callable(note) else "")
        if not job.timed:
            return replace(record, status=Status.MEASURED, reason="")
        return _metered(job, record, spent, attend, judged, verdict, cost, first_s)


def _metered(
    job: Job, record: Record, spent: Spent, attend: Attend, judged: Judged, verdict: Verdict,
    cost: Cost | None, first_s: float,
) -> Record:  # fmt: skip
    """Memory and time of a variant that passed the gate."""
    problem, values = job.problem, Values(judged.inputs, judged.dout)
    with spent.on("memory"):
        expected = cost.peak_bytes if cost else None
        seen = observe(problem, attend, values.inputs, values.dout, expected)
    clock = clock_for(problem.device, problem.phase)
    signs = job.variant.exact and problem.level == "core"
    timed = Timed(
        problem, attend, values, verdict.truth, exact=signs,
        second=verdict.second, zero=verdict.zero,
    )  # fmt: skip
    with spent.on("warmup"):
        _, flags = warm_up(timed, clock, job.budget_s / 2)
    with spent.on("sampling"):
        time = measure_time(timed, clock, job.budget_s, flags)
    if (changed := timed.wrong()) is not None:
        return replace(record, status=Status.WRONG, reason=changed)
    least = ceiling.least_time(cost, problem.dtype, job.ceilings) if cost else None
    return replace(
        record, status=Status.MEASURED, reason="", time=time, memory=seen.memory,
        kernels=seen.kernels, setup_s=spent.seconds["setup"] + max(0.0, first_s - time.median_s),
        share_of_ceiling=None if least is None else least / time.median_s,
    )  # fmt: skip


def _first_call(problem: Problem, attend: Attend, judged: Judged) -> float:
    call, dout = Call(problem, attend, judged.inputs), judged.dout
    start = perf_counter()
    out = call.forward()
    if dout is not None and getattr(out, "requires_grad", False) and out.shape == dout.shape:
        call.backward(out, dout.to(out.dtype))
    if problem.device != "cpu":
        torch.cuda.synchronize(problem.device)
    return perf_counter() - start


def _cost(variant: Variant, problem: Problem) -> Cost | None:
    if variant.cost is None:
        return None
    cost: Cost = load_function(variant.cost)(problem, **variant.chosen)
    return cost


def _refuse_what_cannot_fit(problem: Problem, cost: Cost | None) -> None:
    if cost is None or cost.peak_bytes is None:
        return
    free = _free_bytes(problem.device)
    if cost.peak_bytes > FREE_SHARE * free:
        raise MemoryError(
            f"predicted, not run: it needs {cost.peak_bytes / 2**30:.1f} GiB above its inputs "
            f"and {free / 2**30:.1f} GiB are free"
        )


def _free_bytes(device: str) -> int:
    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[0])
    with Path("/proc/meminfo").open() as lines:
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))


def _failure(error: Exception) -> dict[str, Any]:
    """The fields of a record that ended in an exception."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    text = said[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return {
            "status": Status.OUT_OF_MEMORY, "reason": text,
            "remedy": "shorten the sequence, lower the batch, or free memory",
        }  # fmt: skip
    trace = "".join(traceback.format_exception(error))[-4000:]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not RULER.intersection(Path(f.filename).parents)]
    place = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return {
        "status": Status.FAILED, "reason": f"it raised {type(error).__name__}{place}: {text}",
        "detail": trace,
    }  # fmt: skip
