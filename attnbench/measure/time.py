"""Time: warm up until steady, sample until the median is known well enough, say why it stopped."""

from __future__ import annotations

from functools import partial
from time import perf_counter

import torch

from attnbench.measure.clocks import Clock
from attnbench.measure.health import Health, Processor, Unwatched
from attnbench.measure.timed import Timed
from attnbench.record import Time
from attnbench.statistics import median_interval, summary

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


def measure_time(timed: Timed, clock: Clock, budget_s: float, flags: list[str], *,
                 health: Health | None = None) -> Time:  # fmt: skip
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
    return Time(median_s=s.median, low_s=s.low, high_s=s.high, q25_s=s.q25, q75_s=s.q75,
                min_s=s.least, n=len(samples), clock=clock.name, stop=stop, samples_s=samples,
                discarded=health.discarded, clocks=health.clocks(), flags=flags)  # fmt: skip


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
