"""Whether the same values give the same bits: over calls, alone or among others, wherever they are.

A fact about a variant and no fault. Kernels that add in whatever order their blocks finish differ
from call to call; those that choose another tiling for another batch give a batch element other
bits than it would get alone. Output and gradients are held against each other bit for bit, on
values at the same addresses. For what depends on the batch the variant is built anew for one
element and for two. A weight's gradient is a sum over the batch, so it is held against itself over
calls alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from attnbench.core.record import Determinism
from attnbench.gate.inputs import Attend, Call, Ends, other_set
from attnbench.meter.ranks import attend_of
from attnbench.meter.timed import Values
from impls.problem import Problem
from impls.spec import Variant

CALLS = 3
"""How often the same values are given."""
TURNS = 5
"""Calls with and without torch's deterministic mode, in turn, for what the mode costs."""
MOST_SETUP_S = 0.3
"""What was dearer than this to build is not built again for the batch."""


def try_determinism(
    problem: Problem,
    variant: Variant,
    attend: Attend,
    values: Values,
    *,
    setup_s: float = 0.0,
    most_setup_s: float = MOST_SETUP_S,
) -> Determinism:
    """All that can be said; ``setup_s`` is what building and the first call took.

    Nothing is refused for it: what raises here leaves the rest unsaid, with the reason.
    """
    found = Determinism()
    try:
        call = _Given(problem, attend, values)
        if not call.repeats():
            return _under_the_mode(call)
        found = Determinism(repeats=True)
        if setup_s > most_setup_s:
            return found.with_(why=f"building took {setup_s:.1f} s")
        return _across_batches(problem, variant, attend, values, found)
    except Exception as error:
        what = "for another batch it can't be tried" if found.repeats else "trying it raised"
        return found.with_(why=f"{what}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _Given:
    """A variant's call on values that stay."""

    def __init__(self, problem: Problem, attend: Attend, values: Values) -> None:
        self.problem = problem
        self.call = Call(problem, attend, values.inputs)
        self._dout = values.dout

    def __call__(self) -> list[Tensor]:
        """Output and gradients, in the order of ``Call.names``."""
        out = self.call.forward()
        if not self.problem.gradients:
            return [out.detach()]
        assert self._dout is not None
        return [out.detach(), *self.call.backward(out, self._dout)]

    def repeats(self) -> bool:
        """Whether some calls give the same bits."""
        first = [x.clone() for x in self()]
        return all(_same(first, self()) for _ in range(CALLS - 1))

    def element(self, number: int) -> list[Tensor]:
        """What one batch element got: its part of the output and of the inputs' gradients."""
        return [x[number].clone() for x in self()[: 1 + len(self.call.leaves)]]

    def seconds(self) -> float:
        """What a call takes."""
        start = perf_counter()
        self()
        if self.problem.device != "cpu":
            torch.cuda.synchronize(self.problem.device)
        return perf_counter() - start


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(_bits(a), _bits(b)) for a, b in zip(one, other, strict=True))


def _bits(x: Tensor) -> Tensor:
    """The bits themselves: minus nought is not nought, and what is no number equals itself."""
    return x.contiguous().flatten().view(torch.uint8)


def _across_batches(
    problem: Problem, variant: Variant, attend: Attend, values: Values, found: Determinism
) -> Determinism:
    one, two = problem.with_(batch=1), problem.with_(batch=2)
    first = _part(values)
    second = Values(other_set(first.inputs), None if first.dout is None else first.dout.flip(2))
    alone = attend if problem.batch == 1 else attend_of(variant, one)
    among = attend if problem.batch == 2 else attend_of(variant, two)
    single = _Given(one, alone, first).element(0)
    front = _Given(two, among, _pair(first, second)).element(0)
    back = _Given(two, among, _pair(second, first)).element(1)
    return found.with_(batch=_same(single, front), place=_same(front, back))


def _part(values: Values) -> Values:
    """The first batch element."""
    inputs: Ends = type(values.inputs)(*(x[:1] for x in values.inputs))
    return Values(inputs, None if values.dout is None else values.dout[:1])


def _pair(first: Values, second: Values) -> Values:
    both = zip(first.inputs, second.inputs, strict=True)
    inputs: Ends = type(first.inputs)(*(torch.cat(pair) for pair in both))
    if first.dout is None or second.dout is None:
        return Values(inputs, None)
    return Values(inputs, torch.cat([first.dout, second.dout]))


def _under_the_mode(call: _Given) -> Determinism:
    """Of what does not repeat: whether torch's deterministic mode helps, and what it costs."""
    why = "its results differ from call to call, so nothing can be said of the batch"
    found = Determinism(repeats=False, why=why)
    try:
        with _mode():
            repeats = call.repeats()
    except RuntimeError as error:
        why += f"; under torch's deterministic mode: {_first_line(error)}"
        return found.with_(why=why)
    without, under = [], []
    for _ in range(TURNS):
        without.append(call.seconds())
        with _mode():
            under.append(call.seconds())
    return found.with_(mode_repeats=repeats, mode_cost=median(under) / median(without))


@contextmanager
def _mode() -> Iterator[None]:
    """torch's deterministic mode, and afterwards whatever stood before."""
    was = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)
