"""What a worker answers about pairs: two variants against each other, or one kept ready."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import impls
from attnbench.comparison import LEAST_MARGIN
from attnbench.measure.beside import Beside
from attnbench.measure.cell import Bench, NotReady
from attnbench.measure.failure import poisoned
from attnbench.measure.job import Job, Ready
from attnbench.measure.noise import floor_of
from attnbench.measure.paired import Calls, compare_ready
from attnbench.pairs import Rule
from attnbench.record import Status
from attnbench.truth.findings import Wrong
from impls import table
from impls.problem import Problem

FLOOR_BUDGET_S = 4.0
SWAPPED = (
    "{} replaces torch's own kernels for its whole process, so no other variant can be timed "
    "beside it there: compare the times of two runs"
)


def two(bench: Bench, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker says to ``{"compare": [job, job], "margin": …, "budget_s": …}``.

    Without a margin it is the larger of a hundredth and the noise floor of calls as long as the
    first's: one of those sent along, or measured first. Where a side is not ready, or turns out
    wrong, it is said of whom, and why.
    """
    a, b = (Job.from_dict(sent) for sent in asked["compare"])
    if swapping := [job.variant.label for job in (a, b) if getattr(job.variant, "swaps", ())]:
        stop = {"status": str(Status.UNSUPPORTED), "why": SWAPPED.format(swapping[0])}
        return {"stopped": stop}
    try:
        sides = bench.ready(a), bench.ready(b)
        margin = asked["margin"]
        if margin is None:
            margin = max(LEAST_MARGIN, _floor(sides[0], asked["floors"]))
        rule = Rule(margin, budget_s=asked["budget_s"])
        pairs = compare_ready(*sides, rule, audit=True)
        pairs.names = (a.variant.label, b.variant.label)
    except NotReady as stopped:
        record = stopped.record
        why = f"{record.variant}: {record.reason}"
        stop = {"status": str(record.status), "why": why}
        return {"stopped": stop, "spoiled": poisoned(record.problem["device"])}
    except Wrong as wrong:  # it says of whom
        return {"stopped": {"status": str(Status.WRONG), "why": str(wrong)}, "spoiled": True}
    return {"pairs": pairs.to_dict()}


def _floor(ready: Ready, floors: Sequence[Mapping[str, float]]) -> float:
    if not floors:
        return floor_of(ready, FLOOR_BUDGET_S).floor
    calls = Calls(ready)
    calls.fresh()
    call_s = statistics.median(calls.sample() for _ in range(5))
    return min(floors, key=lambda f: abs(math.log(f["call_s"] / call_s)))["floor"]


class Held:
    """One variant kept ready in this worker, a few calls at a time: the side of another process."""

    def __init__(self) -> None:
        self._calls: Calls | None = None

    def hold(self, bench: Bench, asked: Mapping[str, Any]) -> dict[str, Any]:
        """``{"hold": …}``: the variant, by its text in the table that this worker sees."""
        sent = asked["hold"]
        try:
            rows = table(sent.get("tables", ()))
        except Exception as error:  # a door that fails costs all rooms behind it
            why = f"its table can't be read: {type(error).__name__}: {error}"
            return {"refused": why, "status": str(Status.FAILED)}
        try:
            row = rows.find(sent["variant"])
            job = Job(row, Problem.from_dict(sent["problem"]), sent["seed"], sent["budget_s"])
            self._calls = Calls(bench.ready(job))
        except NotReady as stopped:
            status = str(stopped.record.status)
            return {"refused": f"{status}: {stopped.record.reason}", "status": status}
        except (LookupError, ValueError, TypeError) as error:
            return {"refused": str(error)}
        return {"held": True}

    def answer(self, bench: Bench, asked: Mapping[str, Any]) -> dict[str, Any]:
        """To one of three questions."""
        if "fresh" in asked:
            return self.fresh()
        return self.sample(asked["sample"]) if "sample" in asked else self.hold(bench, asked)

    def fresh(self) -> dict[str, Any]:
        """``{"fresh": true}``: tensors at other addresses."""
        assert self._calls is not None
        try:
            self._calls.fresh()
        except Wrong as wrong:
            return {"wrong": str(wrong)}
        return {"fresh": True}

    def sample(self, count: int) -> dict[str, Any]:
        """``{"sample": n}``: seconds of some calls, after one to warm what others have cooled."""
        assert self._calls is not None
        self._calls.sample()
        seconds = [self._calls.sample() for _ in range(count)]
        try:
            self._calls.check()
        except Wrong as wrong:
            return {"wrong": str(wrong)}
        return {"seconds": seconds}


class Sides:
    """What this process holds: a variant, and one more of each folder beside."""

    def __init__(self, folder: str, made: Callable[[], Held] = Held) -> None:
        """``folder``: where this process looks first for what it imports."""
        self._folder, self._made, self._own = folder, made, made()
        self._others: dict[str, tuple[Beside, Held]] = {}

    def answer(self, bench: Bench, asked: Mapping[str, Any]) -> dict[str, Any]:
        """To ``hold``, ``fresh`` or ``sample``, of the folder that ``beside`` names if it does."""
        if (folder := asked.get("beside")) is None:
            return self._own.answer(bench, asked)
        if folder not in self._others:
            self._others[folder] = Beside(folder, self._folder), self._made()
        beside, held = self._others[folder]
        with beside.there():
            return held.answer(bench, asked)


SIDES = Sides(str(Path(impls.__file__).parents[1]))
"""Of this process."""
