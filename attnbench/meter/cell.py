"""One cell: gate, then meters, then one record. Whatever goes wrong ends in a status."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from attnbench.core.device import device_for
from attnbench.core.format import duration
from attnbench.core.record import TOO_FAST, Energy, Record, Status, Time, Work, least_time
from attnbench.core.wire import Job
from attnbench.gate import hygiene, watch
from attnbench.gate.findings import Wrong
from attnbench.gate.gate import gate
from attnbench.gate.inputs import Attend, Call, make
from attnbench.gate.other_inputs import OtherInputs
from attnbench.gate.reference import Defines, Judged, judge
from attnbench.meter import clocks
from attnbench.meter.audit import (
    Audit,
    audit_device,
    audit_host,
    check_remembers_nothing,
    chosen,
    unattested,
)
from attnbench.meter.clocks import Clock, EventClock
from attnbench.meter.determinism import try_determinism
from attnbench.meter.endings import NOTE, Implausible, NotReady, refused
from attnbench.meter.energy import counter_for, measure_energy
from attnbench.meter.memory import check_room, growth, observe
from attnbench.meter.parts import time_parts
from attnbench.meter.ranks import (
    RanksClock,
    Together,
    attend_of,
    define_of,
    note_of,
    team_for,
)
from attnbench.meter.timed import Timed, unlike
from attnbench.meter.timer import (
    Ready,
    TimeSpent,
    health_for,
    measure_time,
    prepare,
    warm_up,
)
from impls.cost import Cost
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Unsupported, Variant

CALLS = 3
NOT_ONE = "several processes share a call, and a counter would count what deals out shares too"
NOT_ALONE = (
    "a backward pass can't be repeated without the forward pass before it, and the counter can't "
    "tell the two apart: take the phases forward and train"
)
MORE, MORE_S, SURE = 2.0, 5e-4, 3
"""How much longer a call may take while it is audited, and how often in a row it takes longer
before its time is called false. After a wait a short call finds everything cold."""


def metered(ready: Ready, record: Record, spent: TimeSpent) -> Record:
    """The record with everything that was measured; raises :class:`Wrong` or :class:`Implausible`
    where the variant is wrong or the time can't be true.
    """
    job, clock, problem, verdict = ready.job, ready.clock(), ready.job.problem, ready.verdict
    ranks = clock.ranks if isinstance(clock, RanksClock) else None
    device = device_for(problem.device)
    with spent.on("warmup"):
        timed, rise = ready.timed(), None
        prepare(clock, timed)
        if not device.queued and ranks is None:
            timed.before()
            rise = growth(timed.run, device)  # of the first call that is like those to be timed
            timed.settle()
    with spent.on("memory"):
        expected = ready.cost.peak_bytes if ready.cost else None
        if ranks is not None:
            view = ranks.observe(*ready.values, expected)
        else:
            view = observe(problem, ready.attend, *ready.values, expected, rise)
        if (changed := unlike(problem, view.results, verdict.truth, verdict.zero)) is not None:
            raise Wrong(f"while its memory was observed {changed}")
        if (why := unattested(job.variant, problem.device, view.ran)) is not None:
            raise Wrong(why)
    with spent.on("warmup"):
        _, flags = warm_up(timed, clock, job.budget_s / 2)
    time = _confirmed(ready, timed, clock, flags, spent)
    with spent.on("audit"):
        least = _check_not_too_fast(ready, time)
        watch.check(ready.shared)
    with spent.on("parts"):
        parts = time_parts(ready, job.budget_s / 2)
    backend = chosen(job.variant, problem.device, view.ran)
    record = record.with_(
        time=time,
        parts=parts,
        memory=view.memory,
        kernels=view.kernels,
        setup_s=spent.seconds["setup"] + max(0.0, ready.first_s - time.median_s),
        share_of_ceiling=None if least is None else least / time.median_s,
        ranks=clock.did(time) if isinstance(clock, RanksClock) else None,
        note="; ".join(filter(None, [record.note, backend])),
    )
    if isinstance(clock, EventClock) and job.budget_s >= SUSTAINED_FROM_S:
        with spent.on("sustained"):
            record = record.with_(time=_sustained(ready, timed, clock, time))
    if job.energy:
        with spent.on("energy"):
            record = record.with_(energy=_energy(problem, timed, clock))
    return record


SUSTAINED_FROM_S = 0.3
"""Calls are timed back to back too, for a second, where a timing has so long; a visit of minutes
asks for less."""


def _sustained(ready: Ready, timed: Timed, clock: EventClock, time: Time) -> Time:
    """The time with that of a call among others, and its share of products back to back."""
    job, problem = ready.job, ready.job.problem
    if clock.name == "e2e" or problem.phase == "backward":
        return time
    run = clock.step(timed.run)
    timed.before()
    gpu = device_for(problem.device)
    seconds = clocks.back_to_back(gpu, run, time.median_s, clocks.HOT_S)
    timed.settle()
    _check(timed)
    hot = {**job.ceilings, "flops": job.ceilings.get("hot", {})}
    least = least_time(ready.cost, problem.dtype, hot) if ready.cost else None
    return time.with_(sustained_s=seconds, sustained_share=least and least / seconds)


def _energy(problem: Problem, timed: Timed, clock: Clock) -> Energy:
    if isinstance(clock, RanksClock):
        return Energy(why=NOT_ONE)
    counter = counter_for(problem.device)
    if isinstance(counter, Energy):  # it says why there is none
        return counter
    if problem.phase == "backward":
        return Energy(why=NOT_ALONE)
    run = clock.step(timed.run)
    energy = measure_energy(problem.batch * problem.q_len, run, timed.before, counter)
    timed.settle()
    _check(timed)
    return energy


def _confirmed(
    ready: Ready, timed: Timed, clock: Clock, flags: list[str], spent: TimeSpent
) -> Time:
    """The time, with the audit's; raises where the variant is wrong or the time can't be true.

    Where calls take longer while they are audited than while they were timed, the machine may have
    become slow: then the time is measured again.
    """
    for _ in range(SURE):
        with spent.on("sampling"):
            health = health_for(ready.job.problem.device)
            floor_s = ready.job.ceilings.get("floor_s")
            time = measure_time(
                timed, clock, ready.job.budget_s, flags, health=health, floor_s=floor_s
            )
            watch.check(ready.shared)  # now, when it can't know that the last sample was the last
        with spent.on("audit"):
            audit, slowest = audited(ready, timed, clock, time.median_s, time.low_s)
        flags = list(time.flags)
        if slowest < MORE * time.median_s + MORE_S:
            audit_flags = [*flags, *audit.flags]
            return time.with_(audit_s=audit.seconds, audit_clock=audit.clock, flags=audit_flags)
    raise Implausible(
        f"it took {duration(time.median_s)} while it was timed and {duration(slowest)} while "
        "something else was looked at"
    )


def audited(
    ready: Ready, timed: Timed, clock: Clock, seconds: float, low_s: float | None = None
) -> tuple[Audit, float]:
    """The audit of calls that took so long, and the least that a call took during it.

    ``low_s``: the lower end of that time's interval. Raises Wrong where the variant is wrong,
    Implausible where the time can't be true.
    """
    threads, host = torch.get_num_threads(), not device_for(ready.job.problem.device).queued
    if isinstance(clock, RanksClock):  # nothing of it runs in this process, on any device
        audit, host = audit_ranks(timed, clock.ranks), False
    elif host:
        audit = audit_host(timed, threads)
    else:
        run = clock.step(timed.run)
        audit = audit_device(timed, run, seconds, not clock.flags, low_s)
    _check(timed)
    if audit.implausible is not None:
        raise Implausible(audit.implausible)
    new = check_remembers_nothing(
        timed, clock, ready.values, ready.define, ready.verdict.plain, seconds
    )
    _check(timed)
    return audit, max(audit.least / threads, new) if host else 0.0


def audit_ranks(timed: Timed, together: Together) -> Audit:
    """A few calls from end to end by the worker's clock, and what each rank left changed."""
    walls = []
    for _ in range(CALLS):
        timed.before()
        start = perf_counter()
        result = timed.run()
        walls.append(perf_counter() - start)
        del result
        timed.settle()
    together.check()
    return Audit(median(walls), "e2e")


