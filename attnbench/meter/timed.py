"""A variant's call that is timed: fresh values before each, and every result compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.gate.budget import EPSILON
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import outputs_among, values_of
from attnbench.gate.inputs import Attend, Call, Inputs, other_set, upstream_besides
from impls.operators import OUTPUT, OUTPUT_AXES, Signs
from impls.problem import Problem

WORDS = {"forward": "output"}
SAME = {"float64": 16.0, "float32": 4.0, "bfloat16": 1.0, "float16": 1.0}
"""How far results of one call may lie from another's, in spacings of the dtype: a kernel that adds
in whatever order its blocks finish is not bit for bit repeatable."""


class Values(NamedTuple):
    """What one call is given."""

    inputs: Inputs
    dout: Tensor | None


def secret_generator(device: str | torch.device) -> torch.Generator:
    """A generator with a random seed: a variant may seed torch's own."""
    return torch.Generator(device).manual_seed(int.from_bytes(os.urandom(7)))


def signs_like(x: Tensor, chance: torch.Generator) -> Tensor:
    """Random signs of a tensor's shape."""
    return torch.empty_like(x).bernoulli_(generator=chance).mul_(2).sub_(1)


class FreshValues:
    """Values for every timed call, and the results that each must give.

    An exact variant gets the judged values under its operator's :class:`Signs`: on the channels of
    q and k, which leave the scores as they are, and on those of v, which come out on the output.
    Any other gets two sets of values in turn, and signs that come out where ``signed`` is set.
    """

    def __init__(
        self,
        values: Values,
        truth: Sequence[Tensor],
        second: Sequence[Tensor] | None = None,
        *,
        exact: bool,
        signs: Sequence[Signs],
    ) -> None:
        """``second``: what the other set must give, of a variant that is not exact."""
        self._sets, self._results = [values], [truth]
        if second is not None:
            self._sets.append(Values(other_set(values.inputs), values.dout))
            self._results.append(second)
        self.signs = [each for each in signs if exact or OUTPUT in each.names]
        self.signed, self._turn = exact, 0
        self._chance = secret_generator(values.inputs.device)
        self._drawn: dict[str, Tensor] = {}
        """The present signs of each input and of the output, as they multiply it."""

    def draw(self) -> Values:
        """The next set, under new signs."""
        self._turn = (self._turn + 1) % len(self._sets)
        inputs, dout = self._sets[self._turn]
        self._drawn = {}
        if not self.signed:
            return Values(inputs, dout)
        for each in self.signs:
            row = inputs[each.names[0]].new_empty(inputs.size(each.axis))
            drawn = signs_like(row, self._chance)
            for name in (n for n in each.names if n == OUTPUT or n in inputs):
                axes = OUTPUT_AXES if name == OUTPUT else inputs.specs[name].axes
                at, own = each.axis, drawn
                if at not in axes:  # an output of values that are channels of the keys
                    channels = next(s.holds[1] for s in inputs.specs.values() if s.holds)
                    at, own = axes[-1], drawn[:channels]
                self._drawn[name] = own.view([-1 if a == at else 1 for a in axes])
        signed = {n: x * self._drawn[n] if n in self._drawn else x for n, x in inputs.items()}
        if dout is not None and OUTPUT in self._drawn:
            dout = dout * self._drawn[OUTPUT]
        return Values(Inputs(signed, inputs.specs), dout)

    def wanted(self, names: Sequence[str]) -> Sequence[Tensor]:
        """What the values drawn last must give."""
        signs = [self._drawn.get(OUTPUT if n == "forward" else n.removeprefix("d")) for n in names]
        pairs = zip(self._results[self._turn], signs, strict=True)
        return [x if by is None else x * by for x, by in pairs]


class Repeated:
    """A variant's call in one phase, made again and again on values that change in place."""

    def __init__(self, problem: Problem, attend: Attend, values: Values) -> None:
        self.problem, self.call = problem, Call(problem, attend, values.inputs)
        self._dout = None if values.dout is None else values.dout.clone()
        # whatever signs dout gets later, these stay as they are
        self._above = [] if self._dout is None else upstream_besides(problem, self._dout)
        self._out: Tensor | None = None
        self._gradients: Sequence[Tensor] = ()

    def before(self) -> None:
        """Put other values in place."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let go of the last results."""
        self._out, self._gradients, self.call.besides = None, (), {}

    def run(self) -> object:
        """What the clock sees."""
        if self.problem.phase != "backward":
            self._out = self.call.forward()
        if self.problem.gradients:
            assert self._out is not None and self._dout is not None
            self._gradients = self.call.backward(self._out, self._dout, self._above)
        return self._out

    def hold(self) -> Callable[[], None]:
        """A step that puts the results of the last call back, for a clock that replays it."""
        out, besides, gradients = self._out, self.call.besides, self._gradients

        def put_back() -> None:
            self._out, self.call.besides, self._gradients = out, besides, gradients

        return put_back

    def _forward_first(self) -> None:
        if self.problem.phase == "backward":
            self._out = self.call.forward()


