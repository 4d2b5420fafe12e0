"""Light looks at a call: whether a variant takes a problem, how fast, in how much memory, and
right; and its weights on word vectors.

A probe is much less than a cell, for lengths where a cell would take minutes: a first call, a few
timed calls, each on values that no call saw before at the same addresses, one call under the memory
meter, and a few rows, drawn when all was computed, compared with what they should be. It is for
variants that have passed the whole gate on the same problem at a length where that is cheap. A call
that takes more than the time given is not observed: its memory does not matter any more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import isfinite
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attnbench.core.device import device_for
from attnbench.core.record import Error, Probed, Status
from attnbench.core.wire import Job, convert, plain
from attnbench.gate import budget, watch
from attnbench.gate.hygiene import check_finite, outputs_among, values_of
from attnbench.gate.inputs import Attend, Inputs, as_rows, cast, make
from attnbench.gate.oracle import EDGES, compare
from attnbench.gate.reference import Defines, Reference, Tensors, axes_of, defined, of_rows
from attnbench.meter import memory
from attnbench.meter.clocks import Clock, clock_for
from attnbench.meter.endings import refused
from attnbench.meter.ranks import attend_of, define_of
from attnbench.meter.timed import Repeated, Values, secret_generator, signs_like
from attnbench.meter.timer import TimeSpent, prepare
from impls.loading import load_function
from impls.operators import inputs as inputs_of
from impls.problem import Problem
from impls.spec import Unsupported, Variant

ROWS = 16  # how many rows are judged
MOST, SHORT_S = 5, 0.05  # how many samples are taken of a call shorter than this
CLEAR = 0.15
"""Two samples that lie further than this from the time given decide; else there is a third."""


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """To ``{"probe": job, "max_time_s": …, "expected": bytes or null}``."""
    job = convert(question["probe"], Job)
    result = probe(job, question["max_time_s"], question["expected"])
    spoiled = result.status is Status.WRONG or not device_for(job.problem.device).works()
    spoiled |= bool(job.variant.swaps)  # whether torch's kernels are back is not checked
    return {"probe": plain(result), "spoiled": spoiled}


def probe(job: Job, max_time_s: float, expected: int | None = None) -> Probed:
    """Look at one problem; whatever happens short of the process dying is an answer."""
    spent = TimeSpent()
    device_for(job.problem.device).begin()
    try:
        fields = _look(job, max_time_s, expected or 0, spent)
    except Exception as error:
        fields = refused(error)
    return Probed(**fields, spent_s=spent.closed())


def _look(job: Job, max_time_s: float, expected: int, spent: TimeSpent) -> dict[str, Any]:
    variant, problem = job.variant, job.problem
    if (refusal := variant.supports(problem)) is not None:
        raise Unsupported(refusal)
    checked = room(problem, exact=variant.definition is None)
    need = room(problem, exact=True) + max(expected, checked)
    device = device_for(problem.device)
    memory.check_room(need, device, "it" if expected > checked else "checking it", "with")
    before = watch.snapshot()
    with spent.on("setup"):
        attend: Attend = load_function(variant.build)(problem, **variant.chosen)
    before = watch.allowing(before, variant.swaps)
    with spent.on("inputs"):
        fresh = Fresh(
            problem, attend, make(problem, job.seed, inputs_of(variant.operator, problem))
        )
    with spent.on("first"):
        rise = memory.growth(fresh.run, device)
    with spent.on("timing"):
        clock = clock_for(problem.device, problem.phase)
        prepare(clock, fresh)
        samples = few_samples(clock, fresh, max_time_s)
    results, rows = fresh.results(), secret_rows(problem, ROWS)
    dout = fresh.dout_in(rows)
    time_s, view = median(samples), None
    if time_s <= max_time_s:
        with spent.on("memory"):
            view = memory.observe(problem, attend, fresh.inputs, dout, expected or None, rise)
    with spent.on("checking"):
        define = define_of(variant, problem, attend)
        truth = expected_of(problem, fresh.inputs, rows, dout, define, job.seed)
        check_rows(problem, results, truth)
        if view is not None:
            seen = {**view.results, **outputs_among(problem, view.results)}
            check_rows(problem, {n: x.detach() for n, x in seen.items()}, truth)
        watch.check(before)
    fields = {"status": Status.MEASURED, "rows": len(rows), "time_s": time_s, "samples_s": samples}
    flags, peak = [*clock.flags], dict[str, Any]()
    if view is not None:
        flags += view.memory.flags
        peak = {"peak_bytes": view.memory.peak_bytes, "method": view.memory.method}
    return {**fields, "clock": clock.name, "flags": flags, **peak}


LOOSER = 4.0
"""How much more is allowed than by the gate, since one row weighs more among 16 than among 256: the
first, which sees itself alone, has next to no gradient but all of its rounding."""
FROM_FLOAT64 = 4
"""How many float64 copies of a definition's inputs may exist at once; as many of its gradients."""


