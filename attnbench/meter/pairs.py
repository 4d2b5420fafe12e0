"""Pairs in a worker: two variants compared, or one held ready for another process."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import torch

import impls
from attnbench.core.device import device_for
from attnbench.core.format import duration
from attnbench.core.record import Status
from attnbench.core.stats import LEAST_MARGIN, Comparison, StopRule, compare, nearest_floor
from attnbench.core.wire import Job, convert
from attnbench.gate import watch
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import demanded
from attnbench.meter.audit import MORE_PROCESSORS
from attnbench.meter.cell import MORE, MORE_S, SURE, Bench, audited
from attnbench.meter.endings import Implausible, NotReady
from attnbench.meter.timer import Ready, prepare
from impls import Table, table
from impls.problem import Problem

SHARED = "attnbench"  # a link to the same package in both folders; its modules stay


@contextmanager
def modules_of(folder: str, instead_of: str, loaded: dict[str, ModuleType]) -> Iterator[None]:
    """Inside the block imports, earlier ones too, come from one folder instead of another.

    ``loaded``: the modules of the folder that earlier blocks have loaded.
    """
    away = _remove_modules(instead_of)
    sys.modules.update(loaded)
    _repath(instead_of, folder)
    try:
        yield
    finally:
        loaded.clear()
        loaded.update(_remove_modules(folder))
        sys.modules.update(away)
        _repath(folder, instead_of)


def _remove_modules(folder: str) -> dict[str, ModuleType]:
    """Take the modules that came from a folder out of ``sys.modules``; returns them."""
    removed = {}
    for name, module in list(sys.modules.items()):
        # by its own dictionary, if it has one: asking some modules for a name loads the attribute
        names = getattr(module, "__dict__", {})
        places = [names.get("__file__"), *(names.get("__path__") or ())]
        inside = any(str(place).startswith(folder + "/") for place in places)
        if inside and name.split(".")[0] != SHARED:
            removed[name] = sys.modules.pop(name)
    return removed


def _repath(old: str, new: str) -> None:
    """Look in another folder, here and in child processes, such as those that read rows."""

    def moved(place: str) -> str:
        return new + place.removeprefix(old) if (place + "/").startswith(old + "/") else place

    sys.path[:] = map(moved, sys.path)
    if for_children := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(map(moved, for_children.split(os.pathsep)))


class ReadyCalls:
    """A variant that has passed the gate, as one side of pairs."""

    WARM = 3

    def __init__(self, ready: Ready) -> None:
        self.ready, self.label = ready, ready.job.variant.label
        self.clock = ready.clock()
        self._timed = ready.timed()
        self._kept = [self._timed]
        """Earlier tensors are kept for a while, or new ones would get their addresses."""

    def fresh(self) -> None:
        """Use tensors at other addresses from now on."""
        self.check()
        self._kept = [*self._kept[-1:], self._timed]
        self._timed = self.ready.timed()
        prepare(self.clock, self._timed)
        self.clock.samples(self._timed.before, self._timed.run, self.WARM)

    def sample(self) -> float:
        """Seconds of one call; every result is compared."""
        return self.clock.samples(self._timed.before, self._timed.run, 1)[0]

    def audit(self, seconds: float) -> None:
        """Raise :class:`Wrong` where calls can't have taken so long, by the audit of a sweep."""
        for _ in range(SURE):
            try:
                _, slowest = audited(self.ready, self._timed, self.clock, seconds)
            except (Wrong, Implausible) as why:
                raise Wrong(f"{self.label}: {why}") from None
            if slowest < MORE * seconds + MORE_S:
                return
        raise Wrong(
            f"{self.label}: it took {duration(seconds)} in pairs and {duration(slowest)} "
            "while something else was looked at"
        )

    def check(self) -> None:
        """Raise :class:`Wrong` where a timed call gave a wrong result."""
        self._timed.settle()
        if (changed := self._timed.wrong()) is not None:
            raise Wrong(f"{self.label}: {changed}")


def compare_ready(a: Ready, b: Ready, rule: StopRule, *, audit: bool = False) -> Comparison:
    """The comparison of two variants in this process; every call is checked.

    ``audit``: both are audited afterwards. Raises :class:`Wrong` where a call, or the audit, shows
    that one is wrong.
    """
    sides = ReadyCalls(a), ReadyCalls(b)
    start, demand = perf_counter(), demanded()
    comparison = compare(*sides, rule)
    for side in sides:
        side.check()
    if not audit:
        return comparison
    both = f"{sides[0].label} or {sides[1].label}"

    def check_shared() -> None:
        if left := watch.left_changed(a.shared):
            raise Wrong(f"{both}: {left}")

    check_shared()
    busy, threads = (demanded() - demand) / (perf_counter() - start), torch.get_num_threads()
    if not device_for(a.job.problem.device).queued and busy > MORE_PROCESSORS * threads:
        raise Wrong(
            f"{both}: while pairs were taken {busy:.2g} processors were busy, not {threads}"
        )
    for side, seconds in zip(sides, comparison.medians, strict=True):
        side.audit(seconds)
    check_shared()  # now, when no call comes after
    return comparison


TRIALS = (8, 20)  # the fewest and the most comparisons; as many as fit the budget
BUDGET_S = 5.0


def floors(device: str, dtype: str) -> list[dict[str, Any]]:
    """The floor of short, middling and long calls on a device."""
    bench, row = Bench(), table().find("sdpa")
    alike = Problem(dtype=dtype, device=device)
    problems = [alike.with_(q_len=n, kv_len=n) for n in device_for(device).lengths]
    return [floor_of(bench.ready(Job(row, problem))) for problem in problems]


