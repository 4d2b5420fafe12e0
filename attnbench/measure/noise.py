"""The noise floor: by how much a variant seems to differ from itself, on this machine, now.

A variant is compared with itself again and again, as any two are compared: pairs until they decide,
now and again in tensors at other addresses. What is sampling noise the interval of a comparison
says itself. What is more, since it lasts as long as the comparison, shows in an interval that lies
off nothing at all: the floor is how far off 95 of 100 do not lie, the least margin at which this
machine can tell that a variant is no other than itself. It depends on how long a call takes, so it
is measured for short calls and for longer ones.
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
from attnbench.pairs import Pairs, Rule
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
    apart: float
    """By how much the ratios themselves were off one, 95 of 100 no more: sampling noise too."""
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
    found = list(_against_itself(ready, budget_s))
    seen = [pairs.comparison for pairs in found]
    off = [max(0.0, math.log(c.low), -math.log(c.high)) for c in seen]
    apart = [abs(math.log(c.ratio)) for c in seen]
    return Floor(
        call_s=statistics.median(statistics.median(pairs.a_s) for pairs in found),
        floor=math.expm1(float(np.quantile(off, 0.95))),
        apart=math.expm1(float(np.quantile(apart, 0.95))),
        trials=len(seen), pairs=statistics.median(c.n for c in seen),
    )  # fmt: skip


def _against_itself(ready: Ready, budget_s: float) -> Iterator[Pairs]:
    start, trials = perf_counter(), 0
    rule = Rule(LEAST_MARGIN, cap=CAP, budget_s=budget_s / TRIALS[0])
    while trials < TRIALS[0] or (trials < TRIALS[1] and perf_counter() - start < budget_s):
        yield compare_ready(ready, ready, rule)
        trials += 1
