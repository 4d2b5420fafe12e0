"""What the meter makes of a call's memory, with the profiler's events and the readings given."""

from types import SimpleNamespace

import pytest
import torch

from attnbench.gate.inputs import Call, make
from attnbench.meter import memory
from impls.dense.matmul import build
from impls.problem import Problem

SMALL = Problem(heads=1, kv_heads=1, q_len=8, kv_len=8, head_dim=4, v_head_dim=4)
OUTPUT = 8 * 4 * 4
MIB = 1 << 20


def event(at, name=memory.MEMORY, nbytes=0):
    return name, SimpleNamespace(start_ns=lambda: at, nbytes=lambda: nbytes)


STEPS = [event(1, nbytes=100), event(3, nbytes=50), event(5, nbytes=-120), event(7, nbytes=10)]


def test_the_peak_is_the_highest_sum_on_the_way_and_not_the_last():
    assert memory._replay(STEPS) == (150, None)


def test_events_count_in_the_order_of_their_time():
    assert memory._replay([STEPS[2], STEPS[0], STEPS[3], STEPS[1]]) == (150, None)


@pytest.mark.parametrize(("at", "between"), [(0, 0), (2, 100), (4, 150), (6, 30), (9, 40)])
def test_between_forward_and_backward_is_what_was_there_then(at, between):
    assert memory._replay([*STEPS, event(at, memory.BETWEEN)]) == (150, between)


# ---- what a variant holds ------------------------------------------------------------------------


class Holding:
    """A variant with something put where its code can find it."""

    def __init__(self, thing):
        self.thing = thing

    def __call__(self, q, k, v):
        return build(SMALL)(q, k, v)


def by_closure(thing):
    return lambda q, k, v: (thing, v)[1]


def by_default(thing):
    def attend(q, k, v, thing=thing):
        return v

    return attend


@pytest.mark.parametrize(
    "hide",
    [
        by_closure,
        by_default,
        Holding,
        lambda x: Holding([x]),
        lambda x: Holding({"by name": (x,)}),
        lambda x: Holding(by_closure(x)),
        lambda x: by_closure(Holding(x)),
        lambda x: Holding([x, x[0], x.T]),
    ],
)
def test_what_a_variant_holds_from_call_to_call_is_found_and_counted_once(hide):
    call = Call(SMALL, hide(torch.zeros(512, 512)), make(SMALL, 0))
    assert memory._held(call) == 4 * 512 * 512


def test_neither_its_inputs_nor_its_weights_are_held():
    inputs = make(SMALL, 0)
    attend = Holding(None)
    attend.weights = {"w": torch.zeros(64)}
    call = Call(SMALL, attend, inputs)
    attend.thing = [*call.leaves, call.leaves[0][:, :, :2], attend.weights["w"].view(8, 8)]
    assert memory._held(call) == 0
    attend.thing = inputs[0]
    assert memory._held(call) == inputs[0].untyped_storage().nbytes()


# ---- what is said of it --------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """What is observed of a call whose readings are given."""

    def observed(peak=MIB, between=None, high=0, held=0, problem=SMALL):
        monkeypatch.setattr(memory, "_replay", lambda events: (peak, between))
        monkeypatch.setattr(memory, "_reset_high_water", lambda: 1000)
        monkeypatch.setattr(memory, "_kernel_bytes", lambda field: 1000 + high)
        monkeypatch.setattr(memory, "_held", lambda call: held)
        inputs = make(problem, 0)
        dout = torch.ones(problem.output_shape) if problem.gradients else None
        return memory.observe(problem, build(problem), inputs, dout, None).memory

    return observed


def test_the_running_sum_is_the_peak_where_nothing_speaks_against_it(seen):
    found = seen(high=33 * MIB, held=int(0.1 * MIB))
    assert (found.peak_bytes, found.method, found.flags) == (MIB, "allocation events", [])


def test_a_process_that_grew_by_much_more_took_memory_elsewhere(seen):
    found = seen(high=40 * MIB)
    assert (found.peak_bytes, found.method) == (40 * MIB, "high-water mark")
    said = f"the process grew by {40 * MIB} bytes: memory taken past torch's allocator"
    assert found.flags == [said]


def test_what_allocated_less_than_its_output_is_flagged(seen):
    long = SMALL.with_(q_len=4096, v_head_dim=64)  # far more than Python's own objects take
    found = seen(peak=1000, problem=long)
    assert found.method == "allocation events and traced arrays"
    assert "it allocated less than its output" in found.flags[0]
    assert seen(peak=4096 * 64 * 4, problem=long).flags == []


def test_what_is_held_from_call_to_call_is_flagged_with_its_bytes(seen):
    said = "it holds 500000 bytes from call to call: they are not in its peak"
    assert seen(held=500000).flags == [said]
    assert seen(held=500000, peak=4 * MIB).flags == []  # little beside the peak


def test_what_stays_for_backward_is_what_is_there_then_but_the_output(seen):
    assert seen(between=1000, problem=SMALL.with_(phase="train")).saved_bytes == 1000 - OUTPUT


@pytest.mark.parametrize(
    ("methods", "counts"),
    [
        (["events"], 0),
        (["high-water mark", "events"], 1),
        (["high-water mark"] * 3, 2),
    ],
)
def test_a_high_water_mark_is_believed_the_third_time(monkeypatch, methods, counts):
    looks = [SimpleNamespace(memory=SimpleNamespace(method=method)) for method in methods]
    given = iter(looks)
    monkeypatch.setattr(memory, "_observe_cpu", lambda *_: next(given))
    seen = memory.observe(SMALL, build(SMALL), make(SMALL, 0), None, None)
    assert seen is looks[counts]
    assert list(given) == []


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_what_the_call_that_is_observed_gave_comes_with_it(phase):
    problem = SMALL.with_(phase=phase)
    inputs, attend = make(problem, 0), build(problem)
    dout = torch.ones(problem.output_shape) if problem.gradients else None
    results = memory.observe(problem, attend, inputs, dout, None).results
    call = Call(problem, attend, inputs)
    out = call.forward()
    gradients = () if dout is None else call.backward(out, dout)
    assert list(results) == ["forward", *call.names] if gradients else ["forward"]
    for got, want in zip(results.values(), (out, *gradients), strict=True):
        assert torch.equal(got, want)


def test_a_call_grows_the_process_by_its_highest_mark_above_where_it_stood(monkeypatch):
    done, stood = [], []
    monkeypatch.setattr(memory, "_reset_high_water", lambda: stood.append(list(done)) or 10)
    monkeypatch.setattr(memory, "_kernel_bytes", lambda field: 25 if done else 0)
    assert memory.growth(lambda: done.append(1)) == 15
    assert stood == [[]]


def test_growth_that_somebody_saw_is_not_looked_for_again(monkeypatch):
    monkeypatch.setattr(memory, "growth", lambda run: pytest.fail("it was looked for"))
    given = []
    look = SimpleNamespace(memory=SimpleNamespace(method="events"))
    monkeypatch.setattr(memory, "_observe_cpu", lambda *asked: given.append(asked[-1]) or look)
    memory.observe(SMALL, build(SMALL), make(SMALL, 0), None, None, 7)
    assert given == [7]
