"""The gate: nothing is timed that has not passed it.

In this order: mask truth, form and finiteness, error against what the variant should compute, and
for a variant that computes something else its distance from softmax attention.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnbench.core.record import Distance, Error
from attnbench.gate import budget, hygiene, mask_probe
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import Attend, Call, as_rows, in_sight, other_set
from attnbench.gate.oracle import Errors, compare
from attnbench.gate.reference import (
    Defines,
    Judged,
    Reference,
    Tensors,
    axes_of,
    defined,
    differentiated,
    wide,
)
from attnbench.gate.selection import OnPicks

ROWS_AGAIN = 16
"""How many rows of another set of inputs are compared with a variant's own definition."""
TWO_STEPS = 16.0
"""Spacings by which a decoder's second step may differ from one from a fresh memory, and a gradient
after another call from one without."""


@dataclass
class GateVerdict:
    """The result of the gate. ``reason`` is None where the variant passed."""

    reason: str | None = None
    error: dict[str, Error] = field(default_factory=dict)
    distance: Distance | None = None
    second: list[Tensor] | None = None
    """``truth`` of another set of inputs, where the variant does not compute exact softmax."""
    plain: Errors = field(default_factory=dict)
    """The plain form's errors of output and gradients: the yardstick for other values."""
    zero: tuple[str, ...] = ()
    """Gradients that are zero in truth: a variant's are rounding, and differ from call to call."""
    truth: list[Tensor] = field(default_factory=list)
    """Output and gradients, if any, under the dense upstream: what timed calls must return."""


def gate(
    judged: Judged,
    attend: Attend,
    define: Defines | None,
    seed: int,
    *,
    reuses_output: bool = False,
    one_graph: bool = False,
    announce: hygiene.Announce | None = None,
) -> GateVerdict:
    """Judge a variant. ``define`` is its own definition; None for exact softmax.

    ``reuses_output``: its row says that a later call may overwrite an output. ``one_graph``: only
    the last call's gradients can be had, as over several processes. ``announce`` gets a sentence
    for the case that the process dies; without it no call is made that risks that.
    """
    problem, inputs = judged.problem, judged.inputs
    verdict = GateVerdict()
    try:
        threads = hygiene.counted_threads()
        hygiene.check_weights(problem, attend, define)
        repeat = hygiene.RepeatedCall(problem, attend, inputs, one_graph=one_graph)
        mild = mask_probe.mild(problem, seed, inputs.specs)
        hygiene.check_inputs_kept(repeat.call, inputs)
        pages = hygiene.Pages(announce)
        mild_call, out = hygiene.check_nothing_goes_on(problem, attend, mild, pages=pages)
        mask_probe.probe(mild_call, out, mild, seed, pages, exact=define is None)
        reference = judged.softmax
        if define is not None:
            reference = defined(problem, inputs, reference, define)
        verdict.zero, verdict.plain = tuple(reference.cancels), reference.plain
        if not reuses_output:
            repeat.check_output()
        call = repeat.call
        tensors = results(call, reference.dout, repeat.first)
        try:
            check_values(judged, call, tensors, reference, verdict)
        except Wrong:
            most = TWO_STEPS * budget.EPSILON[problem.dtype]
            repeat.check_gradients(tensors, reference.dout, most, verdict.zero)
            raise
        verdict.truth = _dense_truth(judged, call, tensors, reference, define)
        if define is not None:
            verdict.second = _on_another_set(judged, call, reference, define)
            if judged.mean is not None:
                verdict.distance = _distance(judged, judged.mean(), verdict.truth[0], define)
        hygiene.check_nothing_left(threads)
    except Wrong as wrong:
        verdict.reason = str(wrong)
    return verdict


