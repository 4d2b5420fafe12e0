"""Time: warm up until steady, sample until the median is known well enough, say why it stopped."""

from __future__ import annotations

from time import perf_counter, process_time

import torch

from attnbench.measure.clocks import Clock
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
CONTENDED = 0.9
"""Below this share of the processor a single thread was waiting for somebody else."""


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


def measure_time(timed: Timed, clock: Clock, budget_s: float,
                 flags: list[str]) -> Time:  # fmt: skip
    """Samples until converged, on a plateau, or at the budget (after seven at the least)."""
    samples: list[float] = []
    wall, cpu = perf_counter(), process_time()
    stop = ""
    while not stop:
        samples += clock.samples(timed.before, timed.run, 1 if len(samples) < ENOUGH else 5)
        stop = _why_stop(samples, perf_counter() - wall, budget_s)
    timed.settle()
    share = (process_time() - cpu) / max(perf_counter() - wall, 1e-9)
    if clock.name == "host" and share < CONTENDED:
        flags = [*flags, f"contended: {share:.0%} of a processor"]
    s = summary(samples)
    return Time(median_s=s.median, low_s=s.low, high_s=s.high, q25_s=s.q25, q75_s=s.q75,
                min_s=s.least, n=len(samples), clock=clock.name, stop=stop, samples_s=samples,
                flags=flags)  # fmt: skip


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
