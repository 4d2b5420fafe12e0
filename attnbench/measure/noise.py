"""The noise floor: by how much a variant seems to differ from itself, on this machine, now.

A variant is compared with itself again and again, as any two are compared: pairs until they decide,
in tensors at other addresses for each look. What 95 of 100 such comparisons stay below is the least
difference that this machine can vouch for. It depends on how long a call takes, so it is measured
for short calls and for longer ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from attnbench.comparison import LEAST_MARGIN
from attnbench.measure.cell import Bench
from attnbench.measure.job import Job, Ready
from attnbench.measure.paired import compare_ready
from attnbench.pairs import Rule
from impls import table
from impls.problem import Problem

LENGTHS = {"cpu": (64, 256, 1024), "cuda": (512, 2048, 8192)}
VARIANT = "sdpa"
CAP = 640
TRIALS = (8, 20)
"""At least and at most so many comparisons, as many as fit the budget."""
BUDGET_S = 5.0


@dataclass(frozen=True)
class Floor:
    """What calls about so long can be told apart by."""

    call_s: float
    floor: float
    """A share: 0.004 is four thousandths."""
    trials: int
    pairs: float
    """Of the comparisons, the median."""


def floors(device: str, dtype: str) -> list[dict[str, Any]]:
    """The floor of short, middling and long calls on a device."""
    bench, row = Bench(), table().find(VARIANT)
    found = []
    for length in LENGTHS[device.split(":")[0]]:
        problem = Problem(q_len=length, kv_len=length, dtype=dtype, device=device)
        found.append(asdict(floor_of(bench.ready(Job(row, problem)))))
    return found


def floor_of(ready: Ready, budget_s: float = BUDGET_S) -> Floor:
    """The floor of one variant on one problem."""
    off, calls, pairs = zip(*_against_itself(ready, budget_s), strict=True)
    floor = float(np.quantile(off, 0.95))
    return Floor(statistics.median(calls), floor, len(off), statistics.median(pairs))


def _against_itself(ready: Ready, budget_s: float) -> Iterator[tuple[float, float, int]]:
    start, trials = perf_counter(), 0
    rule = Rule(LEAST_MARGIN, cap=CAP, budget_s=budget_s / TRIALS[0])
    while trials < TRIALS[0] or (trials < TRIALS[1] and perf_counter() - start < budget_s):
        pairs = compare_ready(ready, ready, rule)
        off = abs(math.log(pairs.comparison.ratio))
        yield off, statistics.median(pairs.a_s), pairs.comparison.n
        trials += 1
