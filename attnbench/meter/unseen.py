"""Does it remember? Calls on values seen before against calls on values that nobody has seen.

A variant may recognise values, exactly or by a few numbers that signs do not change, and return
what it kept. Its results are right and its time is false. So calls on the values that it was judged
on and calls on values drawn this moment are timed in turn: who computes takes as long for both.
What it makes of unseen values is held against the truth, too: of every call the output, in rows
nobody could know, and of one of them, nobody knows which, the gradients.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnbench.core.record import Error
from attnbench.gate import budget
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import check_finite
from attnbench.gate.inputs import Ends, Inputs
from attnbench.gate.oracle import Errors, as_rows, compare, exact, within
from attnbench.gate.reference import Defines, differentiated
from attnbench.meter.clocks import Clock
from attnbench.meter.timed import WORDS, Timed, Values

ROUNDS = (3, 12, 24)
"""Calls of each kind at first, and again and again where all before look suspicious."""
DEAR_S = 0.01
"""Of a call that takes longer, one of each kind at first."""
FASTER, NEARLY_ALL = 1.5, 2 / 3
"""So much faster in the middle; and so many of the calls on unseen values slower than that."""
LEAST_S = 2e-5
"""Less than this is not worth remembering for, and may be the caches' doing."""
ROWS = 8
LOOSER = 4.0
"""The yardstick was taken on other values of the kind."""
GRADIENT_SCORES = 1 << 18
"""Up to so many scores the gradients of one call are held against the truth, in every row."""
EACH_SCORES = 1 << 16
"""Up to so many a definition of a variant's own is asked about every call; beyond, about one."""
ONE_SCORES = 1 << 20
"""And up to so many about one: the gate has asked about rows of another set, whatever the size."""


def unseen(inputs: Ends) -> Ends:
    """Values of the same kind that no call has seen: moved along the tokens, channels scaled."""
    chance = random.SystemRandom()
    generator = torch.Generator(inputs[0].device)
    generator.manual_seed(int.from_bytes(os.urandom(7)))

    def fresh(x: Tensor) -> Tensor:
        by = torch.empty_like(x[0, 0, 0], dtype=torch.float32)
        by.uniform_(0.9, 1.1, generator=generator)
        sign = torch.empty_like(by).bernoulli_(generator=generator).mul_(2).sub_(1)
        moved = x.roll(chance.randrange(x.shape[2]), 2)
        return (moved * (by * sign)).to(x.dtype)

    return type(inputs)(*(fresh(x) for x in inputs))


def check_remembers_nothing(
    timed: Timed,
    clock: Clock,
    values: Values,
    define: Defines | None,
    plain: Mapping[str, Error],
    seconds: float,
) -> float:
    """Raise :class:`Wrong` where it is faster on values it has seen, or wrong on others.

    ``seconds``: of a call, about. Returns the least of one on values that nobody has seen.
    """
    judge = _Judge(timed, define, plain)
    for rounds in (1 if seconds > DEAR_S else ROUNDS[0], *ROUNDS[1:]):
        seen, new = _in_turn(timed, clock, values, rounds, judge)
        faster = statistics.median(new) / statistics.median(seen)
        slower = sum(n > statistics.median(seen) for n in new)
        saved = statistics.median(new) - statistics.median(seen)
        if faster < FASTER or slower < NEARLY_ALL * rounds or saved < LEAST_S:
            break
    else:
        raise Wrong(
            f"it is {faster:.2g} times as fast on values that it has seen: it remembers results"
        )
    judge.kept()
    return min(new)


def _in_turn(
    timed: Timed, clock: Clock, values: Values, rounds: int, judge: _Judge
) -> tuple[list[float], list[float]]:
    """Seconds of each kind. What goes before a call is the same for both: values are drawn, and
    only then it is decided which are put there.
    """
    seen: list[float] = []
    new: list[float] = []
    kinds = [(seen, False), (new, True)] * rounds
    for taken, fresh in random.SystemRandom().sample(kinds, len(kinds)):

        def before(fresh: bool = fresh) -> None:
            drawn = Values(unseen(values.inputs), values.dout)
            timed.load(drawn if fresh else Values(_copied(values.inputs), values.dout))

        taken += clock.samples(before, timed.run, 1)
        timed.settle()
        if fresh:
            judge.output()
    return seen, new


def _copied(inputs: Ends) -> Ends:
    return type(inputs)(*(x.clone() for x in inputs))


class _Judge:
    """Holds what came of unseen values against the truth."""

    def __init__(self, timed: Timed, define: Defines | None, plain: Mapping[str, Error]) -> None:
        self._timed, self._define, self._plain = timed, define, plain
        self._chance = random.SystemRandom()
        self._kept: tuple[Values, list[Tensor]] | None = None
        self._calls = 0

    def output(self) -> None:
        """Of the last call, in a few rows; its gradients may be kept for later."""
        if self._timed.unseen is None:  # of another form, which is known by now
            return
        check_finite("the output on values it had not seen", self._timed.unseen[1][0])
        if self._define is None or self._scores <= EACH_SCORES:
            self._rows(*self._timed.unseen)
        self._calls += 1
        if self._chance.randrange(self._calls) == 0:
            self._kept = self._timed.unseen

    @property
    def _scores(self) -> int:
        problem = self._timed.problem
        return problem.batch * problem.heads * problem.q_len * problem.kv_len

    def _rows(self, values: Values, results: Sequence[Tensor]) -> None:
        n = self._timed.problem.q_len
        drawn = self._chance.sample(range(n), min(ROWS, n))
        rows = torch.tensor(sorted(drawn), device=results[0].device)
        self._check("forward", results[0][:, :, rows], self._truth(values, rows)["forward"])

    def kept(self) -> None:
        """The call that chance kept: some rows, and its gradients where that is not too dear."""
        if self._kept is None:
            return
        (values, results), problem = self._kept, self._timed.problem
        if self._define is not None and EACH_SCORES < self._scores <= ONE_SCORES:
            self._rows(values, results)
        if not problem.gradients or self._scores > GRADIENT_SCORES:
            return
        truth = self._truth(values, torch.arange(problem.q_len, device=results[0].device), all=True)
        made = dict(zip(("forward", *self._timed.call.names), results, strict=True))
        for name in self._timed.names:
            self._check(name, as_rows(made[name]), truth[name])

    def _truth(self, values: Values, rows: Tensor, *, all: bool = False) -> dict[str, Tensor]:
        inputs, dout = values.inputs, values.dout if all else None
        if self._define is not None:
            wide = type(inputs)(*(x.double() for x in inputs))
            return differentiated(self._timed.problem, wide, rows, dout, self._define)
        assert isinstance(inputs, Inputs)
        truth = exact(self._timed.problem, *inputs, rows, dout)
        names = {"forward": truth.out, "dq": truth.dq, "dk": truth.dk, "dv": truth.dv}
        return {name: x for name, x in names.items() if x is not None}

    def _check(self, name: str, got: Tensor, want: Tensor) -> None:
        dtype = self._timed.problem.dtype

        def check(plain: Errors) -> None:
            budget.check_unsampled(name, got, want, plain[name], dtype, LOOSER)

        try:
            within(self._plain, check)
        except Wrong:
            error = compare(got, want)
            raise Wrong(
                f"on values that it had not seen its {WORDS.get(name, name)} is off: the worst "
                f"row by {error.worst_row or float('nan'):.2g}"
            ) from None