def secret_rows(problem: Problem, count: int) -> Tensor:
    """Some rows that were not known when the output was made, and the edges."""
    edges = {edge % problem.q_len for edge in EDGES}
    numbers = random.SystemRandom().sample(range(problem.q_len), min(count, problem.q_len))
    rest = [row for row in numbers if row not in edges][: max(0, count - len(edges))]
    return torch.tensor(sorted({*edges, *rest}), device=problem.device)


def expected_of(
    problem: Problem,
    inputs: Inputs,
    rows: Tensor,
    dout: Tensor | None,
    define: Defines | None,
    seed: int,
) -> Reference:
    """The truth in those rows, outside of which ``dout`` is zero; ``define``: of no softmax."""
    if define is None:
        return of_rows(problem, inputs, rows, dout, seed)[0]
    return defined(problem, inputs, Reference(rows, dout), define)


def check_rows(problem: Problem, got: Tensors, expected: Reference) -> None:
    """Raise :class:`Wrong` where output or gradients are beyond the budgets.

    ``got``: whole tensors, as a call returned them; only those are checked.
    """
    for name, tensor in got.items():
        part = as_rows(tensor, axes_of(name, expected.specs))
        check_finite("the output" if name == "forward" else name, part)
    errors = {name: compare(expected.of(name, x), expected.want[name]) for name, x in got.items()}

    def looser(plain: Error) -> Error:
        relative, worst_row = (x and LOOSER * x for x in (plain.relative, plain.worst_row))
        return plain.with_(relative=relative, worst_row=worst_row)

    budget.check_all(errors, expected, problem.dtype, looser)


def room(problem: Problem, *, exact: bool) -> int:
    """Bytes that such a check takes at most, roughly."""
    keys = problem.batch * problem.kv_heads * problem.kv_len
    queries = problem.batch * problem.heads * problem.q_len
    doubles = 8 * (keys + queries) * (problem.head_dim + problem.v_head_dim)
    copies = 0 if exact else FROM_FLOAT64
    return doubles * max(1, copies + (FROM_FLOAT64 if problem.gradients else 0))


def few_samples(clock: Clock, fresh: Fresh, max_time_s: float) -> list[float]:
    """Seconds of two calls, of three if they are near the time given, of five if they are short."""
    taken: list[float] = []
    while True:
        taken += clock.samples(fresh.before, fresh.run, 1)
        over = {seconds > max_time_s for seconds in taken}
        far = all(abs(seconds / max_time_s - 1) > CLEAR for seconds in taken)
        decided = len(taken) >= 3 or (len(taken) == 2 and far and len(over) == 1)
        if len(taken) >= MOST or (decided and max(taken) >= SHORT_S):
            return taken


class Fresh(Repeated):
    """A variant's call on values that get random signs before each call."""

    def __init__(self, problem: Problem, attend: Attend, inputs: Inputs) -> None:
        dout = None
        if problem.gradients:
            dense = torch.randn(problem.output_shape, generator=torch.Generator().manual_seed(1))
            dout = cast(dense, problem)
        super().__init__(problem, attend, Values(inputs, dout))
        self._chance = secret_generator(problem.device)
        self._forward_first()

    @property
    def inputs(self) -> Inputs:
        """The values of the last call."""
        return self.call.leaves.map(Tensor.detach)

    def before(self) -> None:
        """Random signs on the channels: other scores and other outputs of the same kind."""
        self.settle()
        with torch.no_grad():
            upstream = [] if self._dout is None else [self._dout]
            for x in [*self.call.leaves.drawn_as("normal", "unit").values(), *upstream]:
                x.mul_(signs_like(x[(0,) * (x.dim() - 1)], self._chance))
        self.call.remember()
        self._forward_first()

    def results(self) -> dict[str, Tensor]:
        """Outputs and dq of the last call, which a few rows of the upstream gradient determine."""
        assert self._out is not None
        outputs = values_of(self.call, self._out)
        results = {name: x.detach().clone() for name, x in outputs.items()}
        for name, gradient in zip(self.call.names, self._gradients, strict=False):
            if name == "dq":
                results[name] = gradient
        self.settle()
        return results

    def dout_in(self, rows: Tensor) -> Tensor | None:
        """The upstream gradient of the last call, zero outside some rows."""
        if self._dout is None:
            return None
        some = torch.zeros_like(self._dout)
        some[:, :, rows] = self._dout[:, :, rows]
        return some


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
