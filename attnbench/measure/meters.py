"""Memory, time, the audit of both, and what else is asked, of a variant that passed the gate."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnbench.measure import ceilings as ceiling
from attnbench.measure.attest import chosen, unattested
from attnbench.measure.audit import Audit, audit_device, audit_host
from attnbench.measure.clocks import Clock
from attnbench.measure.energy import counter_for, measure_energy
from attnbench.measure.gpu_clocks import EventClock, GraphClock
from attnbench.measure.health import health_for
from attnbench.measure.job import Job, Ready, Spent, prepare
from attnbench.measure.memory import Observed, growth, observe
from attnbench.measure.shared import state
from attnbench.measure.team.clock import RanksClock
from attnbench.measure.team.meters import NOT_ONE, audit_ranks, ranks_of
from attnbench.measure.team.together import Together
from attnbench.measure.time import measure_time, warm_up
from attnbench.measure.timed import Timed, unlike
from attnbench.measure.unseen import check_remembers_nothing
from attnbench.record import TOO_FAST, Energy, Record, Time, least_time
from attnbench.truth.findings import Wrong
from impls.problem import Problem

MORE, MORE_S, SURE = 2.0, 5e-4, 3
"""What a call may take more, when something else than its time is looked at; so often in a row it
is more before the time is called false. After a wait a short call finds everything cold."""


class Implausible(Exception):
    """A number that can't be true. The message is a sentence with the evidence."""


def metered(ready: Ready, record: Record, spent: Spent) -> Record:
    """The record with everything that was measured."""
    job, problem, clock = ready.job, ready.job.problem, ready.clock()
    with spent.on("warmup"):
        timed = ready.timed()
        prepare(clock, timed)
        in_here = problem.device == "cpu" and not isinstance(ready.attend, Together)
        grown = _growth(timed) if in_here else None
    with spent.on("memory"):
        seen = _observed(ready, grown)
        if isinstance(clock, EventClock):
            clock.expect(1 if clock.name == "graph" else seen.launches)
    with spent.on("warmup"):
        _, flags = warm_up(timed, clock, job.budget_s / 2)
    with spent.on("sampling"):
        time = _measured(ready, timed, clock, flags)
    with spent.on("audit"):
        time = _audited(ready, timed, clock, time)
        _refuse_too_fast(ready, time)
        state.check(ready.shared)
        ranks = ranks_of(ready.attend, clock, time)
    once = spent.seconds["setup"] + max(0.0, ready.first_s - time.median_s)
    record = replace(
        record, time=time, memory=seen.memory, kernels=seen.kernels, setup_s=once,
        share_of_ceiling=_share(ready, time), ranks=ranks, note=_noted(record.note, ready, seen),
    )  # fmt: skip
    if not job.energy:
        return record
    with spent.on("energy"):
        if ranks is not None:
            return replace(record, energy=Energy(why=NOT_ONE))
        return replace(record, energy=_energy(problem, timed, clock))


def _growth(timed: Timed) -> int:
    """By how much the process grew in the first call that is like those to be timed."""
    timed.before()
    grown = growth(timed.run)
    timed.settle()
    return grown


def _observed(ready: Ready, grown: int | None) -> Observed:
    problem, verdict, values = ready.job.problem, ready.verdict, ready.values
    expected = ready.cost.peak_bytes if ready.cost else None
    if isinstance(ready.attend, Together):
        seen = ready.attend.observe(values.inputs, values.dout, expected)
    else:
        seen = observe(problem, ready.attend, values.inputs, values.dout, expected, grown)
    if (changed := unlike(problem, seen.results, verdict.truth, verdict.zero)) is not None:
        raise Wrong(f"while its memory was observed {changed}")
    if (why := unattested(ready.job.variant, problem.device, seen.ran)) is not None:
        raise Wrong(why)
    return seen


def _noted(note: str, ready: Ready, seen: Observed) -> str:
    backend = chosen(ready.job.variant, ready.job.problem.device, seen.ran)
    return "; ".join(filter(None, [note, backend]))


