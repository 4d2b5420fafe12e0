"""Does it remember? Calls on values seen before against calls on values that nobody has seen.

A variant may recognise values, exactly or by a few numbers that signs do not change, and return
what it kept. Its results are right and its time is false. So calls on the values that it was judged
on and calls on values drawn this moment are timed in turn: who computes takes as long for both.
What it makes of unseen values is held against the truth, too, in rows nobody could know.
"""

from __future__ import annotations

import os
import random
import statistics

import torch
from torch import Tensor

from attnbench.measure.clocks import Clock
from attnbench.measure.timed import Timed, Values
from attnbench.record import Error
from attnbench.truth import budget
from attnbench.truth.differentiate import Defines, differentiated
from attnbench.truth.errors import compare
from attnbench.truth.findings import Wrong
from attnbench.truth.hygiene import check_finite
from attnbench.truth.inputs import Ends, Inputs
from attnbench.truth.oracle import exact
from impls.problem import Problem

ROUNDS = (3, 12)
"""Calls of each kind at first, and once more where those look suspicious."""
FASTER, NEARLY_ALL = 1.5, 2 / 3
"""So much faster in the middle; and so many of the calls on unseen values slower than that."""
LEAST_S = 2e-5
"""Less than this is not worth remembering for, and may be the caches' doing."""
ROWS = 8
LOOSER = 4.0
"""The yardstick was taken on other values of the kind."""
DEFINED_SCORES = 1 << 18
"""Up to so many scores a variant's own definition is asked about unseen values too."""


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


def check_remembers_nothing(timed: Timed, clock: Clock, values: Values,
                            define: Defines | None, plain: Error) -> None:  # fmt: skip
    """Raise :class:`Wrong` where it is faster on values it has seen, or wrong on others."""
    for rounds in ROUNDS:
        seen, new = _in_turn(timed, clock, values, rounds)
        faster = statistics.median(new) / statistics.median(seen)
        slower = sum(n > statistics.median(seen) for n in new)
        saved = statistics.median(new) - statistics.median(seen)
        if faster < FASTER or slower < NEARLY_ALL * rounds or saved < LEAST_S:
            break
    else:
        raise Wrong(
            f"it is {faster:.2g} times as fast on values that it has seen: it remembers results"
        )
    out = timed.unseen
    if out is not None:
        _check_values(timed.problem, out[0], out[1], define, plain)


def _in_turn(timed: Timed, clock: Clock, values: Values,
             rounds: int) -> tuple[list[float], list[float]]:  # fmt: skip
    """Seconds of each kind. What goes before a call is the same for both: values are drawn, and
    only then it is decided which are put there.
    """
    seen: list[float] = []
    new: list[float] = []
    kinds = [(seen, False), (new, True)] * rounds
    kinds[:-1] = random.SystemRandom().sample(kinds[:-1], len(kinds) - 1)  # the last is unseen
    for taken, fresh in kinds:

        def before(fresh: bool = fresh) -> None:
            drawn = Values(unseen(values.inputs), values.dout)
            timed.load(drawn if fresh else Values(_copied(values.inputs), values.dout))

        taken += clock.samples(before, timed.run, 1)
    timed.settle()
    return seen, new


def _copied(inputs: Ends) -> Ends:
    return type(inputs)(*(x.clone() for x in inputs))


def _check_values(problem: Problem, inputs: Ends, out: Tensor, define: Defines | None,
                  plain: Error) -> None:  # fmt: skip
    check_finite("the output on values it had not seen", out)
    scores = problem.batch * problem.heads * problem.q_len * problem.kv_len
    if define is not None and scores > DEFINED_SCORES:
        return
    drawn = random.SystemRandom().sample(range(problem.q_len), min(ROWS, problem.q_len))
    rows = torch.tensor(sorted(drawn), device=problem.device)
    if define is None:
        assert isinstance(inputs, Inputs)
        want = exact(problem, *inputs, rows).out
    else:
        wide = type(inputs)(*(x.double() for x in inputs))
        want = differentiated(problem, wide, rows, None, define)["forward"]
    try:
        budget.check_unsampled(
            "the output", out[:, :, rows], want, plain, problem.dtype, LOOSER,
        )  # fmt: skip
    except Wrong:
        error = compare(out[:, :, rows], want)
        raise Wrong(
            "on values that it had not seen its output is off: the worst row by "
            f"{error.worst_row or float('nan'):.2g}"
        ) from None
