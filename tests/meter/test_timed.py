"""What is timed: fresh values before every call, and every call held against what is right."""

import itertools

import pytest
import torch

import impls
from attnbench.gate.budget import EPSILON
from attnbench.gate.inputs import Call, cast, make
from attnbench.meter.timed import SAME, FreshValues, Timed, Values, measure_time, other_set
from impls.dense.matmul import build
from impls.loading import load_function
from impls.lowrank import mean_v
from impls.masks import Mask
from impls.problem import Problem

TABLE = impls.table()
EXACT = ("einsum", "sdpa.flash", "chunked?block=5", "online?q_block=7&k_block=4")
PHASES = ("forward", "train", "backward", "decode")
SMALL = {
    "heads": 4, "kv_heads": 4, "q_len": 16, "kv_len": 16, "head_dim": 32, "v_head_dim": 32,
}  # fmt: skip


def values_of(problem, seed=0):
    shape = (problem.batch, problem.heads, problem.q_len, problem.v_head_dim)
    dout = cast(torch.randn(shape), problem) if problem.gradients else None
    return Values(make(problem, seed), dout)


def results_of(problem, attend, values):
    call = Call(problem, attend, values.inputs)
    out = call.forward()
    return [out.detach(), *(call.backward(out, values.dout) if problem.gradients else ())]


def attend_of(name, problem):
    variant = TABLE.find(name)
    assert variant.supports(problem) is None
    return load_function(variant.build)(problem, **variant.chosen)


def timed(problem, attend=None, *, exact=True, zero=()):
    attend = attend or build(problem)
    values = values_of(problem)
    judged = [x.clone() for x in results_of(problem, attend, values)]
    return Timed(problem, attend, values, judged, exact=exact, zero=zero), values


def turns(one, count):
    for _ in range(count):
        one.before()
        one.run()
    one.settle()


class Seen:
    """An honest ``attend`` that writes down where its inputs lie and what they hold."""

    def __init__(self, problem):
        self.inner, self.calls = build(problem), []

    def __call__(self, q, k, v):
        values = [x.detach().clone() for x in (q, k, v)]
        self.calls.append(([x.data_ptr() for x in (q, k, v)], values))
        return self.inner(q, k, v)


# ---- the other values ----------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize(
    "form",
    [
        {"heads": 4, "kv_heads": 2},
        {"heads": 4, "kv_heads": 4},
        {"heads": 4, "kv_heads": 1},
        {"heads": 1, "kv_heads": 1, "batch": 2},
        {"heads": 1, "kv_heads": 1},
    ],
)
def test_the_other_set_has_the_same_form_other_values_and_another_result(form, inputs):
    problem = Problem(q_len=10, kv_len=14, head_dim=8, v_head_dim=4, inputs=inputs, **form)
    first = make(problem, 0)
    other = other_set(first)
    for a, b in zip(first, other, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a.flatten().sort()[0], b.flatten().sort()[0])
    attend = build(problem)
    assert not torch.allclose(attend(*first), attend(*other), rtol=0.01)
    rows = (attend(*first) - attend(*other)).abs().amax(-1) > 0
    assert bool(rows.all())


# ---- signs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_every_call_has_values_that_no_call_had_at_the_same_addresses(phase):
    problem = Problem(**SMALL, phase=phase)
    seen = Seen(problem)
    one, values = timed(problem, seen)
    seen.calls.clear()
    turns(one, 30)
    assert len(seen.calls) == 30
    places = seen.calls[0][0]
    assert all(where == places for where, _ in seen.calls)
    assert not {x.data_ptr() for x in values.inputs} & set(places)
    for at in range(3):
        held = [values.inputs[at], *(had[at] for _, had in seen.calls)]
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(held, 2))
        assert all(torch.equal(x.abs(), held[0].abs()) for x in held)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_the_scores_are_the_same_to_the_last_bit(dtype, kv_heads):
    problem = Problem(**{**SMALL, "kv_heads": kv_heads}, dtype=dtype)
    values = values_of(problem)
    fresh = FreshValues(values, [], exact=True)
    was = values.inputs.q @ values.inputs.k.mT
    for _ in range(5):
        q, k, _ = fresh.draw().inputs
        assert not torch.equal(q, values.inputs.q)
        assert torch.equal(q @ k.mT, was)


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("name", EXACT)
def test_what_is_wanted_is_what_honest_rows_compute(name, phase, dtype, kv_heads, mask):
    problem = Problem(
        **{**SMALL, "kv_heads": kv_heads}, dtype=dtype, phase=phase, mask=Mask.parse(mask)
    )
    attend, values = attend_of(name, problem), values_of(problem)
    fresh = FreshValues(values, results_of(problem, attend, values), exact=True)
    for _ in range(2):
        got = results_of(problem, attend, fresh.draw())
        wanted = fresh.wanted(got)
        assert len(got) == len(wanted) == (4 if phase == "train" else 1)
        for a, b in zip(got, wanted, strict=True):
            away = (a - b).double().norm() / b.double().norm()
            assert away <= SAME[dtype] * EPSILON[dtype]


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", [*EXACT, "mean_v"])
def test_honest_rows_are_right_all_the_while(name, phase, dtype, kv_heads):
    problem = Problem(**{**SMALL, "kv_heads": kv_heads}, dtype=dtype, phase=phase)
    one, _ = timed(problem, attend_of(name, problem), exact=name != "mean_v")
    turns(one, 5)
    assert one.wrong() is None


