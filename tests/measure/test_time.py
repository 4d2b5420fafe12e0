"""Time: what is timed, when it stops, and why it says so. The clocks here are scripted."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnbench.measure.clocks import HostClock
from attnbench.measure.time import Timed, measure_time, other_set, warm_up
from attnbench.truth.inputs import make
from impls.dense.matmul import build
from impls.problem import Problem

NOTHING = SimpleNamespace(before=lambda: None, run=lambda: None, settle=lambda: None)
STEADY = [1.0, 1.001, 0.999, 1.0005, 0.9995]
BIMODAL = [1.0, 2.0]


# ---- when to stop --------------------------------------------------------------------------------


def test_a_narrow_interval_stops_as_converged_once_half_the_budget_was_used(scripted):
    clock = scripted(itertools.cycle(STEADY), step_s=0.01)
    got = measure_time(NOTHING, clock, 1.0, [])
    assert got.stop == "converged"
    assert 50 <= got.n <= 56
    assert got.median_s == 1.0
    assert got.high_s - got.low_s < 0.02


def test_a_narrow_interval_needs_twenty_samples(scripted):
    got = measure_time(NOTHING, scripted(itertools.repeat(1.0), step_s=0.04), 1.0, [])
    assert got.stop == "converged"
    assert got.n == 20


def test_a_wide_interval_goes_on_to_the_budget(scripted):
    got = measure_time(NOTHING, scripted(itertools.cycle(BIMODAL), step_s=0.01), 1.0, [])
    assert got.stop == "budget"
    assert 100 <= got.n <= 106


def test_seven_samples_are_taken_however_small_the_budget(scripted):
    got = measure_time(NOTHING, scripted(itertools.repeat(1.0), step_s=10.0), 1e-9, [])
    assert (got.stop, got.n) == ("budget", 7)


def test_noise_that_stays_the_same_stops_as_a_plateau(scripted):
    got = measure_time(NOTHING, scripted(itertools.cycle(BIMODAL), step_s=0.001), 0.2, [])
    assert got.stop == "plateau"
    assert 128 <= got.n < 140


def test_noise_that_still_grows_is_no_plateau(scripted):
    growing = (1.0 + (i % 2) * i / 100 for i in itertools.count())
    got = measure_time(NOTHING, scripted(growing, step_s=0.001), 0.3, [])
    assert got.stop == "budget"
    assert got.n >= 300


def test_short_calls_end_at_the_most_samples(scripted):
    got = measure_time(NOTHING, scripted(itertools.repeat(1.0), step_s=1e-6), 1.0, [])
    assert got.n == 400


def test_short_calls_that_agree_have_converged_and_say_so(scripted):
    got = measure_time(NOTHING, scripted(itertools.repeat(1.0), step_s=1e-6), 1.0, [])
    assert got.stop == "converged"


def test_short_calls_that_do_not_agree_have_not_converged_at_the_most_samples(scripted):
    growing = (1.0 + (i % 2) * i / 100 for i in itertools.count())
    got = measure_time(NOTHING, scripted(growing, step_s=1e-6), 1.0, [])
    assert (got.stop, got.n) == ("budget", 400)


def test_the_time_keeps_every_sample_and_sums_them_up_as_numpy_does(scripted):
    readings = list(np.random.default_rng(0).lognormal(0, 0.5, 200))
    got = measure_time(NOTHING, scripted(readings, step_s=0.01), 1.0, ["not steady"])
    assert got.samples_s == readings[: got.n]
    assert got.median_s == pytest.approx(np.median(got.samples_s))
    assert (got.q25_s, got.q75_s) == pytest.approx(tuple(np.percentile(got.samples_s, [25, 75])))
    assert got.min_s == min(got.samples_s)
    assert got.low_s <= got.median_s <= got.high_s
    assert (got.clock, got.flags, got.discarded) == ("scripted", ["not steady"], 0)


def test_a_call_that_leaves_the_processor_idle_is_flagged():
    waiting = SimpleNamespace(
        before=lambda: None, run=lambda: time.sleep(0.005), settle=lambda: None
    )
    given = []
    got = measure_time(waiting, HostClock(), 0.01, given)
    assert len(got.flags) == 1
    assert got.flags[0].startswith("contended: ")
    assert given == []


# ---- warming up ----------------------------------------------------------------------------------


def test_warming_up_ends_when_steady_after_a_quarter_of_the_budget(scripted):
    clock = scripted(itertools.repeat(1.0), step_s=0.01)
    spent, flags = warm_up(NOTHING, clock, 1.0)
    assert flags == []
    assert 0.25 <= spent < 0.3


def test_warming_up_waits_for_slow_first_calls(scripted):
    clock = scripted(itertools.chain([9.0] * 10, itertools.repeat(1.0)), step_s=0.001)
    spent, flags = warm_up(NOTHING, clock, 0.1)
    assert flags == []
    assert 0.04 <= spent < 0.05  # until most of the first half is fast too


def test_what_never_becomes_steady_is_flagged_at_the_budget(scripted):
    clock = scripted((1.1**i for i in itertools.count()), step_s=0.01)
    spent, flags = warm_up(NOTHING, clock, 0.5)
    assert flags == ["not steady"]
    assert 0.5 <= spent < 0.55


def test_too_few_calls_to_tell_are_not_flagged(scripted):
    spent, flags = warm_up(NOTHING, scripted((2.0**i for i in itertools.count()), 1.0), 1.5)
    assert flags == []
    assert spent == 2.0


# ---- the other values ----------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("form", [
    {"heads": 4, "kv_heads": 2}, {"heads": 4, "kv_heads": 4}, {"heads": 4, "kv_heads": 1},
    {"heads": 1, "kv_heads": 1, "batch": 2}, {"heads": 1, "kv_heads": 1},
])  # fmt: skip
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


# ---- what is timed -------------------------------------------------------------------------------


def timed(phase, calls):
    problem = Problem(heads=2, kv_heads=2, q_len=6, kv_len=6, head_dim=4, v_head_dim=4,
                      phase=phase)  # fmt: skip
    inner = build(problem)

    def attend(q, k, v):
        values = [x.detach().clone() for x in (q, k, v)]
        calls.append(([x.data_ptr() for x in (q, k, v)], values))
        return inner(q, k, v)

    sets = (make(problem, 0), make(problem, 1))
    dout = torch.ones(1, 2, 6, 4) if problem.gradients else None
    return Timed(problem, attend, sets, dout), sets


@pytest.mark.parametrize("phase", ["forward", "train", "backward", "decode"])
def test_two_sets_of_values_take_turns_at_the_same_addresses(phase):
    calls = []
    one, sets = timed(phase, calls)
    for _ in range(4):
        one.before()
        one.run()
    assert len(calls) == 4
    assert all(places == calls[0][0] for places, _ in calls)
    for (_, values), turn in zip(calls, (1, 0, 1, 0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(values, sets[turn], strict=True))
    given = {x.data_ptr() for inputs in sets for x in inputs}
    assert not given & set(calls[0][0])


def test_the_sets_themselves_are_left_alone():
    one, sets = timed("train", [])
    kept = [[x.clone() for x in inputs] for inputs in sets]
    for _ in range(3):
        one.before()
        one.run()
    for before, after in zip(kept, sets, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


PHASES = ["forward", "train", "backward", "decode"]


def turns(one, count):
    for _ in range(count):
        one.before()
        one.run()
    one.settle()


@pytest.mark.parametrize("phase", PHASES)
def test_the_output_on_each_set_of_values_is_kept(phase):
    one, sets = timed(phase, [])
    assert one.outs == [None, None]
    turns(one, 1)  # the judged values are the second to come
    assert one.outs[0] is None
    turns(one, 2)
    for out, inputs in zip(one.outs, sets, strict=True):
        torch.testing.assert_close(out, build(one.problem)(*inputs))
        assert not out.requires_grad


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("count", [2, 3])
def test_the_output_is_kept_as_a_copy_where_the_variant_reuses_its_buffer(phase, count):
    one, sets = timed(phase, [])
    inner, buffer = one.call.attend, torch.empty(1, 2, 6, 4)
    one.call.attend = lambda q, k, v: buffer.detach().copy_(inner(q, k, v))
    turns(one, count)
    buffer.fill_(torch.nan)
    for out, inputs in zip(one.outs, sets, strict=True):
        torch.testing.assert_close(out, build(one.problem)(*inputs))


@pytest.mark.parametrize(("count", "kept"), [(1, [None, 1]), (2, [2, 1]), (5, [4, 5]), (6, [6, 5])])
def test_the_output_that_is_kept_is_the_latest(count, kept):
    one, _ = timed("forward", [])
    numbers = itertools.count(1)
    one.call.attend = lambda q, k, v: torch.full_like(v, next(numbers))
    turns(one, count)
    one.settle()  # a second time changes nothing
    assert [None if out is None else int(out.unique()) for out in one.outs] == kept


@pytest.mark.parametrize("phase", PHASES)
def test_the_output_is_copied_outside_the_clock(phase):
    one, _ = timed(phase, [])
    one.before()
    one.run()
    assert one.outs == [None, None]
    one.before()
    first = one.outs[1]
    assert first is not None
    one.run()
    assert one.outs[0] is None
    assert one.outs[1] is first


@pytest.mark.parametrize("phase", PHASES)
def test_after_measuring_the_last_output_is_kept_too(phase, scripted):
    one, sets = timed(phase, [])
    numbers = itertools.count(1)
    inner = one.call.attend
    one.call.attend = lambda q, k, v: inner(q, k, v) + next(numbers)
    got = measure_time(one, scripted(itertools.repeat(1.0), step_s=10.0), 1e-9, [])
    assert got.n == 7
    for out, inputs, number in zip(one.outs, sets, (6, 7), strict=True):
        torch.testing.assert_close(out, build(one.problem)(*inputs) + number)


def test_each_phase_runs_what_its_name_says_under_the_clock():
    results = {}
    for phase in ("forward", "train", "backward", "decode"):
        calls = []
        one, _ = timed(phase, calls)
        one.before()
        ahead = len(calls)
        results[phase] = (ahead, len(calls) - ahead, one.run(), len(calls))
    assert [results[p][0] for p in ("forward", "train", "backward", "decode")] == [0, 0, 1, 0]
    assert [results[p][3] for p in ("forward", "train", "backward", "decode")] == [1, 1, 1, 1]
    for phase in ("forward", "decode"):
        assert results[phase][2].shape == (1, 2, 6, 4)
        assert not results[phase][2].requires_grad
    for phase in ("train", "backward"):
        assert [tuple(g.shape) for g in results[phase][2]] == [(1, 2, 6, 4)] * 3
        assert all(bool(g.any()) for g in results[phase][2])
