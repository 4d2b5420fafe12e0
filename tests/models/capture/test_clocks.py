"""A capture's clocks: of calls, their gradients, the steps, a GPU's events."""

import gc
import threading

import pytest
import torch

from attnbench.models.capture import recorder, tally
from attnbench.models.capture import recorder as clocks
from attnbench.models.capture import recorder as gradients
from attnbench.models.capture.recorder import CapturedCall, Recorder
from attnbench.models.capture.tally import Later, SiteEntry, Tally


class Turning(torch.autograd.Function):
    """Moves the clock by so much in its backward pass."""

    @staticmethod
    def forward(ctx, x, clock, by):
        ctx.clock, ctx.by = clock, by
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.now += ctx.by
        return grad, None, None


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    for module in (clocks, gradients, recorder, tally):
        monkeypatch.setattr(module, "perf_counter", lambda: Clock.now)
    return Clock


def test_the_gradient_of_a_call_is_timed_and_of_nothing_else(clock):
    counts = Tally()
    entry = SiteEntry(None, counts)
    q, k = (torch.ones(3, requires_grad=True) for _ in "qk")
    a, b = Turning.apply(q, clock, 100.0), Turning.apply(k, clock, 1000.0)
    inner = Turning.apply(Turning.apply(a, clock, 3.0) * Turning.apply(b, clock, 2.0), clock, 7.0)
    gradients.watch(inner, (a, b), entry, counts, clocks.HostSpan())
    Turning.apply(inner, clock, 10.0).sum().backward()
    assert counts.mine().by_entry[entry] == [0.0, 0.0, 12.0]
    assert counts.attention_s() == 12.0


class Again(torch.autograd.Function):
    """Does something in its backward pass, as a checkpoint that computes attention again."""

    @staticmethod
    def forward(ctx, x, deed):
        ctx.deed = deed
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.deed()
        return grad, None


def test_what_is_recorded_within_a_gradient_is_not_counted_twice(clock):
    counts = Tally()
    first, second = SiteEntry(None, counts), SiteEntry(None, counts)

    def again():
        clock.now += 7.0
        call = Later()
        call.add(4.0, backward=False)
        call.to(second)
        counts.within_gradient(call)
        counts.mine().looked += 2.0

    x = torch.ones(3, requires_grad=True)
    out = Again.apply(x, again)
    gradients.watch(out, (x,), first, counts, clocks.HostSpan())
    out.sum().backward()
    again()  # outside of the gradient: nothing is taken off
    found = counts.mine().by_entry
    assert (found[first], found[second]) == ([0.0, 0.0, 1.0], [0.0, 8.0, 0.0])


def test_nor_on_a_gpu_where_both_are_read_later(gpu):
    counts, events = Tally(), clocks.Events()
    first, second = SiteEntry(None, counts), SiteEntry(None, counts)

    def again():
        gpu.queued += 3
        call = Later()
        events.end(events.begin(), call, backward=False)
        call.to(second)
        counts.within_gradient(call)

    x = torch.ones(3, requires_grad=True)
    out = Again.apply(x, again)
    gradients.watch(out, (x,), first, counts, events)
    out.sum().backward()
    events.read(wait=True)
    found = counts.mine().by_entry  # from the first event to the last but the one second of a call
    assert (found[first], found[second]) == ([0.0, 0.0, 5.0], [0.0, 1.0, 0.0])


def test_reading_a_gpus_events_does_not_make_the_window_longer(gpu, clock):
    counts, events = Tally(), clocks.Events()
    entry = SiteEntry(None, counts)
    counts.called(entry, 1.0, 3.0)
    events.end(events.begin(), entry, backward=True)
    clock.now = 100.0
    events.read(wait=True)
    assert counts.window() == 2.0


