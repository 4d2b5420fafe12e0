"""What a worker answers about pairs: two variants against each other, or one kept ready."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np
import torch

import impls
from attnbench.core.record import Status
from attnbench.core.stats import LEAST_MARGIN, Pairs, StopRule, compare
from attnbench.gate import watch
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import demanded
from attnbench.meter.audit import MORE_PROCESSORS
from attnbench.meter.cell import MORE, MORE_S, SURE, Bench, Implausible, NotReady, audited, poisoned
from attnbench.meter.timed import Job, Ready, prepare
from impls import table
from impls.problem import Problem

RULER = "attnbench"
"""Stands in both folders as a link to the same, and stays."""


class ModuleSwap:
    """The modules of a folder that has the place of another's for a while."""

    def __init__(self, folder: str, instead_of: str) -> None:
        self._folder, self._instead_of = folder, instead_of
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def there(self) -> Iterator[None]:
        """What is imported now comes from this folder, and so does what was imported from it."""
        away = _taken(self._instead_of)
        sys.modules.update(self._modules)
        _repath(self._instead_of, self._folder)
        try:
            yield
        finally:
            self._modules = _taken(self._folder)
            sys.modules.update(away)
            _repath(self._folder, self._instead_of)


def _taken(folder: str) -> dict[str, ModuleType]:
    """The modules that came from a folder, no longer among those that are loaded."""
    found = {
        name: module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] != RULER and _lies_in(module, folder)
    }
    for name in found:
        del sys.modules[name]
    return found


def _lies_in(module: ModuleType, folder: str) -> bool:
    """By its own dictionary: asking some modules for a name loads what has it.

    Nobody keeps what is among the modules from being something else, without one.
    """
    said = getattr(module, "__dict__", {})
    places = [said.get("__file__"), *list(said.get("__path__") or ())]
    return any(str(place).startswith(folder + "/") for place in places)


def _repath(old: str, new: str) -> None:
    sys.path[:] = [
        new + place.removeprefix(old) if (place + "/").startswith(old + "/") else place
        for place in sys.path
    ]


class ReadyCalls:
    """A variant that has passed the gate, as one side of pairs."""

    WARM = 3

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self.clock = ready.clock()
        self._timed = ready.timed()
        self._kept = [self._timed]
        """Earlier tensors keep their place, or the next would get it."""

    def fresh(self) -> None:
        """Tensors elsewhere."""
        self.check()
        self._kept = [*self._kept[-1:], self._timed]
        self._timed = self.ready.timed()
        prepare(self.clock, self._timed)
        self.clock.samples(self._timed.before, self._timed.run, self.WARM)

    def sample(self) -> float:
        """One call, every result held against what is right."""
        return self.clock.samples(self._timed.before, self._timed.run, 1)[0]

    def audit(self, seconds: float) -> None:
        """Raise where calls can't have taken so long: looked at as they are in a sweep."""
        label = self.ready.job.variant.label
        for _ in range(SURE):
            try:
                _, slowest = audited(self.ready, self._timed, self.clock, seconds)
            except (Wrong, Implausible) as why:
                raise Wrong(f"{label}: {why}") from None
            if slowest < MORE * seconds + MORE_S:
                return
        raise Wrong(
            f"{label}: it took {seconds * 1e3:.3g} ms in pairs and {slowest * 1e3:.3g} ms while "
            "something else was looked at"
        )

    def check(self) -> None:
        """Raise :class:`Wrong` where a timed call gave something else."""
        self._timed.settle()
        if (changed := self._timed.wrong()) is not None:
            raise Wrong(f"{self.ready.job.variant.label}: {changed}")


def compare_ready(a: Ready, b: Ready, rule: StopRule, *, audit: bool = False) -> Pairs:
    """The comparison of two variants in this process; their calls are checked to the last.

    ``audit``: and then looked at otherwise than by the clock.
    """
    sides = ReadyCalls(a), ReadyCalls(b)
    start, wanted = perf_counter(), demanded()
    pairs = compare(*sides, rule)
    for side in sides:
        side.check()
    if audit:
        both = " or ".join(ready.job.variant.label for ready in (a, b))
        _check_shared(a, both)
        busy, threads = (demanded() - wanted) / (perf_counter() - start), torch.get_num_threads()
        if a.job.problem.device == "cpu" and busy > MORE_PROCESSORS * threads:
            raise Wrong(
                f"{both}: while pairs were taken {busy:.2g} processors were busy, not {threads}"
            )
        for side, seconds in zip(sides, (pairs.a_s, pairs.b_s), strict=True):
            side.audit(statistics.median(seconds))
        _check_shared(a, both)  # now, when no call comes after
    return pairs


def _check_shared(first: Ready, both: str) -> None:
    if (left := watch.said(first.shared)) is not None:
        raise Wrong(f"{both}: {left}")


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
        trials=len(seen),
        pairs=statistics.median(c.n for c in seen),
    )


def _against_itself(ready: Ready, budget_s: float) -> Iterator[Pairs]:
    start, trials = perf_counter(), 0
    rule = StopRule(LEAST_MARGIN, cap=CAP, budget_s=budget_s / TRIALS[0])
    while trials < TRIALS[0] or (trials < TRIALS[1] and perf_counter() - start < budget_s):
        yield compare_ready(ready, ready, rule)
        trials += 1


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
        rule = StopRule(margin, budget_s=asked["budget_s"])
        pairs = compare_ready(*sides, rule, audit=True)
        pairs.names = (a.variant.label, b.variant.label)
    except NotReady as stopped:
        record = stopped.record
        why = f"{record.variant}: {record.reason}"
        stop = {"status": str(record.status), "why": why}
        return {"stopped": stop, "spoiled": poisoned(record.problem.device)}
    except Wrong as wrong:  # it says of whom
        return {"stopped": {"status": str(Status.WRONG), "why": str(wrong)}, "spoiled": True}
    return {"pairs": pairs.to_dict()}


def _floor(ready: Ready, floors: Sequence[Mapping[str, float]]) -> float:
    if not floors:
        return floor_of(ready, FLOOR_BUDGET_S).floor
    calls = ReadyCalls(ready)
    calls.fresh()
    call_s = statistics.median(calls.sample() for _ in range(5))
    return min(floors, key=lambda f: abs(math.log(f["call_s"] / call_s)))["floor"]


class HeldVariant:
    """One variant kept ready in this worker, a few calls at a time: the side of another process."""

    def __init__(self) -> None:
        self._calls: ReadyCalls | None = None

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
            self._calls = ReadyCalls(bench.ready(job))
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

    def __init__(self, folder: str, made: Callable[[], HeldVariant] = HeldVariant) -> None:
        """``folder``: where this process looks first for what it imports."""
        self._folder, self._made, self._own = folder, made, made()
        self._others: dict[str, tuple[ModuleSwap, HeldVariant]] = {}

    def answer(self, bench: Bench, asked: Mapping[str, Any]) -> dict[str, Any]:
        """To ``hold``, ``fresh`` or ``sample``, of the folder that ``beside`` names if it does."""
        if (folder := asked.get("beside")) is None:
            return self._own.answer(bench, asked)
        if folder not in self._others:
            self._others[folder] = ModuleSwap(folder, self._folder), self._made()
        beside, held = self._others[folder]
        with beside.there():
            return held.answer(bench, asked)


SIDES = Sides(str(Path(impls.__file__).parents[1]))
"""Of this process."""