def check_values(
    judged: Judged,
    call: Call,
    tensors: Tensors,
    reference: Reference,
    verdict: GateVerdict | None = None,
) -> None:
    """Compare what a call made, whose errors go into the verdict. Raises :class:`Wrong` where they
    are beyond their budget.
    """
    rated, dtype = verdict is not None, judged.problem.dtype
    verdict = verdict or GateVerdict()
    for name, want in reference.want.items():
        error = compare(reference.of(name, tensors[name]), want)
        if name in reference.cancels:  # a share of nothing says nothing
            error = error.with_(relative=None, worst_row=None, cosine=None)
        verdict.error[name] = error
    for name, tensor in tensors.items():
        part = as_rows(tensor, axes_of(name, reference.specs))
        hygiene.check_finite("the output" if name == "forward" else name, part)
    hygiene.check_inputs_kept(call, judged.inputs)
    hygiene.check_bits(call)
    hygiene.check_memory_kept(call, TWO_STEPS * budget.EPSILON[dtype])
    if rated:
        for name, error in verdict.error.items():
            verdict.error[name] = budget.with_ratio(error, reference.plain[name])
    budget.check_all(verdict.error, reference, dtype)


def results(call: Call, dout: Tensor | None, first: hygiene.FirstCall | None = None) -> Tensors:
    """Output and gradients of one call, by name; none is that of a later call.

    ``first``: the call's output if it was made before.
    """
    if first is None or (dout is not None and not first.graph):
        first = hygiene.FirstCall.of(call, graph=True)
    tensors = {n: x if n == "forward" else in_sight(x) for n, x in first.at_once.items()}
    if dout is not None:
        gradients = call.backward(first.outputs["forward"], dout)
        tensors |= zip(call.names, (x.clone() for x in gradients), strict=True)
    return tensors


def _dense_truth(
    judged: Judged, call: Call, tensors: Tensors, reference: Reference, define: Defines | None
) -> list[Tensor]:
    """Output and gradients under a gradient into every row, compared with the plain form where
    ``tensors`` are those of the judged rows alone.
    """
    if judged.dout is not reference.dout:
        tensors = results(call, judged.dout)
    if define is None:
        for name, want in (judged.whole or {}).items():
            if name not in reference.cancels:
                plain, dtype = reference.plain[name], judged.problem.dtype
                part = as_rows(tensors[name], axes_of(name, reference.specs))
                budget.check_unsampled(name, part, want, plain, dtype)
    return list(tensors.values())


def _on_another_set(
    judged: Judged, call: Call, reference: Reference, define: Defines
) -> list[Tensor]:
    """Output and gradients of the same tensors filled with other values.

    Some rows are checked, which were not known when the output was made.
    """
    problem, other = judged.problem, other_set(judged.inputs)
    call.load(other)
    tensors = results(call, judged.dout)
    numbers = random.SystemRandom().sample(range(problem.q_len), min(ROWS_AGAIN, problem.q_len))
    few = torch.tensor(sorted(numbers), device=problem.device)
    want = differentiated(problem, wide(other), few, None, define)["forward"]
    error = compare(tensors["forward"][:, :, few], want)
    cancels = reference.cancels.get("forward")
    yardstick = budget.Yardstick(reference.plain["forward"], reference.tried, cancels)
    budget.check("forward", error, yardstick, problem.dtype, few)
    return list(tensors.values())


def _distance(judged: Judged, mean: Tensor, out: Tensor, define: Defines) -> Distance:
    want, rows = judged.softmax.want["forward"], judged.softmax.rows
    far = compare(out[:, :, rows], want)
    trivial = compare(mean, want).relative
    skill = None  # where the mean is the answer there is none
    if far.relative is not None and trivial and trivial > budget.EPSILON[judged.problem.dtype]:
        skill = 1.0 - far.relative / trivial
    kept = define.kept(judged.inputs, rows) if isinstance(define, OnPicks) else None
    measures = {n: getattr(far, n) for n in ("relative", "max", "worst_row", "cosine")}
    return Distance(**measures, skill=skill, kept=kept)
