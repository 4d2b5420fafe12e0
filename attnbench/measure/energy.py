"""Energy: joules a call, from a counter that the device keeps itself.

A counter moves in steps, of 20 to 100 ms on a GPU. So calls are made one after another for two
seconds and more, and counted from a step to a step; what the device draws when idle, measured once
before, is then taken off. Fresh values come ten times a second, not with each call: putting them
there would be counted as the variant's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from attnbench.measure.counters import Counter, counter_for
from attnbench.record import Energy
from impls.problem import Problem

__all__ = ["Counter", "Host", "counter_for", "measure_energy"]

IDLE_S, MOST_LOOKS, STILL = 1.0, 8, 0.03
"""Of a look at the idle draw, how many there may be, and by what share two that agree differ."""
SETTLE_S = 0.5
"""Left alone so long before its idle draw is believed."""
POLL_S = 1e-3
UPDATES = 50
"""Steps of the counter that a measurement is made of, at the least."""
ROUND_S = 5e-3
"""Calls between two looks at the counter."""
FRESH_S = 0.1
WATTS_S = 0.05
PATIENCE_S = 2.0
"""A counter that did not move for so long does not move."""
DISAGREE = 0.1
STOOD_STILL = "the energy counter did not move in {:.1f} s"
NOT_ALONE = (
    "a backward pass can't be repeated without the forward pass before it, and the counter can't "
    "tell the two apart: take the phases forward and train"
)

Step = Callable[[], object]


@dataclass(frozen=True)
class Host:
    """Time, so that a test can make its own."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], object] = time.sleep


@dataclass(frozen=True)
class Idle:
    """A device with nothing to do."""

    watts: float
    step_s: float
    """From one step of its counter to the next."""


_idle: dict[str, Idle] = {}
"""By the counter's key: measured once in a process."""


class _Stuck(Exception):
    """No figure can be had; the message says why."""


def measure_energy(problem: Problem, run: Step, before: Step, counter: Counter,
                   budget_s: float = 2.0, host: Host | None = None) -> Energy:  # fmt: skip
    """Joules of a call, or why they can't be had."""
    if problem.phase == "backward":
        return Energy(why=NOT_ALONE)
    host = host or Host()
    try:
        idle = _idle.get(counter.key) or _idle.setdefault(counter.key, _idle_of(counter, host))
        load = _Load(run, before, counter, host)
        load.warm_up()
        first, last = load.between_steps(max(budget_s, UPDATES * idle.step_s))
    except (_Stuck, OSError) as error:
        return Energy(why=str(error), method=counter.method)
    took, calls = last.at - first.at, last.calls - first.calls
    drawn = last.joules - first.joules
    found = Energy(
        joules=(drawn - idle.watts * took) / calls, gross_joules=drawn / calls,
        idle_w=idle.watts, calls=calls, call_s=took / calls, method=counter.method,
        flags=_disagreement(load.watts, took, drawn),
    )  # fmt: skip
    assert found.joules is not None
    if found.joules <= 0:
        return replace(found, flags=[*found.flags, "the device drew no more than when idle"])
    return replace(found, tokens_per_joule=problem.batch * problem.q_len / found.joules)


def _disagreement(watts: list[float], took: float, drawn: float) -> list[str]:
    """Power by time is a second opinion; where it is another, one of the two is off."""
    if not watts:
        return []
    other = sum(watts) / len(watts) * took
    if abs(other - drawn) <= DISAGREE * drawn:
        return []
    return [f"power by time makes {other:.3g} J of what the counter says is {drawn:.3g} J"]


def _idle_of(counter: Counter, host: Host) -> Idle:
    """What it draws once two looks in a row agree: clocks go on falling for seconds after work."""
    counter.wait()
    host.sleep(SETTLE_S)
    found = _look(counter, host)
    for _ in range(MOST_LOOKS - 1):
        before, found = found, _look(counter, host)
        if abs(found.watts - before.watts) <= STILL * before.watts:
            break
    return found


def _look(counter: Counter, host: Host) -> Idle:
    """Watch the counter move while nothing is done."""
    steps: list[tuple[float, float]] = []
    start, last = host.now(), counter.joules()
    while host.now() - start < IDLE_S or len(steps) < 2:
        host.sleep(POLL_S)
        if (now := counter.joules()) != last:
            steps.append((host.now(), now))
            last = now
        elif host.now() - start > IDLE_S + PATIENCE_S:
            raise _Stuck(STOOD_STILL.format(host.now() - start))
    (began, low), (ended, high) = steps[0], steps[-1]
    return Idle((high - low) / (ended - began), (ended - began) / (len(steps) - 1))


@dataclass(frozen=True)
class _Mark:
    """A step of the counter, and how many calls had been made by then."""

    at: float
    joules: float
    calls: int


class _Load:
    """Calls one after another, in rounds."""

    def __init__(self, run: Step, before: Step, counter: Counter, host: Host) -> None:
        self._run, self._before, self._counter, self._host = run, before, counter, host
        self._calls, self._each = 0, 1
        self.watts: list[float] = []
        self._asked = self._fresh = host.now() - FRESH_S

    def warm_up(self) -> None:
        """The load as it will be, until the device draws what it will draw."""
        start = self._host.now()
        while (spent := self._host.now() - start) < self._counter.warm_s or not self._calls:
            self._round()
            took = self._host.now() - start - spent
            if took < ROUND_S / 2:
                self._each *= 2
        self.watts.clear()

    def between_steps(self, least_s: float) -> tuple[_Mark, _Mark]:
        """From a step of the counter to the first one after so many seconds."""
        first = self._next_step()
        last = first
        while last.at - first.at < least_s:
            last = self._next_step()
        return first, last

    def _next_step(self) -> _Mark:
        """Load until the counter moves."""
        start, was = self._host.now(), self._counter.joules()
        while True:
            self._round()
            now, joules = self._host.now(), self._counter.joules()
            if joules != was:
                return _Mark(now, joules, self._calls)
            if now - start > PATIENCE_S:
                raise _Stuck(STOOD_STILL.format(now - start))

    def _round(self) -> None:
        if self._host.now() - self._fresh >= FRESH_S:
            self._fresh = self._host.now()
            self._before()
        for _ in range(self._each):
            self._run()
        if self._host.now() - self._asked >= WATTS_S:  # while it works, not after
            self._asked = self._host.now()
            if (watts := self._counter.watts()) is not None:
                self.watts.append(watts)
        self._counter.wait()
        self._calls += self._each
