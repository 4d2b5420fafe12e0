"""A capture's clocks: of calls, their gradients, the steps, a GPU's events."""

import gc

import pytest
import torch

from attnbench.models.capture import clocks, recorder
from attnbench.models.capture.captured_call import CapturedCall
from attnbench.models.capture.recorder import Recorder


class Does(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, action):
        ctx.action = action
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.action()
        return grad, None


class Clock:
    now = 0.0

    def turning(self, x, by):
        """Moves the clock in its backward pass."""
        return Does.apply(x, lambda: setattr(self, "now", self.now + by))


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (clocks, recorder):
        monkeypatch.setattr(module, "perf_counter", lambda: made.now)
    return made


def test_the_gradient_of_a_call_is_timed_and_of_nothing_else(clock):
    tally, entry, turning = clocks.Tally(), clocks.Entry(), clock.turning
    q, k = (torch.ones(3, requires_grad=True) for _ in "qk")
    a, b = turning(q, 100.0), turning(k, 1000.0)
    inner = turning(turning(a, 3.0) * turning(b, 2.0), 7.0)
    clocks.watch_gradient(inner, (a, b), entry, tally, clocks.SpanClock())
    turning(inner, 10.0).sum().backward()
    assert tally.by_entry[entry][:3] == [0.0, 0.0, 12.0]
    assert tally.attention_s == 12.0


def test_what_is_recorded_within_a_gradient_is_not_counted_twice(clock):
    some, x = Recorder(), torch.ones(1, 1, 2, 2, requires_grad=True)

    def again():
        span = some.begin(x)
        clock.now += 4.0
        some.record(lambda: CapturedCall("sdpa", x, x, x), x.detach(), span)

    entry, earlier = clocks.Entry(), Does.apply(x, again)
    out = Does.apply(earlier, again)
    clocks.watch_gradient(out, (earlier,), entry, some.tally, clocks.SpanClock())
    out.sum().backward()  # after the gradient that of the earlier: nothing is taken off
    again()
    forward, backward = some.tally.by_entry.pop(entry)[1:3]
    others = sum(counts[1] for counts in some.tally.by_entry.values())
    assert (forward, backward, others) == (0.0, 0.0, 12.0)


def test_looking_at_calls_is_taken_off_the_window_and_the_steps(clock):
    some, x = Recorder(), torch.zeros(1, 1, 2, 2)
    optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)

    def looked_at():
        clock.now += 16.0
        return CapturedCall("sdpa", x, x, x)

    for _ in range(3):
        span = some.begin(x)
        clock.now += 1.0
        some.record(looked_at, x, span)
        clock.now += 3.0
        some.steps.stepped(optimizer)
    calls = some.calls(complete=True)
    assert calls.attention_s == 3.0 and calls.wall_s == 9.0  # from 0 to 41, less twice 16
    assert (calls.step_s, calls.step_share) == (4.0, 0.25)


def test_steps_are_from_one_step_of_the_first_optimizer_to_the_next(clock):
    tally, entry = clocks.Tally(), clocks.Entry()
    steps = clocks.Steps(tally)
    first, second = (torch.optim.SGD([torch.ones(1)], lr=0.1) for _ in "ab")
    assert steps.summary() == {}
    for took, attention in ((9.0, 9.0), (2.0, 1.0), (4.0, 1.0), (10.0, 1.0)):
        clock.now += took - 0.5
        tally.add(entry, attention, backward=False)
        steps.stepped(first)
        clock.now += 0.5
        steps.stepped(second)  # of the same step
    summary = steps.summary()
    between = summary.pop("step_share_between")
    assert summary == {"steps": 3, "step_s": 4.0, "step_share": 0.25}
    assert between[0] <= 0.25 <= between[1]
    assert steps.summary(by_host=False)["step_share"] is None
    clock.now += 50.0
    del first
    gc.collect()
    for _ in range(2):  # another phase of training
        clock.now += 4.0
        steps.stepped(second)
    assert steps.summary()["steps"] == 4 and steps.summary()["step_s"] == 4.0


class Event:
    """Of a GPU whose clock passes one second a call."""

    done, queued, capturing = 0, 0, False

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.queued += 1
        self.at = Event.queued

    def query(self):
        return self.at <= Event.done

    def synchronize(self):
        Event.done = max(Event.done, self.at)

    def elapsed_time(self, later):
        return 1e3 * (later.at - self.at)


def test_a_gpus_calls_are_read_when_they_have_passed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Event.capturing)
    tally, entry, events = clocks.Tally(), clocks.Entry(), clocks.GpuClock()

    def call():
        events.add(clocks.Span(events, events.now(), events.now()), tally, entry, backward=False)

    for _ in range(3):
        call()
    Event.done = 4
    assert events.read(wait=False) is None and tally.attention_s == 2.0
    assert events.read(wait=True) is not None and tally.attention_s == 3.0
    Event.capturing = True
    call()  # of a graph: not timed
    assert Event.queued == 6
    Event.capturing = False
    for _ in range(2 * clocks.PENDING):  # many calls don't hold all their events
        Event.done = Event.queued
        call()
    assert tally.attention_s >= 3.0 + clocks.PENDING
