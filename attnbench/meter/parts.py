"""The parts that a row names, each timed apart on the judged values: what a whole call's time is
made of.

``attend.parts(q, k, v, **more)`` gives a function of the same inputs for each part, in the order of
the row's ``parts``; the last gives what ``attend`` does, from what the others made of these inputs.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import Attend
from attnbench.meter.timed import Repeated, Values, unlike
from attnbench.meter.timer import Ready, measure_time, prepare, warm_up
from impls.problem import Problem


class PartCall(Repeated):
    """A part of a call, with its backward pass where it has one."""

    def __init__(self, problem: Problem, function: Attend, values: Values) -> None:
        super().__init__(problem, function, values)
        self._inputs = values.inputs

    def before(self) -> None:
        """The judged values, anew."""
        self.settle()
        self.call.load(self._inputs)

    def run(self) -> Tensor:
        """What the clock sees."""
        self._out = self.call.forward()
        if self._dout is not None and self._out.requires_grad:
            self._gradients = self.call.backward(self._out, self._dout)
        return self._out


def time_parts(ready: Ready, budget_s: float) -> dict[str, float]:
    """The median seconds of each part; a backward pass alone has none. Raises :class:`Wrong` where
    the last part gives something else than the whole.
    """
    names, problem, seconds = ready.job.variant.parts, ready.job.problem, dict[str, float]()
    if not names or problem.phase == "backward":
        return seconds
    by_place, by_name = ready.values.inputs.arguments
    functions = ready.attend.parts(*by_place, **by_name)  # type: ignore[attr-defined]
    for name, function in zip(names, functions, strict=True):
        part, clock = PartCall(problem, function, ready.values), ready.clock()
        prepare(clock, part)
        warm_up(part, clock, budget_s / 4)
        seconds[name] = measure_time(part, clock, budget_s, []).median_s
    part.before()
    out, truth = {"forward": part.run()}, ready.verdict.truth[:1]
    if (changed := unlike(problem, out, truth, ready.verdict.zero)) is not None:
        raise Wrong(f"while its parts were timed {changed}")
    return seconds
