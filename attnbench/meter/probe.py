"""A light look at one problem: does a variant take it, how fast, in how much memory, and right?

Much less than a cell, so that it can be had at lengths where a cell would take minutes: a first
call, a few timed calls, each on values that no call saw before at the same addresses, one call
under the memory meter, and a few rows, drawn when all was computed, held against what they should
be. It is for variants that have passed the whole gate on the same problem at a length where that is
cheap. A call that is over the time asked for is not observed: how much memory it takes is no
question any more.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from attnbench.core.record import Memory, Probed, Status
from attnbench.gate import mask_probe, watch
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import check_form
from attnbench.gate.inputs import Attend, Call, Ends, cast, make
from attnbench.meter import clocks
from attnbench.meter import memory as room
from attnbench.meter.cell import failure, poisoned
from attnbench.meter.clocks import Clock, clock_for
from attnbench.meter.memory import growth, observe
from attnbench.meter.ranks import attend_of
from attnbench.meter.timed import Job, TimeSpent, prepare
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported, Variant

ROWS = 16
"""How many rows are judged."""
MOST, SHORT_S = 5, 0.05
"""Samples of a call, and below which time as many are taken whatever they say."""
CLEAR = 0.15
"""Two samples that lie further than this from the time asked for have decided; else a third."""


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker says to ``{"probe": job, "max_time_s": …, "expected": bytes or null}``."""
    job = Job.from_dict(asked["probe"])
    found = probe(job, asked["max_time_s"], asked["expected"])
    spoiled = found.status is Status.WRONG or poisoned(job.problem.device)
    spoiled |= bool(job.variant.swaps)  # it is not looked whether torch's kernels are back
    return {"probe": found.to_dict(), "spoiled": spoiled}


def probe(job: Job, max_time_s: float, expected: int | None = None) -> Probed:
    """Look at one problem; whatever happens short of the process dying is an answer."""
    spent = TimeSpent()
    clocks.begin(job.problem.device)
    try:
        found = _look(job, max_time_s, expected, spent)
    except Wrong as wrong:
        found = {"status": Status.WRONG, "reason": str(wrong)}
    except Unsupported as error:
        found = {"status": Status.UNSUPPORTED, "reason": str(error)}
    except Unavailable as error:
        found = {"status": Status.UNAVAILABLE, "reason": error.reason, "remedy": error.remedy}
    except Exception as error:
        found = failure(error)
    return Probed(**found, spent_s=spent.closed())


def _look(job: Job, max_time_s: float, expected: int | None, spent: TimeSpent) -> dict[str, Any]:
    variant, problem = job.variant, job.problem
    if (refusal := variant.supports(problem)) is not None:
        raise Unsupported(refusal)
    _refuse_without_room(problem, expected, exact=variant.definition is None)
    before = watch.snapshot()
    with spent.on("setup"):
        attend: Attend = load_function(variant.build)(problem, **variant.chosen)
    before = watch.allowing(before, variant.swaps)
    with spent.on("inputs"):
        fresh = Fresh(problem, attend, make(problem, job.seed))
    with spent.on("first"):
        grown = growth(fresh.run)
    with spent.on("timing"):
        clock = clock_for(problem.device, problem.phase)
        prepare(clock, fresh)
        samples = few_samples(clock, fresh, max_time_s)
    results, rows = fresh.results(), mask_probe.secret_rows(problem, ROWS)
    dout = fresh.dout_in(rows)
    memory = None
    if statistics.median(samples) <= max_time_s:
        with spent.on("memory"):
            seen = observe(problem, attend, fresh.ends, dout, expected, grown)
        memory = seen.memory
    with spent.on("checking"):
        define = None
        if variant.definition is not None:
            define = load_function(variant.definition)(problem, **variant.chosen)
        wanted = mask_probe.reference(problem, fresh.ends, rows, dout, define, job.seed)
        mask_probe.check(problem, results, wanted)
        if memory is not None:
            check_form(problem, seen.results["forward"])
            mask_probe.check(problem, {n: x.detach() for n, x in seen.results.items()}, wanted)
        watch.check(before)
    return {"status": Status.MEASURED, "rows": len(rows), **_figures(samples, clock, memory)}


def _figures(samples: Sequence[float], clock: Clock, memory: Memory | None) -> dict[str, Any]:
    flags = [*getattr(clock, "flags", ()), *(memory.flags if memory else ())]
    timed = {
        "time_s": statistics.median(samples),
        "samples_s": list(samples),
        "clock": clock.name,
        "flags": flags,
    }
    if memory is None:
        return timed
    return {**timed, "peak_bytes": memory.peak_bytes, "method": memory.method}


