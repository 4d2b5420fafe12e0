"""Joules: the device's counters, and a loop long enough for them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep

from attnbench.core import format
from attnbench.core.device import Step, device_for
from attnbench.core.gpu import Absent, Board
from attnbench.core.record import Energy

NONE = "a processor's energy is not measured: on Linux its counter is for root alone"
METHOD = "nvml counter: the whole board"
"""For the record: the counter and what it covers."""


class Counter:
    """A board's own counter: its processor, its memory and all else that it feeds."""

    def __init__(self, board: Board, wait: Callable[[], None]) -> None:
        self._board, self.wait = board, wait
        self.key = board.uuid  # the idle draw is measured once for each

    def joules(self) -> float:
        """Since the driver was loaded; raises OSError where the reading fails."""
        joules = self._board.energy_j()
        if isinstance(joules, Absent):
            raise OSError(joules.reason)
        return joules


def counter_for(device: str) -> Counter | Energy:
    """The counter of a device that counts this process alone; else an :class:`Energy` that says why
    there is none.
    """
    here = device_for(device)
    board = here.board()
    if not isinstance(board, Board):
        return Energy(why=NONE if board is None else board.reason)
    others, energy = board.other_processes(), board.energy_j()
    if board.mig() is True:
        return Energy(
            why="the GPU is cut into instances (MIG), and its counter knows only the whole"
        )
    if isinstance(others, int) and others:
        them = "1 other process computes" if others == 1 else f"{others} other processes compute"
        return Energy(why=f"{them} on the GPU, and its counter can't tell them apart")
    if isinstance(energy, Absent):
        return Energy(why=energy.reason)
    return Counter(board, here.synchronize)


WARM_S = 1.0  # how long a load must have run before its draw stays the same
IDLE_S = 1.0  # of a look at the idle draw
SETTLE_S = 4.0  # how long a device is left alone before that: clocks go on falling after work
POLL_S = 1e-3
UPDATES = 15  # steps of the counter in a measurement, at the least
ROUND_S, FRESH_S = 5e-3, 0.1
"""Of calls before the device is waited for, and of fresh values."""
READING = 0.2
"""The share of a round that a reading of the counter may take, where its next step is waited for:
the device is idle meanwhile."""
PATIENCE_S = 2.0  # a counter that did not move for so long does not move
STOOD_STILL = "the energy counter did not move in {}"


_idle: dict[str, tuple[float, float]] = {}
"""Watts of an idle device and seconds of a counter's step, by its key; measured once a process."""


def measure_energy(
    tokens: int, run: Step, before: Step, counter: Counter, budget_s: float = 1.5
) -> Energy:
    """Joules of a call that computes so many tokens, or why they can't be had.

    The counter is read at both ends alone: a GPU's takes milliseconds, and moves a few times a
    second.
    """
    try:
        if counter.key not in _idle:
            counter.wait()
            sleep(SETTLE_S)
            _idle[counter.key] = _look(counter)
        idle_w, step_s = _idle[counter.key]
        load = _Load(run, before, counter)
        first = load.next_step()
        load.go_on(max(budget_s, UPDATES * step_s) - step_s)
        last = load.next_step()
    except OSError as error:
        return Energy(why=str(error), method=METHOD)
    took, total, calls = (end - start for start, end in zip(first, last, strict=True))
    joules = (total - idle_w * took) / calls
    flags = [] if joules > 0 else ["the device drew no more than when idle"]
    return Energy(
        joules=joules,
        gross_joules=total / calls,
        tokens_per_joule=tokens / joules if joules > 0 else None,
        idle_w=idle_w,
        calls=int(calls),
        call_s=took / calls,
        method=METHOD,
        flags=flags,
    )


def _look(counter: Counter) -> tuple[float, float]:
    """Watts of an idle device, and seconds between two steps of its counter, by watching it."""
    steps: list[tuple[float, float]] = []
    start, last = perf_counter(), counter.joules()
    while perf_counter() - start < IDLE_S or len(steps) < 2:
        sleep(POLL_S)
        if (now := counter.joules()) != last:
            steps.append((perf_counter(), now))
            last = now
        elif perf_counter() - start > IDLE_S + PATIENCE_S:
            raise OSError(STOOD_STILL.format(format.duration(perf_counter() - start)))
    (began, low), (ended, high) = steps[0], steps[-1]
    return (high - low) / (ended - began), (ended - began) / (len(steps) - 1)


class _Load:
    def __init__(self, run: Step, before: Step, counter: Counter) -> None:
        """Run until the device draws what it will go on drawing."""
        self._run, self._before, self._counter = run, before, counter
        self._calls, self._each = 0, 1
        start = perf_counter()
        counter.joules()
        self._round_s = max(ROUND_S, (perf_counter() - start) / READING)
        start = perf_counter()
        self._fresh = start - FRESH_S
        while (spent := perf_counter() - start) < WARM_S or not self._calls:
            self._round()
            if perf_counter() - start - spent < self._round_s / 2:
                self._each *= 2

    def go_on(self, seconds: float) -> None:
        """Run for so long."""
        start = perf_counter()
        while perf_counter() - start < seconds:
            self._round()

    def next_step(self) -> tuple[float, float, int]:
        """Run until the counter moves: seconds, joules and calls at that instant."""
        start, was = perf_counter(), self._counter.joules()
        while True:
            self._round()
            now, joules = perf_counter(), self._counter.joules()
            if joules != was:
                return now, joules, self._calls
            if now - start > PATIENCE_S:
                raise OSError(STOOD_STILL.format(format.duration(now - start)))

    def _round(self) -> None:
        if perf_counter() - self._fresh >= FRESH_S:
            self._fresh = perf_counter()
            self._before()
        for _ in range(self._each):
            self._run()
        self._counter.wait()
        self._calls += self._each