def test_a_gradient_in_a_thread_of_its_own_is_in_the_window(clock):
    counts = Tally()
    entry = SiteEntry(None, counts)
    counts.called(entry, 1.0, 3.0)
    gradient = gradients.Gradient(entry, counts, clocks.HostSpan())
    clock.now = 9.0
    one = threading.Thread(target=lambda: (gradient.enter(None), gradient.leave()))
    one.start()
    one.join()
    assert counts.window() == 8.0


def test_looking_at_calls_is_taken_off_the_window_and_the_steps(clock):
    some, x = Recorder(), torch.zeros(1, 1, 2, 2)
    optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)

    def looked_at():
        clock.now += 16.0
        return CapturedCall("sdpa", x, x, x)

    for _ in range(3):
        begun = some.clocks.begin(x)
        clock.now += 1.0
        some.made(looked_at, x, begun)
        clock.now += 3.0
        some.steps.stepped(optimizer)
    calls = some.calls(complete=True)
    assert calls.attention_s == 3.0 and calls.wall_s == 9.0  # from 0 to 41, less twice 16
    assert (calls.step_s, calls.step_share) == (4.0, 0.25)


def test_what_goes_wrong_in_telling_a_call_is_counted():
    some, x = Recorder(), torch.zeros(1, 1, 2, 2)
    some.made(lambda: 1 / 0, x, some.clocks.begin(x))
    assert some.calls(complete=True).sites == []
    assert list(some.amiss) == ["ZeroDivisionError: division by zero"]


def test_steps_are_from_one_optimizers_step_to_the_next(clock):
    counts = Tally()
    entry, seen = SiteEntry(None, counts), tally.StepTimes(counts)
    first, second = (torch.optim.SGD([torch.ones(1)], lr=0.1) for _ in "ab")
    assert seen.told()["steps"] == 0
    for took, attention in ((9.0, 9.0), (2.0, 1.0), (4.0, 1.0), (10.0, 1.0)):
        clock.now += took - 0.5
        entry.add(attention, backward=False)
        seen.stepped(first)
        clock.now += 0.5
        seen.stepped(second)  # of the same step
    told = seen.told()
    between = told.pop("step_share_between")
    assert told == {"steps": 3, "step_s": 4.0, "step_share": 0.25}
    assert between[0] <= 0.25 <= between[1]


def test_when_the_first_optimizer_is_gone_another_counts(clock):
    seen = tally.StepTimes(Tally())
    for took in (1.0, 2.0):  # a phase of training each
        optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
        for _ in range(3):
            clock.now += took
            seen.stepped(optimizer)
        clock.now += 50.0
        del optimizer
        gc.collect()
    assert seen.told()["steps"] == 4 and seen.told()["step_s"] == 1.5


@pytest.fixture
def gpu(monkeypatch):
    """A GPU's events, on a clock that passes one second a call."""

    class Gpu:
        done, queued, capturing = 0, 0, False

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            Gpu.queued += 1
            self.at = Gpu.queued

        def query(self):
            return self.at <= Gpu.done

        def synchronize(self):
            Gpu.done = max(Gpu.done, self.at)

        def elapsed_time(self, later):
            assert later.query()
            return 1e3 * (later.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Gpu.capturing)
    return Gpu


def test_a_gpus_calls_are_read_when_they_have_passed(gpu):
    counts = Tally()
    entry, events = SiteEntry(None, counts), clocks.Events()
    for _ in range(3):
        events.end(events.begin(), entry, backward=False)
    gpu.done = 4
    assert events.read(wait=False) is None and counts.attention_s() == 2.0
    assert events.read(wait=True) is not None and counts.attention_s() == 3.0
    gpu.capturing = True
    events.end(events.begin(), entry, backward=False)  # of a graph: not timed
    assert gpu.queued == 6
    gpu.capturing = False
    for _ in range(2 * clocks.PENDING):  # whoever calls and calls does not hold all events
        gpu.done = gpu.queued
        events.end(events.begin(), entry, backward=True)
    assert len(events._pending) <= clocks.PENDING + 1
