"""One cell: gate, then meters, then one record. Whatever goes wrong ends in a status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import torch

from attnbench.measure import gpu, room
from attnbench.measure.determinism import try_determinism
from attnbench.measure.failure import failure, told
from attnbench.measure.job import Job, Ready, Spent
from attnbench.measure.meters import Implausible, metered
from attnbench.measure.shared import state
from attnbench.measure.team.losses import RankLost
from attnbench.measure.team.made import attend_of, runs_over_ranks
from attnbench.measure.team.team import team_for
from attnbench.record import Record, Status, Work
from attnbench.truth import readonly
from attnbench.truth.call import Attend, Call
from attnbench.truth.findings import Wrong
from attnbench.truth.gate import gate
from attnbench.truth.inputs import Ends, make
from attnbench.truth.reference import Judged, judge
from impls.cost import Cost
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported, Variant

NOTE = 500
"""Characters of what a variant may say of itself."""
COPIES = 3
"""Of its inputs that are held while a call is checked and timed: its own, those of another set, and
those under signs."""
PROTECTED_S = 0.03
"""A first call that takes longer is not made again on write-protected inputs."""


class NotReady(Exception):
    """A variant that did not pass the gate; ``record`` says why."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.reason)
        self.record = record


class Bench:
    """Measures cell after cell, keeping what the cells of one problem share."""

    def __init__(self, announce: readonly.Announce | None = None) -> None:
        """``announce``: told what it means if the process dies; without it nothing risks that."""
        self._announce = announce
        self.shared: dict[str, Any] | None = None
        """What all variants share, where it was taken down before and is still as it was."""
        self._judged: tuple[tuple[Problem, int], Judged] | None = None

    def judged(self, problem: Problem, seed: int) -> Judged:
        """The problem's inputs and truth; made once for all the variants that follow."""
        key = (problem, seed)
        if self._judged is None or self._judged[0] != key:
            self._judged = None
            self._judged = (key, judge(problem, make(problem, seed), seed))
        return self._judged[1]

    def measure(self, job: Job, shared: dict[str, Any] | None = None) -> Record:
        """The cell's record, whatever happens short of the process dying.

        ``shared``: what all variants share, where somebody has just taken it down.
        """

        def whole(spent: Spent, blank: Record) -> Record:
            ready, record = self._gated(job, blank, spent, shared)
            if job.timed:
                record = metered(ready, record, spent)
            return _with_bits(ready, record, spent) if job.bits else record

        return self._recorded(job, whole)

    def ready(self, job: Job) -> Ready:
        """A variant that has passed the gate, to be timed; raises :class:`NotReady`."""
        made: list[Ready] = []
        gpu.begin(job.problem.device)

        def gated(spent: Spent, blank: Record) -> Record:
            ready, record = self._gated(job, blank, spent)
            made.append(ready)
            return record

        record = self._recorded(job, gated)
        if not made:
            raise NotReady(record)
        return made[0]

    def _recorded(self, job: Job, steps: Callable[[Spent, Record], Record]) -> Record:
        """What the steps make of a blank record, or how they ended."""
        spent, variant = Spent(), job.variant
        now = datetime.now(UTC).isoformat(timespec="seconds")
        blank = Record.of(
            variant, job.problem, Status.FAILED, "nothing was said", seed=job.seed, started=now
        )
        try:
            record = steps(spent, blank)
        except NotReady as stopped:
            record = stopped.record
        except Wrong as wrong:
            record = replace(blank, status=Status.WRONG, reason=str(wrong))
        except Implausible as implausible:
            record = replace(blank, status=Status.IMPLAUSIBLE, reason=str(implausible))
        except Unsupported as error:
            record = replace(blank, status=Status.UNSUPPORTED, reason=told(error, NOTE))
        except Unavailable as error:
            record = replace(
                blank, status=Status.UNAVAILABLE, reason=told(error.reason),
                remedy=told(error.remedy) if error.remedy else "",
            )  # fmt: skip
        except RankLost as lost:
            record = replace(blank, **lost.fields)
        except Exception as error:
            record = replace(blank, **failure(error))
        if self._judged and self._judged[0] == (job.problem, job.seed):
            record = replace(record, entropy=self._judged[1].entropy)
        if record.status is Status.OUT_OF_MEMORY:  # the next one shall not meet what it left
            room.let_go(job.problem.device)
        return replace(record, spent_s=spent.closed())

    def _gated(self, job: Job, blank: Record, spent: Spent,
               shared: dict[str, Any] | None = None) -> tuple[Ready, Record]:  # fmt: skip
        """The variant, right as far as the gate can tell, and a record of that."""
        variant, problem = job.variant, job.problem
        if (refusal := variant.supports(problem)) is not None:
            raise Unsupported(refusal)
        cost = _cost(variant, problem)
        record = replace(blank, cost=Work(flops=cost.flops, bytes=cost.bytes) if cost else None)
        if cost is not None and cost.peak_bytes is not None:
            room.insist(cost.peak_bytes, problem.device, "it", "above")
        with spent.on("inputs"):
            judged = self.judged(problem, job.seed)
        _insist_on_copies(problem, judged.inputs, cost)
        if several := runs_over_ranks(variant):
            with spent.on("ranks"):  # what it takes to start them is nobody's setup
                team_for(variant.world, problem.device).load(variant.build)
        else:
            load_function(variant.build)
        before = state.snapshot() if shared is None else shared
        with spent.on("setup"):
            attend = attend_of(variant, problem)
        if swaps := getattr(variant, "swaps", ()):  # rows of an earlier commit do not say
            before = state.allowing(before, swaps)
        if not callable(attend):
            raise TypeError(f"build returned {attend!r}; it must return attend(q, k, v)")
        with spent.on("warmup"):
            first_s = _first_call(problem, attend, judged)
        define = None
        with spent.on("gate"):
            if variant.definition is not None:
                define = load_function(variant.definition)(problem, **variant.chosen)
            reuses = getattr(variant, "reuses_output", False)  # an earlier commit's does not say
            verdict = gate(judged, attend, define, job.seed, reuses_output=reuses,
                           one_graph=several)  # fmt: skip
            state.check(before)
            cheap = first_s <= PROTECTED_S
            # ranks have copies of their own, and each looks whether it wrote to them
            if self._announce is not None and verdict.reason is None and cheap and not several:
                readonly.check_writes_nothing(judged, attend, self._announce)
        record = replace(record, error=verdict.error or None, distance=verdict.distance)
        if verdict.reason is not None:
            raise NotReady(replace(record, status=Status.WRONG, reason=verdict.reason))
        note = getattr(attend, "note", None)
        record = replace(record, note=str(note())[:NOTE] if callable(note) else "")
        ready = Ready(job, attend, define, judged, verdict, cost, first_s, before)
        return ready, replace(record, status=Status.MEASURED, reason="")


