"""Whether the same values give the same bits: over calls, and alone or among others in a batch.

A fact about a variant and no fault. Kernels that add in whatever order their blocks finish differ
from call to call; those that choose another tiling for another batch give a batch element other
bits than it would get alone. Output and gradients are compared bit for bit, on values at the same
addresses. For what depends on the batch the variant is built anew for one element and for two. A
weight's gradient is a sum over the batch, so it is compared over calls alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnbench.core.format import duration
from attnbench.core.record import Determinism
from attnbench.gate.inputs import Attend, Call, Inputs, other_set
from attnbench.meter.ranks import attend_of
from attnbench.meter.timed import Values
from impls.operators import outputs as outputs_of
from impls.problem import Problem
from impls.spec import Variant

CALLS = 3  # how often the same values are given

Results = Callable[[], list[Tensor]]
"""A call on values that stay: its outputs and gradients, in the order of ``Call.names``."""


def try_determinism(
    problem: Problem,
    variant: Variant,
    attend: Attend,
    values: Values,
    *,
    setup_s: float = 0.0,
    most_s: float = math.inf,
) -> Determinism:
    """What can be found out; ``setup_s`` is what building and the first call took. A variant that
    took longer than ``most_s`` is not built again for the batch.

    What raises leaves the rest unknown, with the reason.
    """
    result = Determinism()
    try:
        results = _calls(problem, attend, values)
        if not _repeats(results):
            why = "its results differ from call to call, so nothing can be said about the batch"
            return Determinism(repeats=False, why=why)
        result = Determinism(repeats=True)
        if setup_s > most_s:
            return result.with_(why=f"building took {duration(setup_s)}")
        batch, place = _across_batches(problem, variant, attend, values)
        return result.with_(batch=batch, place=place)
    except Exception as error:
        what = "for another batch it can't be tried" if result.repeats else "trying it raised"
        first, *_ = [*str(error).strip().splitlines(), type(error).__name__]
        return result.with_(why=f"{what}: {first}")


def _calls(problem: Problem, attend: Attend, values: Values) -> Results:
    call, dout = Call(problem, attend, values.inputs), values.dout

    def results() -> list[Tensor]:
        out = call.forward()
        outputs = [x.detach() for x in (out, *call.besides.values())]
        if not problem.gradients:
            return outputs
        assert dout is not None
        return [*outputs, *call.backward(out, dout)]

    return results


def _repeats(results: Results) -> bool:
    first = [x.clone() for x in results()]
    return all(_same(first, results()) for _ in range(CALLS - 1))


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether the bits are the same: -0 is not 0, and a NaN equals itself."""
    pairs = zip(one, other, strict=True)
    return all(torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in p)) for p in pairs)


def _across_batches(
    problem: Problem, variant: Variant, attend: Attend, values: Values
) -> tuple[bool, bool]:
    """Whether an element gets the same bits alone as among others, and at each place."""
    inputs, dout = values.inputs, values.dout
    alone = inputs.along(lambda x, axis: x.narrow(axis, 0, 1), "batch")
    first = Values(alone, None if dout is None else dout[:1])
    second = Values(other_set(alone), None if first.dout is None else first.dout.flip(2))

    def bits(number: int, *elements: Values) -> list[Tensor]:
        """Of one of some batch elements: its part of the outputs and of the inputs' gradients."""
        n = len(elements)
        built = attend if problem.batch == n else attend_of(variant, problem.with_(batch=n))
        together = {
            name: torch.cat([e.inputs[name] for e in elements], axis) if axis is not None else x
            for name, x in alone.items()
            for axis in [inputs.axis(name, "batch")]
        }
        douts = [e.dout for e in elements if e.dout is not None]
        joined = Values(Inputs(together, inputs.specs), torch.cat(douts) if douts else None)
        results = _calls(problem.with_(batch=n), built, joined)()
        many = 1 + len(outputs_of(problem))
        outputs, gradients = results[:many], results[many:]
        names = [name for name in inputs if inputs.specs[name].gradient]
        parts = zip(names, gradients[: len(names)], strict=False)
        of_inputs = [x for name, x in parts if inputs.axis(name, "batch") is not None]
        return [x[number].clone() for x in (*outputs, *of_inputs)]

    among = bits(0, first, second)
    return _same(bits(0, first), among), _same(among, bits(1, second, first))