def _energy(problem: Problem, timed: Timed, clock: Clock) -> Energy:
    counter = counter_for(problem.device)
    if isinstance(counter, Energy):  # it says why there is none
        return counter
    run = clock.step(timed.run) if isinstance(clock, GraphClock) else timed.run
    energy = measure_energy(problem, run, timed.before, counter)
    timed.settle()
    _refuse(timed)
    return energy


def _measured(ready: Ready, timed: Timed, clock: Clock, flags: list[str]) -> Time:
    health = health_for(ready.job.problem.device)
    time = measure_time(timed, clock, ready.job.budget_s, flags, health=health)
    state.check(ready.shared)  # now, when nobody could know that the last sample was the last
    return time


def _audited(ready: Ready, timed: Timed, clock: Clock, time: Time) -> Time:
    """The time with what the second clock says; raises where it is wrong or can't be true.

    Where calls that are looked at take longer than those that were timed, the machine may have
    become slow: then the time is measured again.
    """
    for _ in range(SURE):
        audit, slowest = audited(ready, timed, clock, time.median_s)
        if slowest < MORE * time.median_s + MORE_S:
            return _with(time, audit)
        timed_s, time = time.median_s, _measured(ready, timed, clock, list(time.flags))
    raise Implausible(
        f"it took {timed_s * 1e3:.3g} ms while it was timed and {slowest * 1e3:.3g} ms while "
        "something else was looked at"
    )


def audited(ready: Ready, timed: Timed, clock: Clock, seconds: float) -> tuple[Audit, float]:
    """What the second clock says of calls that took so long, and what a call took meanwhile, at
    the least, in either look. Raises where it is wrong or can't be true.
    """
    threads, host = torch.get_num_threads(), ready.job.problem.device == "cpu"
    if isinstance(clock, RanksClock):  # nothing of it runs in here, on whatever device
        audit, host = audit_ranks(timed, clock.ranks), False
    else:
        audit = audit_host(timed, threads) if host else audit_device(timed, seconds)
    _refuse(timed)
    if audit.implausible is not None:
        raise Implausible(audit.implausible)
    new = check_remembers_nothing(
        timed, clock, ready.values, ready.define, ready.verdict.plain, seconds
    )
    _refuse(timed)
    return audit, max(audit.least / threads, new) if host else 0.0


def _with(time: Time, audit: Audit) -> Time:
    flags = [*time.flags, *audit.flags]
    return replace(time, audit_s=audit.seconds, audit_clock=audit.clock, flags=flags)


def _refuse(timed: Timed) -> None:
    if (changed := timed.wrong()) is not None:
        raise Wrong(changed)


def _share(ready: Ready, time: Time) -> float | None:
    least = _least(ready.job, ready)
    return None if least is None else least / time.median_s


def _least(job: Job, ready: Ready) -> float | None:
    if ready.cost is None:
        return None
    least = least_time(ready.cost, job.problem.dtype, job.ceilings)
    return None if least is None else least / _devices(ready)


def _devices(ready: Ready) -> int:
    """Over how many a call is spread: the ceilings are of one."""
    return ready.attend.team.world if isinstance(ready.attend, Together) else 1


def _refuse_too_fast(ready: Ready, time: Time) -> None:
    """Raise where the work can't be done in the time: ceilings are measured again first."""
    job = ready.job
    least = _least(job, ready)
    if least is None or time.median_s >= TOO_FAST * least:
        return
    again = ceiling.measure(job.problem.device, [job.problem.dtype])
    assert ready.cost is not None
    anew = least_time(ready.cost, job.problem.dtype, again)
    least = min(least, anew / _devices(ready)) if anew else least
    if time.median_s < TOO_FAST * least:
        raise Implausible(
            f"it took {time.median_s * 1e3:.3g} ms for what this device can't do in less than "
            f"{least * 1e3:.3g} ms, by the product and the copy measured on it"
        )