class Timed(Repeated):
    """A variant's call, ready to be timed; the result of every call is compared."""

    def __init__(
        self,
        problem: Problem,
        attend: Attend,
        values: Values,
        truth: Sequence[Tensor],
        *,
        exact: bool,
        signs: Sequence[Signs],
        second: Sequence[Tensor] | None = None,
        zero: Collection[str] = (),
    ) -> None:
        """``truth``: output and gradients as they were judged, and ``second`` those of the other
        set; ``zero``: those that are only rounding.
        """
        super().__init__(problem, attend, values)
        self.fresh = FreshValues(values, truth, second, exact=exact, signs=signs)
        self._zero, self.all_names = zero, (*self.call.outputs, *self.call.names)
        self.names = tuple(name for name in self.all_names if name not in zero)
        self._off = torch.zeros(len(self.all_names), dtype=torch.float64, device=truth[0].device)
        self._form: str | None = None
        self._given: Values | None = None
        self.unseen: tuple[Values, list[Tensor]] | None = None
        """The values of the last :meth:`load`, with the outputs and gradients of the call."""
        self._chance = secret_generator(truth[0].device)

    def try_signs(self) -> None:
        """Put signs on the values from now on, where they come out on the output."""
        if self.fresh.signed or not self.fresh.signs:
            return
        off, form = self._off.clone(), self._form
        self.fresh.signed = True
        self.before()
        self.run()
        self.settle()
        self.fresh.signed = self.wrong() is None
        self._off, self._form = off, form

    def before(self) -> None:
        """Compare the last result, and put fresh values in place."""
        self.settle()
        self._take(self.fresh.draw())

    def load(self, values: Values) -> None:
        """Put these values in place for a call whose result :attr:`unseen` keeps, uncompared.

        Signs on the upstream gradient are drawn after a forward pass that is not timed, which can't
        have prepared for them.
        """
        self.settle()
        self._take(values)
        if self._dout is not None:
            self._dout.mul_(signs_like(self._dout, self._chance))
        self._given = Values(values.inputs, None if self._dout is None else self._dout.clone())

    def _take(self, values: Values) -> None:
        self.call.load(values.inputs)
        self._forward_first()
        if self._dout is not None and values.dout is not None:
            self._dout.copy_(values.dout)

    def settle(self) -> None:
        """Compare the last result, or keep it, outside the clock."""
        if self._out is None:
            return
        try:
            outputs = values_of(self.call, self._out).values()
            results = [*(x.detach().clone() for x in outputs), *self._gradients]  # as they are now
            if self._given is not None:
                self.unseen, self._given = (self._given, results), None
            elif len(results) != len(self.all_names) and self.problem.gradients:
                raise Wrong("its weights are not those that it had when it was judged")
            else:
                expected = self.fresh.wanted(self.all_names[: len(results)])
                for i, pair in enumerate(zip(results, expected, strict=True)):
                    self._off[i] = torch.maximum(self._off[i], _deviation(*pair))
        except Wrong as wrong:
            self._form = str(wrong)
        super().settle()

    def wrong(self) -> str | None:
        """None where every timed call gave what it should, else a sentence."""
        if self._form is not None:
            return f"while it was timed, {self._form}"
        off = dict(zip(self.all_names, self._off.tolist(), strict=True))
        changed = _changed(self.problem.dtype, off, self._zero)
        return None if changed is None else f"while it was timed {changed}"


def unlike(
    problem: Problem, results: Mapping[str, Tensor], truth: Sequence[Tensor], zero: Collection[str]
) -> str | None:
    """How one call's output and gradients differ from what they were when they were judged."""
    try:
        got = {**results, **outputs_among(problem, results)}
    except Wrong as wrong:
        return str(wrong)
    pairs = zip(got.items(), truth, strict=True)
    off = {name: float(_deviation(x.detach(), want)) for (name, x), want in pairs}
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
