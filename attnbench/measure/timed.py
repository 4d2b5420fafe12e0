"""What is timed: fresh values for every call, and every call's result held against what is right.

For exact softmax the values are fresh for nothing: random signs on the channels of q and k leave
every score as it is, to the last bit, and signs on the channels of v come out on the channels of
the output. So each call sees inputs that no call saw before, at the same addresses, and what must
come out is known. Gradients follow by the same signs. Others take two sets of inputs in turn, and
must return for each what they returned when they were judged; with signs on the channels of v,
where those come out on the output's, as they do of nearly every operator.

Nothing here waits for the device: deviations are gathered on it and read at the end. A result is
copied the moment that it is there, so that nobody can fill it in afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.truth.budget import EPSILON
from attnbench.truth.call import Attend, Call
from attnbench.truth.findings import Wrong
from attnbench.truth.hygiene import check_form
from attnbench.truth.inputs import Ends, Inputs, other_set
from impls.problem import Problem

WORDS = {"forward": "output"}
SAME = {"float64": 16.0, "float32": 4.0, "bfloat16": 1.0, "float16": 1.0}
"""How far results of one call may lie from another's, in spacings of the dtype: a kernel that adds
in whatever order its blocks finish is not bit for bit repeatable."""


class Values(NamedTuple):
    """What one call is given."""

    inputs: Ends
    dout: Tensor | None


def _drawer(device: torch.device) -> torch.Generator:
    """Chance of the ruler's own: torch's may be seeded by anybody."""
    generator = torch.Generator(device)
    generator.manual_seed(int.from_bytes(os.urandom(7)))
    return generator


class Signs:
    """The same values under signs that no call has seen."""

    def __init__(self, values: Values, truth: Sequence[Tensor]) -> None:
        self._values, self._truth = values, truth
        assert isinstance(values.inputs, Inputs)
        q, _, v = self._inputs = values.inputs
        self._qk, self._v = torch.ones_like(q[0, 0, 0]), torch.ones_like(v[0, 0, 0])
        self._chance = _drawer(q.device)

    def draw(self) -> Values:
        """New signs."""
        for signs in (self._qk, self._v):
            signs.bernoulli_(generator=self._chance).mul_(2).sub_(1)
        (q, k, v), dout = self._inputs, self._values.dout
        fresh = Inputs(q * self._qk, k * self._qk, v * self._v)
        return Values(fresh, None if dout is None else dout * self._v)

    def wanted(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """The truth under the signs drawn last."""
        signs = (self._v, self._qk, self._qk, self._v)
        return [tensor * sign for tensor, sign in zip(self._truth, signs, strict=False)]


class Turns:
    """Two sets of values in turn; each must give what it gave when it was judged."""

    def __init__(self, values: Values, truth: Sequence[Tensor],
                 second: Sequence[Tensor] | None = None) -> None:  # fmt: skip
        self._sets = (values, Values(other_set(values.inputs), values.dout))
        self._first: list[Sequence[Tensor] | None] = [truth, second]
        self._judged = second is not None
        self._turn = 0
        self._signs: Tensor | None = None
        self._chance = _drawer(values.inputs[0].device)

    def sign_values(self) -> None:
        """From now on v comes under signs that no call has seen, and the output with them."""
        inputs = self._sets[0].inputs
        assert isinstance(inputs, Inputs)
        self._signs = torch.ones_like(inputs.v[0, 0, 0])

    def leave_signs(self) -> None:
        """The values as they were."""
        self._signs = None

    def draw(self) -> Values:
        """The other set."""
        self._turn = 1 - self._turn
        inputs, dout = self._sets[self._turn]
        if self._signs is None or not isinstance(inputs, Inputs):
            return self._sets[self._turn]
        self._signs.bernoulli_(generator=self._chance).mul_(2).sub_(1)
        dout = None if dout is None else dout * self._signs
        return Values(inputs._replace(v=inputs.v * self._signs), dout)

    def wanted(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """What this set gave at first, under the signs drawn last."""
        if (first := self._first[self._turn]) is None:
            first = self._first[self._turn] = [x.clone() for x in results]
        if self._signs is None:
            return first
        on = (True, False, False, True)  # the output and dv
        return [x * self._signs if s else x for x, s in zip(first, on, strict=False)]

    @property
    def judged(self) -> bool:
        """Whether somebody judged what both sets give."""
        return self._judged

    def alike(self) -> bool:
        """Whether both sets gave the same, though their values differ and nobody judged that."""
        a, b = self._first
        if self._judged:
            return False
        differ = not torch.equal(self._sets[0].inputs[-1], self._sets[1].inputs[-1])
        return differ and a is not None and b is not None and torch.equal(a[0], b[0])


class Timed:
    """A variant's call in one phase, ready to be timed: what goes before, and what counts."""

    def __init__(self, problem: Problem, attend: Attend, values: Values, truth: Sequence[Tensor],
                 *, exact: bool, second: Sequence[Tensor] | None = None,
                 zero: Collection[str] = ()) -> None:  # fmt: skip
        """``truth``: output and gradients as they were judged, and ``second`` those of the other
        set; ``zero``: those that only round.
        """
        self.problem = problem
        self.call = Call(problem, attend, values.inputs)
        self._dout = None if values.dout is None else values.dout.clone()
        self.fresh: Signs | Turns = Signs(values, truth) if exact else Turns(values, truth, second)
        self._zero = zero
        self._names = ("forward", *self.call.names)
        self._off = torch.zeros(len(self._names), dtype=torch.float64, device=truth[0].device)
        self._form: str | None = None
        self._out: Tensor | None = None
        self._gradients: Sequence[Tensor] = ()
        self._given: Values | None = None
        self.unseen: tuple[Values, list[Tensor]] | None = None
        """The values that :meth:`load` put last, and what came of them: output and gradients."""
        self.names = tuple(name for name in self._names if name not in zero)
        """Output and gradients, but those that only round."""
        self._chance = _drawer(truth[0].device)

    def try_signs(self) -> None:
        """Whether signs on v come out on the output: then every call gets its own."""
        turns = self.fresh
        if self.problem.level != "core" or not isinstance(turns, Turns) or not turns.judged:
            return
        turns.sign_values()
        off, form = self._off.clone(), self._form
        self.before()
        self.run()
        self.settle()
        if self.wrong() is not None:
            turns.leave_signs()
        self._off, self._form = off, form

    def before(self) -> None:
        """Hold the last result against what is right, and put fresh values in its place."""
        self.settle()
        self._take(self.fresh.draw())

    def load(self, values: Values) -> None:
        """Put these values there, for a call whose result is kept and held against nothing yet.

        Signs on the upstream gradient are drawn only after a forward pass that is not timed: it
        can't have prepared what nobody knew.
        """
        self.settle()
        self._take(values)
        if self._dout is not None:
            signs = torch.empty_like(self._dout).bernoulli_(generator=self._chance)
            self._dout.mul_(signs.mul_(2).sub_(1))
        self._given = Values(values.inputs, None if self._dout is None else self._dout.clone())

    def _take(self, values: Values) -> None:
        self.call.load(values.inputs)
        if self.problem.phase == "backward":
            self._out = self.call.forward()
        if self._dout is not None and values.dout is not None:
            self._dout.copy_(values.dout)

    def run(self) -> object:
        """What the clock sees."""
        if self.problem.phase != "backward":
            self._out = self.call.forward()
        if self.problem.gradients:
            assert self._out is not None and self._dout is not None
            self._gradients = self.call.backward(self._out, self._dout)
        return self._out

    def hold(self) -> Callable[[], None]:
        """A step that puts the last call's results back where :meth:`settle` looks for them.

        For a clock that replays a call without running any of its Python.
        """
        out, gradients = self._out, self._gradients

        def put_back() -> None:
            self._out, self._gradients = out, gradients

        return put_back

    def settle(self) -> None:
        """Take the last result in, outside the clock."""
        if self._out is None:
            return
        try:
            out = check_form(self.problem, self._out).detach().clone()  # as it is at this moment
            results = [out, *self._gradients]
            if self._given is not None:
                self.unseen, self._given = (self._given, results), None
                self._out, self._gradients = None, ()
                return
            if len(results) != len(self._names) and self.problem.gradients:
                raise Wrong("its weights are not those that it had when it was judged")
        except Wrong as wrong:
            self._form = str(wrong)
        else:
            for i, (got, want) in enumerate(zip(results, self.fresh.wanted(results), strict=True)):
                self._off[i] = torch.maximum(self._off[i], _deviation(got, want))
        self._out, self._gradients = None, ()

    def wrong(self) -> str | None:
        """None where every timed call gave what it should, else a sentence."""
        if self._form is not None:
            return f"while it was timed, {self._form}"
        if isinstance(self.fresh, Turns) and self.fresh.alike():
            return "while it was timed it returned the same result for other inputs"
        off = dict(zip(self._names, self._off.tolist(), strict=True))
        changed = _changed(self.problem.dtype, off, self._zero)
        return None if changed is None else f"while it was timed {changed}"


def unlike(problem: Problem, results: Mapping[str, Tensor], truth: Sequence[Tensor],
           zero: Collection[str]) -> str | None:  # fmt: skip
    """How one call's output and gradients differ from what they were when they were judged."""
    try:
        check_form(problem, results["forward"])
    except Wrong as wrong:
        return str(wrong)
    off = {
        name: float(_deviation(got.detach(), want))
        for (name, got), want in zip(results.items(), truth, strict=True)
    }
    return _changed(problem.dtype, off, zero)


def _changed(dtype: str, off: Mapping[str, float], zero: Collection[str]) -> str | None:
    for name, far in off.items():
        if name not in zero and not far <= SAME[dtype] * EPSILON[dtype]:
            return (
                f"its {WORDS.get(name, name)} was not what it was when it was judged "
                f"(off by {far:.2g}, relative)"
            )
    return None


def _deviation(got: Tensor, want: Tensor) -> Tensor:
    """The relative Frobenius distance, as a tensor: reading it would wait for the device."""
    wide = torch.float64 if got.dtype == torch.float64 else torch.float32
    away = torch.linalg.vector_norm(got - want, dtype=wide)
    size = torch.linalg.vector_norm(want, dtype=wide)
    return torch.where(away == 0, away, away / size).double()
