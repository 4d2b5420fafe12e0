"""What is timed: fresh values, every result compared; when sampling stops; slow-downs and waits."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from attnbench.core.gpu import SLOWDOWNS, Absent
from attnbench.gate.budget import EPSILON
from attnbench.gate.inputs import Call, cast, make, other_set
from attnbench.meter import timer as meter
from attnbench.meter.clocks import EventClock
from attnbench.meter.timed import Timed, Values
from attnbench.meter.timer import health_for
from impls.dense.matmul import build
from impls.operators import OPERATORS
from impls.problem import Problem
from tests.meter import fake_gpu as fake

PHASES = ("forward", "train", "backward", "decode")
SIZES = {"heads": 4, "kv_heads": 4, "q_len": 16, "kv_len": 16, "head_dim": 32, "v_head_dim": 32}
SMALL = Problem(**SIZES)


def results_of(problem, attend, values):
    call = Call(problem, attend, values.inputs)
    out = call.forward()
    gradients = call.backward(out, values.dout) if problem.gradients else ()
    return [x.detach().clone() for x in (out, *gradients)]


def timed(problem, attend=None, *, second=False, zero=()):
    """What is timed, and the values that it was judged on."""
    dout = cast(torch.randn(problem.output_shape), problem) if problem.gradients else None
    attend, values = attend or build(problem), Values(make(problem, 0), dout)
    other = Values(other_set(values.inputs), values.dout)
    more = {"second": results_of(problem, attend, other)} if second else {}
    truth = results_of(problem, attend, values)
    more |= {"exact": not second, "zero": zero, "signs": OPERATORS["softmax"].signs}
    one = Timed(problem, attend, values, truth, **more)
    one.try_signs()
    return one, values


def turns(one, count):
    for _ in range(count):
        one.before()
        one.run()
    one.settle()


class Seen:
    """An ``attend`` that notes where its inputs lie and what they hold."""

    def __init__(self, inner):
        self.inner, self.calls = inner, []

    def __call__(self, *inputs):
        kept = [x.detach().clone() for x in inputs]
        self.calls.append(([x.data_ptr() for x in inputs], kept))
        return self.inner(*inputs)


@pytest.mark.parametrize("phase", PHASES)
def test_every_call_has_values_that_no_call_had_at_the_same_addresses(phase):
    seen = Seen(build(SMALL))
    one, values = timed(SMALL.with_(phase=phase), seen)
    mine = list(values.inputs.values())
    kept = [x.clone() for x in mine]
    seen.calls.clear()
    turns(one, 30)
    assert one.wrong() is None
    places = seen.calls[0][0]
    assert [where for where, _ in seen.calls] == [places] * 30
    assert not {x.data_ptr() for x in mine} & set(places)
    for at in range(3):
        held = [mine[at], *(had[at] for _, had in seen.calls)]
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(held, 2))
        assert all(torch.equal(x.abs(), held[0].abs()) for x in held)
        assert torch.equal(kept[at], mine[at])


@pytest.mark.parametrize("crooked", [False, True])
def test_two_sets_take_turns_under_signs_on_v_where_those_come_out(crooked):
    seen = Seen(lambda q, k, v: (q @ k.mT) @ (v.abs() if crooked else v))
    one, values = timed(SMALL.with_(phase="train"), seen, second=True)
    seen.calls.clear()
    turns(one, 6)
    assert one.wrong() is None
    sets = (values.inputs, other_set(values.inputs))
    first = next(n for n in (0, 1) if torch.equal(seen.calls[0][1][0], sets[n]["q"]))
    for (where, (q, k, v)), turn in zip(seen.calls, itertools.cycle((first, 1 - first))):
        assert where == seen.calls[0][0]
        assert torch.equal(q, sets[turn]["q"]) and torch.equal(k, sets[turn]["k"])
        assert torch.equal(v.abs(), sets[turn]["v"].abs())
    plain = [any(torch.equal(had[2], one["v"]) for one in sets) for _, had in seen.calls]
    assert all(plain) is crooked


def test_the_upstream_gradient_of_loaded_values_is_not_known_beforehand():
    problem = SMALL.with_(phase="train")
    one, values = timed(problem)
    drawn = [values.dout]
    for _ in range(3):
        one.load(values)
        one.run()
        one.settle()
        given, results = one.unseen
        assert torch.equal(given.dout.abs(), values.dout.abs())
        torch.testing.assert_close(results, results_of(problem, build(problem), given))
        drawn.append(given.dout)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))
    assert one.wrong() is None


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("at", "count"), [(1, 1), (7, 7), (1, 3), (2, 3)])
def test_a_result_that_is_off_at_one_call_is_found(phase, at, count):
    for second in (True, False):
        one, _ = timed(SMALL.with_(phase=phase), second=second)
        lie_at(one, at, 1.001)
        turns(one, count)
        one.settle()  # once more changes nothing
        assert "while it was timed its output was not what it was" in one.wrong()


def lie_at(one, call, factor):
    inner, numbers = one.call.attend, itertools.count(1)
    one.call.attend = lambda *x: inner(*x) * (factor if next(numbers) == call else 1.0)


def test_a_result_may_lie_a_spacing_from_what_it_was_and_not_many():
    for spacings, wrong in ((1, False), (16, True)):
        one, _ = timed(SMALL)
        lie_at(one, 1, 1 + spacings * EPSILON["float32"])
        turns(one, 1)
        assert (one.wrong() is not None) == wrong


@pytest.mark.parametrize("zero", [(), ("dq", "dk", "dv")])
@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_a_gradient_that_is_off_is_named_unless_it_is_only_rounding(name, zero):
    one, _ = timed(SMALL.with_(phase="train"), zero=zero)
    inner, at = one.call.attend, ("dq", "dk", "dv").index(name)

    def attend(*given):
        scaled = [x * 1.01 - (x * 0.01).detach() if i == at else x for i, x in enumerate(given)]
        return inner(*scaled)

    one.call.attend = attend
    turns(one, 2)
    says = one.wrong()
    assert says is None if zero else f"while it was timed its {name} was not" in says


NOTHING = SimpleNamespace(before=lambda: None, run=lambda: None, settle=lambda: None)
STEADY, BIMODAL, SKEWED = [1.0, 1.001, 0.999, 1.0005, 0.9995], [1.0, 2.0], [1.0, 0.5, 1.0]
ONES, TWOS = itertools.repeat(1.0), [1.0, 1.5, 1.0]


@pytest.mark.parametrize(
    ("readings", "step_s", "budget_s", "stop", "least", "most"),
    [
        (itertools.cycle(STEADY), 0.01, 1.0, "converged", 50, 56),  # at half the budget
        (ONES, 0.04, 1.0, "converged", 20, 20),
        (itertools.cycle(BIMODAL), 0.01, 1.0, "budget", 100, 106),
        (itertools.cycle(SKEWED), 0.04, 1.0, "budget", 25, 30),  # wide on one side alone
        (itertools.cycle(TWOS), 0.04, 1.0, "budget", 25, 30),
        (ONES, 10.0, 1e-9, "budget", 7, 7),
        (ONES, 1e-6, 1.0, "converged", 400, 400),
        (itertools.cycle(BIMODAL), 1e-6, 1.0, "budget", 400, 400),
    ],
)
def test_sampling_stops_for_a_reason(scripted, readings, step_s, budget_s, stop, least, most):
    result = meter.measure_time(NOTHING, scripted(readings, step_s), budget_s, [])
    assert result.stop == stop and least <= result.n <= most


@pytest.mark.parametrize(
    ("readings", "flag"),
    [
        (sorted([1.0, 1.1, 1.2] * 30), "the last third of the samples took +20\u00a0% against"),
        ([2.0 - i / 100 for i in range(60)], "took -"),
        ([1.0, 2.0] * 40, None),  # noisy, the same all along
        ([1.0] * 30 + [1.005] * 30, None),
        ([1.0, 1.5, 2.0] * 6, None),  # too few to tell
        ([9.0, 5.0] + [1.0, 1.001, 0.999] * 20, None),  # slow first samples
    ],
)
def test_samples_that_drift_are_flagged_with_how_much(readings, flag):
    flags = meter._drift(readings)
    assert (flags == []) if flag is None else flags[0].startswith("drifting: ") and flag in flags[0]


@pytest.mark.parametrize(
    ("readings", "step_s", "budget_s", "flags", "least", "most"),
    [
        (ONES, 0.01, 1.0, [], 0.25, 0.3),
        (itertools.chain([9.0] * 10, ONES), 0.001, 0.1, [], 0.04, 0.05),
        ((1.1**i for i in itertools.count()), 0.01, 0.5, ["not steady"], 0.5, 0.55),
        ((2.0**i for i in itertools.count()), 1.0, 1.5, [], 2.0, 2.1),  # too few to tell
    ],
)
def test_warming_up_ends_when_steady_or_at_the_budget(
    scripted, readings, step_s, budget_s, flags, least, most
):
    spent, found = meter.warm_up(NOTHING, scripted(readings, step_s), budget_s)
    assert found == flags and least <= spent < most


class Scene:
    """A GPU that is slow at times, and batches of ten calls of ten milliseconds on it."""

    def __init__(self, *slow):
        self.gpu, self.waits = fake.FakeGpu(launch_s=0.0), []
        self.gpu.slow = list(slow)
        self.board = fake.FakeBoard(self.gpu)
        self.health = meter.Health(self.board, self.wait)

    def wait(self, seconds):
        self.waits.append(seconds)
        self.gpu.busy_host(seconds)

    def batch(self):
        taken = []
        for _ in range(10):
            start = self.gpu.now()
            self.gpu.kernel(0.01)
            self.gpu.synchronize()
            taken.append(self.gpu.now() - start)
        return taken

    def take(self, count):
        return [x for _ in range(count) for x in self.health.take(self.batch)]


LONG = (0.0, 1e9, 2.0, "HwThermal")
WAITED = "it waited: 62\u00a0% of each call without the processor, of its own will"


@pytest.mark.parametrize(
    ("slow", "batches", "longest", "discarded", "flags"),
    [
        ([], 5, 0.01, (0, 0), []),
        *(([(0.12, 0.5, 2.0, why)], 5, 0.01, (20, 99), []) for why in sorted(SLOWDOWNS)),
        (
            [LONG],
            3,
            0.02,
            (50, 50),
            ["slowed down all the time (HwThermal): 50 samples were thrown away"],
        ),
        (
            [(0.0, 0.25, 1.2, "SwPowerCap")],
            4,
            0.012,
            (0, 0),
            ["power-capped: in 3 of 4 batches the clocks were held down"],
        ),
    ],
)
def test_what_was_taken_while_slow_is_thrown_away(slow, batches, longest, discarded, flags):
    scene = Scene(*slow)
    taken = scene.take(batches)
    assert len(taken) == 10 * batches and max(taken) == pytest.approx(longest)
    assert discarded[0] <= scene.health.discarded <= discarded[1]
    for found, start in zip(scene.health.flags(), flags, strict=True):
        assert found.startswith(start)
    if slow == [LONG]:
        assert scene.waits == [0.05, 0.1, 0.2, 0.4, 0.5]


@pytest.mark.parametrize(
    ("seconds", "least"),
    [(1e-5, 20), (0.01, 20), (0.1, 7)],  # 20 of the last would take two seconds
)
def test_a_gpu_gives_twenty_samples_at_the_least_where_they_are_cheap(seconds, least):
    gpu = fake.FakeGpu()
    clock = EventClock(gpu)
    calls = SimpleNamespace(before=int, run=lambda: gpu.kernel(seconds), settle=int)
    time = meter.measure_time(calls, clock, 0.0, [])
    assert least <= time.n <= least + clock.batch
    assert time.clocks == {"sm_mhz": pytest.approx(1000), "sm_mhz_min": pytest.approx(1000)}


@pytest.mark.parametrize(("floor_s", "near"), [(1e-6, True), (4e-7, False), (None, False)])
def test_a_time_near_what_an_empty_kernel_takes_is_flagged(floor_s, near):
    gpu = fake.FakeGpu()
    calls = SimpleNamespace(before=int, run=lambda: gpu.kernel(1.1e-5), settle=int)
    time = meter.measure_time(calls, EventClock(gpu), 0.0, [], floor_s=floor_s)
    said = ["near the floor of its clock: an empty kernel takes 1 µs"]
    assert time.flags == (said if near else [])


def test_a_driver_that_does_not_say_is_flagged_once(gpu):
    scene = Scene()
    scene.board.reasons = lambda: Absent("no")
    assert len(scene.take(2)) == 20
    assert scene.health.flags() == ["slow-downs were not watched for: no"]
    for device, flags in (("cpu", []), ("cuda", ["slow-downs were not watched for: no driver"])):
        health = health_for(device)
        assert (health.take(lambda: [1.0]), health.flags()) == ([1.0], flags)


@pytest.mark.parametrize(
    ("cpu", "waits", "threads", "flags"),
    [
        (0.95, 500, 1, []),
        (1.9, 500, 2, []),
        (0.6, 3, 1, ["contended: 60\u00a0% of a processor"]),
        (0.38, 100, 1, [WAITED]),
        (0.5, 1000, 2, ["contended: 50\u00a0% of a processor"]),  # threads wait for one another
    ],
)
def test_a_processor_that_was_not_there_is_flagged(cpu, waits, threads, flags):
    assert meter.processor_flags(1.0, cpu, waits, 100, threads) == flags