def test_the_values_themselves_are_left_alone():
    one, values = timed(Problem(**SMALL, phase="train"))
    kept = [x.clone() for x in (*values.inputs, values.dout)]
    turns(one, 3)
    assert all(torch.equal(a, b) for a, b in zip(kept, (*values.inputs, values.dout), strict=True))


def test_nobody_can_draw_the_same_signs_by_doing_the_same():
    values = values_of(Problem(**SMALL))
    one, other = (FreshValues(values, [], exact=True) for _ in range(2))
    assert any(
        not torch.equal(a, b)
        for _ in range(4)
        for a, b in zip(one.draw().inputs, other.draw().inputs, strict=True)
    )


# ---- turns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_two_sets_of_values_take_turns_at_the_same_addresses(phase):
    problem = Problem(**SMALL, phase=phase)
    seen = Seen(problem)
    one, values = timed(problem, seen, exact=False)
    seen.calls.clear()
    turns(one, 4)
    sets = (values.inputs, other_set(values.inputs))
    assert all(where == seen.calls[0][0] for where, _ in seen.calls)
    for (_, had), turn in zip(seen.calls, (1, 0, 1, 0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(had, sets[turn], strict=True))
    assert one.wrong() is None


def test_the_same_result_for_other_values_is_told():
    problem = Problem(**SMALL)
    values = values_of(problem)
    out = mean_v.build(problem)(*values.inputs)
    one = Timed(problem, lambda q, k, v: out.clone(), values, [out], exact=False)
    turns(one, 4)
    assert one.wrong() == "while it was timed it returned the same result for other inputs"


# ---- what the clock sees -------------------------------------------------------------------------


def test_each_phase_runs_what_its_name_says_under_the_clock():
    counts = {}
    for phase in PHASES:
        seen = Seen(Problem(**SMALL, phase=phase))
        one, _ = timed(Problem(**SMALL, phase=phase), seen)
        seen.calls.clear()
        one.before()
        ahead = len(seen.calls)
        out = one.run()
        counts[phase] = (ahead, len(seen.calls) - ahead)
        assert out.shape == (1, 4, 16, 32)
        assert out.requires_grad is (phase in ("train", "backward"))
        assert [tuple(g.shape) for g in one._gradients] == [(1, 4, 16, 32)] * (
            3 if phase in ("train", "backward") else 0
        )
    assert counts == {"forward": (0, 1), "train": (0, 1), "backward": (1, 0), "decode": (0, 1)}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_result_that_is_off_at_the_last_call_alone_is_found(phase, count):
    problem = Problem(**SMALL, phase=phase)
    one, _ = timed(problem)
    inner, numbers = one.call.attend, itertools.count(1)
    one.call.attend = lambda *x: inner(*x) * (1.001 if next(numbers) == count else 1.0)
    turns(one, count)
    assert "while it was timed its output was not" in one.wrong()


def test_settling_twice_changes_nothing():
    one, _ = timed(Problem(**SMALL))
    turns(one, 2)
    one.settle()
    assert one.wrong() is None


@pytest.mark.parametrize("phase", PHASES)
def test_after_measuring_the_last_output_is_held_too(phase, scripted):
    one, _ = timed(Problem(**SMALL, phase=phase))
    inner, numbers = one.call.attend, itertools.count(1)
    one.call.attend = lambda *x: inner(*x) * (2.0 if next(numbers) == 7 else 1.0)
    got = measure_time(one, scripted(itertools.repeat(1.0), step_s=10.0), 1e-9, [])
    assert got.n == 7
    assert "while it was timed its output was not" in one.wrong()


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_a_gradient_that_is_off_is_named(name):
    problem = Problem(**SMALL, phase="train")
    one, _ = timed(problem)
    inner, at = one.call.attend, ("dq", "dk", "dv").index(name)

    def attend(*given):
        scaled = [x * 1.01 - (x * 0.01).detach() if i == at else x for i, x in enumerate(given)]
        return inner(*scaled)

    one.call.attend = attend
    turns(one, 2)
    assert f"while it was timed its {name} was not" in one.wrong()


def test_a_gradient_that_is_zero_in_truth_may_be_another_rounding_each_time():
    problem = Problem(**SMALL, phase="train")
    one, _ = timed(problem, zero=("dk",))
    inner = one.call.attend
    one.call.attend = lambda q, k, v: inner(q, k * 1.01 - (k * 0.01).detach(), v)
    turns(one, 2)
    assert one.wrong() is None