def floor_of(ready: Ready, budget_s: float = BUDGET_S) -> dict[str, Any]:
    """The least difference that can be seen between calls about as long as a variant's on one
    problem, from comparisons with itself, and the time of one.

    ``floor`` is a share: 0.004 is four thousandths. ``apart`` is how far 95 of 100 ratios were off
    one at most, with the sampling noise; ``pairs``, the median of the comparisons. Raises
    :class:`Wrong` where a call gives a wrong result.
    """
    start, trials = perf_counter(), list[Comparison]()
    rule = StopRule(LEAST_MARGIN, cap=640, budget_s=budget_s / TRIALS[0])
    while len(trials) < TRIALS[0] or (
        len(trials) < TRIALS[1] and perf_counter() - start < budget_s
    ):
        trials.append(compare_ready(ready, ready, rule))
    off = [max(0.0, math.log(c.low), -math.log(c.high)) for c in trials]
    apart = [abs(math.log(c.ratio)) for c in trials]
    return {
        "call_s": median(c.medians[0] for c in trials),
        "floor": math.expm1(float(np.quantile(off, 0.95))),
        "apart": math.expm1(float(np.quantile(apart, 0.95))),
        "trials": len(trials),
        "pairs": median(c.n for c in trials),
    }


SWAPPED = (
    "{} replaces torch's own kernels for its whole process, so no other variant can be timed "
    "beside it there: compare the times of two runs"
)


def two(bench: Bench, question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``{"compare": [job, job], "margin": …, "floors": …, "budget_s": …}``.

    Without a margin it is the larger of a hundredth and the noise floor of calls as long as the
    first's: one of those sent along, or measured first. Where a side is not ready or turns out
    wrong, the answer names it and the reason.
    """

    def stopped(status: Status, why: str, **more: bool) -> dict[str, Any]:
        return {"stopped": {"status": str(status), "why": why}, **more}

    a, b = (convert(sent, Job) for sent in question["compare"])
    if swapping := [job.variant.label for job in (a, b) if job.variant.swaps]:
        return stopped(Status.UNSUPPORTED, SWAPPED.format(swapping[0]))
    try:
        sides = bench.ready(a), bench.ready(b)
        margin = question["margin"]
        if margin is None:
            margin = max(LEAST_MARGIN, _floor(sides[0], question["floors"]))
        rule = StopRule(margin, budget_s=question["budget_s"])
        comparison = compare_ready(*sides, rule, audit=True)
    except NotReady as unready:
        record = unready.record
        spoiled = not device_for(record.problem.device).works()
        return stopped(record.status, f"{record.variant}: {record.reason}", spoiled=spoiled)
    except Wrong as wrong:
        return stopped(Status.WRONG, str(wrong), spoiled=True)
    return {"comparison": msgspec.to_builtins(comparison)}


def _floor(ready: Ready, floors: Sequence[Mapping[str, float]]) -> float:
    if not floors:
        return float(floor_of(ready, 4.0)["floor"])
    calls = ReadyCalls(ready)
    calls.fresh()
    call_s = median(calls.sample() for _ in range(5))
    return nearest_floor(floors, call_s)


class HeldVariant:
    """One variant kept ready in this worker, a few calls at a time: the side of another process."""

    def __init__(self) -> None:
        self._calls: ReadyCalls | None = None
        self._rows: Table | None = None

    def reply(self, bench: Bench, question: Mapping[str, Any]) -> dict[str, Any]:
        """To ``hold``, ``fresh`` or ``sample``."""
        if "hold" in question:
            return self._hold(bench, question["hold"])
        assert self._calls is not None
        try:
            if "fresh" in question:  # tensors at other addresses
                self._calls.fresh()
                return {"fresh": True}
            self._calls.sample()  # warms what other processes have cooled
            seconds = [self._calls.sample() for _ in range(question["sample"])]
            self._calls.check()
        except Wrong as wrong:
            return {"wrong": str(wrong)}
        return {"seconds": seconds}

    def _hold(self, bench: Bench, question: Mapping[str, Any]) -> dict[str, Any]:
        """The variant, by its text in the table that this worker sees."""
        try:
            if self._rows is None:  # a folder with a commit stays as it is
                self._rows = table(question.get("tables", ()))
            rows = self._rows
        except Exception as error:  # whatever a file of rows raises
            why = f"its table can't be read: {type(error).__name__}: {error}"
            return {"refused": why, "status": str(Status.FAILED)}
        try:
            row, problem = rows.find(question["variant"]), convert(question["problem"], Problem)
            ready = bench.ready(Job(row, problem, question["seed"], question["budget_s"]))
        except NotReady as stopped:
            status = str(stopped.record.status)
            return {"refused": f"{status}: {stopped.record.reason}", "status": status}
        except (LookupError, ValueError, TypeError) as error:
            return {"refused": str(error)}
        self._calls = ReadyCalls(ready)
        return {"held": True}


class Sides:
    """What this process holds: a variant of its own, and one of each other folder."""

    def __init__(self, folder: str) -> None:
        """``folder``: where this process looks first for what it imports."""
        self._folder, self._own = folder, HeldVariant()
        self._others: dict[str, tuple[HeldVariant, dict[str, ModuleType]]] = {}

    def reply(self, bench: Bench, question: Mapping[str, Any]) -> dict[str, Any]:
        """To ``hold``, ``fresh`` or ``sample``, of the folder that ``beside`` names, if any."""
        if (folder := question.get("beside")) is None:
            return self._own.reply(bench, question)
        if folder not in self._others:
            self._others[folder] = HeldVariant(), {}
        variant, modules = self._others[folder]
        with modules_of(folder, self._folder, modules):
            return variant.reply(bench, question)


SIDES = Sides(str(Path(impls.__file__).parents[1]))  # of this process
