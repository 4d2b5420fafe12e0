"""Joules: the device's counters, and a loop long enough for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep

from attnbench.core import format
from attnbench.core import gpu as nvml
from attnbench.core.gpu import Absent, Board
from attnbench.core.machine import POWERCAP, energy_counters
from attnbench.core.record import Energy
from attnbench.meter.clocks import Step, cuda_gpu


class NvmlCounter:
    """The board's own counter: its processor, its memory and all else that it feeds."""

    method = "nvml counter: the whole board"  # for the record: what it is and what it covers
    warm_s = 1.0  # how long a load must have run before its draw stays the same

    def __init__(self, board: Board, wait: Callable[[], None]) -> None:
        self._board, self.wait = board, wait
        self.key = board.uuid  # the idle draw is measured once for each

    def joules(self) -> float:
        """Since the driver was loaded; raises OSError where the reading fails."""
        joules = self._board.energy_j()
        if isinstance(joules, Absent):
            raise OSError(joules.reason)
        return joules


class RaplCounter:
    """The processor's packages, summed. Their counters are short and begin again at zero."""

    key, warm_s = "cpu", 0.2

    def __init__(self, packages: list[Path]) -> None:
        self._files = [package / "energy_uj" for package in packages]
        names = ", ".join((p / "name").read_text().strip() for p in packages)
        self.method = f"rapl counter: {names}"
        self._range = [_number(p / "max_energy_range_uj") for p in packages]
        self._last = [_number(file) for file in self._files]
        self._sum_uj = 0

    def joules(self) -> float:
        """Since this was made; must be called before a counter has gone around."""
        now = [_number(file) for file in self._files]
        for was, is_now, whole in zip(self._last, now, self._range, strict=True):
            self._sum_uj += is_now - was + (whole if is_now < was else 0)
        self._last = now
        return self._sum_uj * 1e-6

    def wait(self) -> None:
        """A call on the processor has ended when it returns."""


def _number(file: Path) -> int:
    return int(file.read_text())


Counter = NvmlCounter | RaplCounter


def counter_for(device: str) -> Counter | Energy:
    """The counter of a device, or an :class:`Energy` that says why there is none."""
    if device != "cpu":
        gpu = cuda_gpu(device)
        board = nvml.board(gpu.uuid)
        if isinstance(board, Absent):
            return Energy(why=board.reason)
        return of_board(board, gpu.synchronize)
    try:
        if packages := energy_counters():
            return RaplCounter(packages)
    except PermissionError:
        how = f"sudo chmod a+r {POWERCAP}/intel-rapl:*/energy_uj"
        return Energy(why=f"the processor's energy counter is for root alone; allow it with {how}")
    except (OSError, ValueError) as error:
        return Energy(why=f"the processor's energy counter can't be read: {error}")
    return Energy(why=f"this machine shows no energy counter of its processor in {POWERCAP}")


def of_board(board: Board, wait: Callable[[], None]) -> Counter | Energy:
    """The board's counter, if it counts this process alone; else an Energy that says why."""
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
    return NvmlCounter(board, wait)


IDLE_S, MOST_LOOKS, STILL = 1.0, 8, 0.03
"""Of a look at the idle draw, how many there may be, and by what share two that agree differ."""
SETTLE_S = 0.5  # how long a device is left alone before its idle draw is read
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
            _idle[counter.key] = _idle_of(counter)
        idle_w, step_s = _idle[counter.key]
        load = _Load(run, before, counter)
        first = load.next_step()
        load.go_on(max(budget_s, UPDATES * step_s) - step_s)
        last = load.next_step()
    except OSError as error:
        return Energy(why=str(error), method=counter.method)
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
        method=counter.method,
        flags=flags,
    )


def _idle_of(counter: Counter) -> tuple[float, float]:
    """Its draw once two looks in a row agree: clocks go on falling for seconds after work."""
    counter.wait()
    sleep(SETTLE_S)
    watts, step_s = _look(counter)
    for _ in range(MOST_LOOKS - 1):
        before, (watts, step_s) = watts, _look(counter)
        if abs(watts - before) <= STILL * before:
            break
    return watts, step_s


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
        while (spent := perf_counter() - start) < counter.warm_s or not self._calls:
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
