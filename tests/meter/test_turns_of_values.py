"""Two sets of values in turn, and signs on v besides where they come out on the output."""

from itertools import combinations

import pytest
import torch

from attnbench.gate.budget import EPSILON
from attnbench.gate.inputs import Call, make, other_set
from attnbench.meter.timed import Timed, Values
from impls.problem import Problem

SMALL = Problem(heads=2, kv_heads=2, q_len=12, kv_len=12, head_dim=8, v_head_dim=8)


def linear(q, k, v):
    return (q @ k.mT) @ v


def crooked(q, k, v):
    return (q @ k.mT) @ v.abs()


def turns_of(attend, problem=SMALL, *, judged=True):
    """The operator on two sets in turn, and what ``v`` held at each call since."""
    values = Values(make(problem, 0), None)
    if problem.gradients:
        values = Values(values.inputs, torch.randn(problem.output_shape))

    def made(inputs):
        call = Call(problem, attend, inputs)
        out = call.forward()
        gradients = call.backward(out, values.dout) if problem.gradients else ()
        return [out.detach().clone(), *(g.clone() for g in gradients)]

    had = []

    def watched(q, k, v):
        had.append(v.detach().clone())
        return attend(q, k, v)

    second = made(other_set(values.inputs)) if judged else None
    timed = Timed(problem, watched, values, made(values.inputs), exact=False, second=second)
    timed.try_signs()
    had.clear()
    for _ in range(6):
        timed.before()
        timed.run()
    timed.settle()
    return timed, had, [values.inputs.v, other_set(values.inputs).v]


def as_they_were(had, sets):
    return [any(torch.equal(v, one) for one in sets) for v in had]


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_where_signs_on_v_come_out_every_call_gets_its_own(phase):
    timed, had, sets = turns_of(linear, SMALL.with_(phase=phase))
    assert timed.wrong() is None
    assert not all(as_they_were(had, sets))
    assert all(as_they_were([v.abs() for v in had], [one.abs() for one in sets]))


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_where_signs_on_v_do_not_come_out_the_values_stay_and_nobody_is_blamed(phase):
    timed, had, sets = turns_of(crooked, SMALL.with_(phase=phase))
    assert timed.wrong() is None
    assert as_they_were(had, sets) == [True] * 6
    assert [torch.equal(v, sets[0]) for v in had] in ([True, False] * 3, [False, True] * 3)


def test_signs_are_not_tried_on_a_set_that_nobody_judged():
    timed, had, sets = turns_of(linear, judged=False)
    assert timed.wrong() is None
    assert as_they_were(had, sets) == [True] * 6


def largest(q, k, v):
    return v.abs().amax() * torch.ones_like(v)


def test_the_same_result_for_both_sets_is_right_where_somebody_judged_it():
    assert turns_of(largest)[0].wrong() is None
    said = "while it was timed it returned the same result for other inputs"
    assert turns_of(largest, judged=False)[0].wrong() == said


def test_nobody_knows_the_upstream_gradient_of_a_call_on_values_that_are_loaded():
    problem = SMALL.with_(phase="train")
    timed, _, _ = turns_of(linear, problem)
    values, known = Values(make(problem, 1), torch.ones(problem.output_shape)), []
    for _ in range(3):
        timed.load(values)
        timed.run()
        timed.settle()
        given, results = timed.unseen
        assert torch.equal(given.dout.abs(), values.dout)
        call = Call(problem, linear, given.inputs)
        want = call.backward(call.forward(), given.dout)
        torch.testing.assert_close(list(results[1:]), list(want))
        known.append(given.dout)
    assert not any(torch.equal(a, b) for a, b in combinations([values.dout, *known], 2))
    assert timed.wrong() is None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_result_is_held_before_the_next_values_come(number):
    timed, _, _ = turns_of(linear)
    inner, calls = timed.call.attend, []

    def attend(q, k, v):
        calls.append(1)
        return inner(q, k, v) * (1.001 if len(calls) == number else 1.0)

    timed.call.attend = attend
    for _ in range(3):
        timed.before()
        timed.run()
    timed.settle()
    assert "while it was timed its output was not what it was" in timed.wrong()


@pytest.mark.parametrize(("spacings", "wrong"), [(1, False), (16, True)])
def test_a_result_may_lie_a_spacing_from_what_it_was_and_not_many(spacings, wrong):
    timed, _, _ = turns_of(linear)
    inner = timed.call.attend
    timed.call.attend = lambda q, k, v: inner(q, k, v) * (1 + spacings * EPSILON["float32"])
    timed.before()
    timed.run()
    timed.settle()
    assert (timed.wrong() is not None) == wrong