def _check(timed: Timed) -> None:
    if (changed := timed.wrong()) is not None:
        raise Wrong(changed)


def _check_not_too_fast(ready: Ready, time: Time) -> float | None:
    """The least time by the run's ceilings; raises where new ceilings too rule the time out."""
    problem, cost = ready.job.problem, ready.cost
    # the ceilings are of one device
    devices = ready.attend.team.world if isinstance(ready.attend, Together) else 1
    if cost is None or (whole := least_time(cost, problem.dtype, ready.job.ceilings)) is None:
        return None
    least = whole / devices
    for look in range(LOOKS):
        if time.median_s >= TOO_FAST * least:
            return least
        if look:  # what was measured again may have been measured at a bad moment
            _ceilings_again.cache_clear()
        again = _ceilings_again(problem.device, problem.dtype)
        least = min(least, (least_time(cost, problem.dtype, again) or whole) / devices)
    if time.median_s >= TOO_FAST * least:
        return least
    raise Implausible(
        f"it took {duration(time.median_s)} for what this device can't do in less than "
        f"{duration(least)}, by the product and the copy measured on it"
    )


LOOKS = 2
"""How often ceilings are measured again before a time that they rule out is implausible."""


@cache
def _ceilings_again(device: str, dtype: str) -> dict[str, Any]:
    """Kept for the next time that is as short: of some dtypes a product takes a second."""
    return clocks.measure_ceilings(device, [dtype], of_others=True)