def _with_bits(ready: Ready, record: Record, spent: Spent) -> Record:
    job, built_s = ready.job, spent.seconds["setup"] + ready.first_s
    with spent.on("bits"):
        bits = try_determinism(
            job.problem, job.variant, ready.attend, ready.values, setup_s=built_s
        )
    return replace(record, determinism=bits)


def _first_call(problem: Problem, attend: Attend, judged: Judged) -> float:
    call, dout = Call(problem, attend, judged.inputs), judged.dout
    start = perf_counter()
    out = call.forward()
    if dout is not None and getattr(out, "requires_grad", False) and out.shape == dout.shape:
        call.backward(out, dout.to(out.dtype))
    if problem.device != "cpu":
        torch.cuda.synchronize(problem.device)
    return perf_counter() - start


def _insist_on_copies(problem: Problem, inputs: Ends, cost: Cost | None) -> None:
    """Raise where a GPU has room for a call, and not for what is kept to check and time it."""
    if problem.device != "cpu":
        kept = COPIES * sum(x.nbytes for x in inputs)
        peak = cost.peak_bytes if cost else None
        room.insist(kept + (peak or 0), problem.device, "checking it", "with")


def _cost(variant: Variant, problem: Problem) -> Cost | None:
    if variant.cost is None:
        return None
    cost: Cost = load_function(variant.cost)(problem, **variant.chosen)
    return cost