def few_samples(clock: Clock, fresh: Fresh, max_time_s: float) -> list[float]:
    """Seconds of two calls, of three where those are near the time asked for, of five if short."""
    taken: list[float] = []
    while not _decided(taken, max_time_s):
        taken += clock.samples(fresh.before, fresh.run, 1)
    return taken


def _decided(taken: Sequence[float], max_time_s: float) -> bool:
    if len(taken) < 2:
        return False
    if max(taken) < SHORT_S:
        return len(taken) >= MOST
    over = [seconds > max_time_s for seconds in taken]
    far = all(abs(seconds / max_time_s - 1) > CLEAR for seconds in taken)
    return len(taken) >= 3 or (far and len(set(over)) == 1)


class Fresh:
    """A variant's call in one phase, whose values change in place before each."""

    def __init__(self, problem: Problem, attend: Attend, inputs: Ends) -> None:
        self.problem, self.call = problem, Call(problem, attend, inputs)
        self._like = type(inputs)
        self._chance = torch.Generator(problem.device)
        self._chance.manual_seed(int.from_bytes(os.urandom(7)))
        self._dout: Tensor | None = None
        if problem.gradients:
            dense = torch.randn(problem.output_shape, generator=torch.Generator().manual_seed(1))
            self._dout = cast(dense, problem)
        self._out: Tensor | None = None
        self._gradients: Sequence[Tensor] = ()
        self._forward_first()

    @property
    def ends(self) -> Ends:
        """The values of the last call."""
        return self._like(*(leaf.detach() for leaf in self.call.leaves))

    def before(self) -> None:
        """Random signs on the channels: other scores and other outputs of the same kind."""
        self._out, self._gradients = None, ()
        with torch.no_grad():
            for x in (*self.call.leaves, *([] if self._dout is None else [self._dout])):
                signs = torch.empty_like(x[0, 0, 0]).bernoulli_(generator=self._chance)
                x.mul_(signs.mul_(2).sub_(1))
        self.call.remember()
        self._forward_first()

    def run(self) -> object:
        """What the clock sees."""
        if self.problem.phase != "backward":
            self._out = self.call.forward()
        if self._dout is not None:
            assert self._out is not None
            self._gradients = self.call.backward(self._out, self._dout)
        return self._out

    def hold(self) -> Callable[[], None]:
        """For a clock that replays a call: where the results of a replay lie."""
        out, gradients = self._out, self._gradients

        def put_back() -> None:
            self._out, self._gradients = out, gradients

        return put_back

    def results(self) -> dict[str, Tensor]:
        """Of the last call what a few rows of the upstream gradient decide: output and dq."""
        assert self._out is not None
        out = check_form(self.problem, self._out).detach().clone()
        made = dict(zip(self.call.names, self._gradients, strict=False))
        self._out, self._gradients = None, ()
        return {"forward": out} | {name: x for name, x in made.items() if name == "dq"}

    def dout_in(self, rows: Tensor) -> Tensor | None:
        """The upstream gradient of the last call, zero outside some rows."""
        if self._dout is None:
            return None
        some = torch.zeros_like(self._dout)
        some[:, :, rows] = self._dout[:, :, rows]
        return some

    def _forward_first(self) -> None:
        if self.problem.phase == "backward":
            self._out = self.call.forward()


def _refuse_without_room(problem: Problem, expected: int | None, *, exact: bool) -> None:
    """Raise where call or check would not fit what is free, rather than find out."""
    inputs, checked = mask_probe.room(problem, exact=True), mask_probe.room(problem, exact=exact)
    what = "it" if (expected or 0) > checked else "checking it"
    room.insist(inputs + max(expected or 0, checked), problem.device, what, "with")


def attention_map(
    variant: Variant, problem: Problem, vectors: list[list[float]]
) -> list[list[Any]]:
    """Weights [words, words] of self-attention over word vectors, without projections."""
    x = torch.tensor(vectors, dtype=getattr(torch, problem.dtype))
    x_bhnd = x[None, None].to(problem.device)
    words, width = x.shape
    attend = attend_of(variant, problem)
    columns = []
    with torch.no_grad():
        for start in range(0, words, width):
            v = torch.zeros(1, 1, words, width, dtype=x.dtype, device=problem.device)
            stop = min(start + width, words)
            v[0, 0, start:stop, : stop - start] = torch.eye(stop - start, dtype=x.dtype)
            columns.append(attend(x_bhnd, x_bhnd, v)[0, 0, :, : stop - start])
    weights = torch.cat(columns, 1).double()
    return [[w if isfinite(w) else None for w in row] for row in weights.tolist()]