COPIES = 3
"""How many copies of its inputs are held while a call is checked and timed: its own, those of
another set, and those under signs."""


class Bench:
    """Measures cell after cell, keeping what the cells of one problem share."""

    def __init__(self, announce: hygiene.Announce | None = None) -> None:
        """``announce`` gets a sentence for the case that the process dies; without it no call is
        made that risks that.
        """
        self._announce = announce
        self._judged: tuple[tuple[Problem, int], Judged] | None = None
        self._other_inputs = OtherInputs()

    def judged(self, problem: Problem, seed: int) -> Judged:
        """The problem's inputs and truth; made once for all the variants that follow."""
        key = (problem, seed)
        if self._judged is None or self._judged[0] != key:
            self._judged = None  # its memory may be needed
            self._judged = key, judge(problem, make(problem, seed), seed)
        return self._judged[1]

    def measure(self, job: Job, shared: dict[str, Any] | None = None) -> Record:
        """The cell's record, whatever happens short of the process dying.

        ``shared``: what all variants share, if the caller has just recorded it.
        """

        def whole(spent: TimeSpent, blank: Record) -> Record:
            ready, record = self._gated(job, blank, spent, shared)
            with spent.on("gate"):
                watch.check(ready.shared)
                record = record.with_(wrong_on=self._wrong_on(job))
            if job.timed:
                record = metered(ready, record, spent)  # which looks again
            else:
                watch.check(ready.shared)
            if job.bits_s:
                built_s = spent.seconds["setup"] + ready.first_s
                parts = job.problem, job.variant, ready.attend, ready.values
                with spent.on("bits"):
                    tried = try_determinism(*parts, setup_s=built_s, most_s=job.bits_s)
                    record = record.with_(determinism=tried)
            return record

        return self._recorded(job, whole)

    def ready(self, job: Job) -> Ready:
        """A variant that has passed the gate, to be timed; raises :class:`NotReady`."""
        passed: list[Ready] = []
        device_for(job.problem.device).begin()

        def gated(spent: TimeSpent, blank: Record) -> Record:
            ready, record = self._gated(job, blank, spent)
            with spent.on("gate"):
                watch.check(ready.shared)
            passed.append(ready)
            return record

        record = self._recorded(job, gated)
        if not passed:
            raise NotReady(record)
        return passed[0]

    def _recorded(self, job: Job, steps: Callable[[TimeSpent, Record], Record]) -> Record:
        """The record that the steps make of a blank one, or of how they ended."""
        spent, variant = TimeSpent(), job.variant
        now = datetime.now(UTC).isoformat(timespec="seconds")
        blank = Record.of(
            variant, job.problem, Status.FAILED, "nothing was said", seed=job.seed, started=now
        )
        try:
            record = steps(spent, blank)
        except NotReady as stopped:
            record = stopped.record
        except Exception as error:
            record = blank.with_(**refused(error))
        if self._judged and self._judged[0] == (job.problem, job.seed):
            record = record.with_(entropy=self._judged[1].entropy)
        if record.status is Status.OUT_OF_MEMORY:  # the next cell needs the room
            device_for(job.problem.device).release()
        return record.with_(spent_s=spent.closed())

    def _gated(
        self, job: Job, blank: Record, spent: TimeSpent, shared: dict[str, Any] | None = None
    ) -> tuple[Ready, Record]:
        """The variant that has passed the gate, with a record of that; else raises. What it did to
        what variants share is for the caller to look at.
        """
        variant, problem = job.variant, job.problem
        if (refusal := variant.supports(problem)) is not None:
            raise Unsupported(refusal)
        cost: Cost | None = None
        if variant.cost is not None:
            cost = load_function(variant.cost)(problem, **variant.chosen)
        record = blank.with_(cost=Work(flops=cost.flops, bytes=cost.bytes) if cost else None)
        peak = (cost.peak_bytes if cost else None) or 0
        device = device_for(problem.device)
        check_room(peak, device, "it", "above")
        with spent.on("inputs"):
            judged = self.judged(problem, job.seed).of(variant.operator)
        if device.queued:  # room for a call is not room for what is kept to check it
            copies = COPIES * sum(x.nbytes for x in judged.inputs.values())
            check_room(copies + peak, device, "checking it", "with")
        if variant.ranks:
            with spent.on("ranks"):  # starting them is not the variant's setup
                team_for(variant.world, problem.device).load(variant.build)
        else:
            load_function(variant.build)
        before = watch.snapshot() if shared is None else shared
        with spent.on("setup"):
            attend = attend_of(variant, problem)
        if variant.swaps:
            before = watch.allowing(before, variant.swaps)
        if not callable(attend):
            raise TypeError(f"build returned {attend!r}; it must return attend(q, k, v)")
        with spent.on("warmup"):
            first_s = _first_call(problem, attend, judged)
        with spent.on("gate"):
            define = define_of(variant, problem, attend)
            verdict = gate(
                judged,
                attend,
                define,
                job.seed,
                reuses_output=variant.reuses_output,
                one_graph=variant.ranks,
                # ranks have copies of their own, and each checks whether it wrote to them
                announce=None if variant.ranks or device.queued else self._announce,
            )
        record = record.with_(error=verdict.error or None, distance=verdict.distance)
        if verdict.reason is not None:
            watch.check(before)
            raise NotReady(record.with_(status=Status.WRONG, reason=verdict.reason))
        note = "; ".join(filter(None, [record.note, note_of(attend)[:NOTE]]))
        record = record.with_(status=Status.MEASURED, reason="", note=note)
        return Ready(job, attend, define, judged, verdict, cost, first_s, before), record

    def _wrong_on(self, job: Job) -> str:
        """On which other inputs it is wrong. Ranks, and what replaces torch's kernels, can't be
        built beside themselves.
        """
        if job.variant.swaps or job.variant.ranks:
            return ""
        build = partial(_built, job.variant)
        return self._other_inputs.wrong_on(job.variant, job.problem, job.seed, build)[:NOTE]


def _built(variant: Variant, problem: Problem) -> tuple[Attend, Defines | None]:
    """A variant and its own definition, for another problem; raises Unsupported."""
    if (refusal := variant.supports(problem)) is not None:
        raise Unsupported(refusal)
    attend = attend_of(variant, problem)
    return attend, define_of(variant, problem, attend)


def _first_call(problem: Problem, attend: Attend, judged: Judged) -> float:
    call, dout = Call(problem, attend, judged.inputs), judged.dout
    start = perf_counter()
    out = call.forward()
    if dout is not None and getattr(out, "requires_grad", False) and out.shape == dout.shape:
        call.backward(out, dout.to(out.dtype))
    device_for(problem.device).synchronize()
    return perf_counter() - start
