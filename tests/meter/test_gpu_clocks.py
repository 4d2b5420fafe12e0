"""The clocks of a GPU, on one that isn't there: what they read, and what they say of it."""

from pathlib import Path

import pytest

from attnbench.meter.clocks import QUEUE, EndToEndClock, EventClock
from impls.loading import load_file

FakeGpu = load_file(Path(__file__).with_name("fake_gpu.py")).FakeGpu


def nothing():
    pass


def readings(clock, call, count=QUEUE, before=nothing):
    return clock.samples(before, call, count)


# ---- events --------------------------------------------------------------------------------------


def test_events_read_what_the_kernels_took_though_launching_takes_longer():
    gpu = FakeGpu(launch_s=50e-6)

    def call():
        for _ in range(4):
            gpu.kernel(10e-6)

    assert readings(EventClock(gpu), call, 40) == pytest.approx([40e-6] * 40)


def test_without_the_sleep_the_gaps_between_launches_would_be_in_the_samples():
    gpu = FakeGpu(launch_s=50e-6)
    gpu.sleep = lambda cycles: None

    def call():
        for _ in range(4):
            gpu.kernel(10e-6)

    clock = EventClock(gpu)
    assert min(readings(clock, call)) > 100e-6
    assert clock.flags[0].startswith("launch-bound: ")


def test_the_sleep_grows_until_the_host_has_queued_everything():
    gpu = FakeGpu()

    def call():
        gpu.busy_host(500e-6)  # sixteen of these outlast the first sleep
        gpu.kernel(20e-6)

    clock = EventClock(gpu)
    assert readings(clock, call, 32) == pytest.approx([20e-6] * 32)
    assert clock.flags == ()
    assert clock._cycles(QUEUE) / gpu.hz > 16 * 500e-6


def test_the_sleep_shrinks_to_what_the_host_needs():
    gpu = FakeGpu()
    clock = EventClock(gpu)
    readings(clock, lambda: gpu.kernel(20e-6), 32)
    assert clock._cycles(QUEUE) / gpu.hz < 1e-3


def deep(gpu):
    """Sixty kernels a call and forty for its fresh values: a stream does not hold sixteen calls."""

    def before():
        for _ in range(40):
            gpu.kernel(1e-6)

    def call():
        for _ in range(60):
            gpu.kernel(50e-6)

    return before, call


def test_no_more_is_queued_than_a_stream_holds_where_the_launches_of_a_call_are_known():
    batches = {}
    for known in (True, False):
        gpu = FakeGpu()
        before, call = deep(gpu)
        clock = EventClock(gpu)
        if known:
            clock.expect(60)
        readings(clock, call, 1, before)  # so that it is known how long the host takes
        gpu.log.clear()
        assert readings(clock, call, 14, before) == pytest.approx([60 * 50e-6] * 14)
        assert clock.flags == ()
        batches[known] = gpu.log.count("sleep")
    assert batches[True] == 2  # of seven, none thrown away
    assert batches[False] > 2


def test_a_call_that_a_stream_does_not_hold_is_flagged_as_that_and_not_as_launch_bound():
    gpu = FakeGpu()
    clock = EventClock(gpu)
    clock.expect(1200)

    def call():
        for _ in range(1200):
            gpu.kernel(20e-6)  # four times what launching takes

    assert readings(clock, call, 4) == pytest.approx([1200 * 20e-6] * 4, rel=0.01)
    assert clock.flags == (
        "not queued ahead: a call launches about 1200 kernels, more than a stream holds, so gaps "
        "between launches may be in its time",
    )


def test_a_batch_of_one_foretells_the_sleep_of_sixteen():
    gpu = FakeGpu()
    clock = EventClock(gpu)

    def before():
        gpu.busy_host(300e-6)

    def call():
        gpu.busy_host(200e-6)
        gpu.kernel(20e-6)

    readings(clock, call, 1, before)
    gpu.log.clear()
    for count in (16, 1, 16, 3):
        assert readings(clock, call, count, before) == pytest.approx([20e-6] * count)
    assert gpu.log.count("sleep") == 4


def test_a_host_that_stumbles_once_costs_a_batch_and_no_more():
    gpu, numbers = FakeGpu(), iter(range(10**6))

    def call():
        gpu.busy_host(20e-3 if next(numbers) == 20 else 1e-6)
        gpu.kernel(20e-6)

    clock = EventClock(gpu)
    assert readings(clock, call, 64) == pytest.approx([20e-6] * 64)
    assert clock.flags == ()
    assert next(numbers) == 64 + 16


def test_a_host_that_stumbles_now_and_then_still_queues_sixteen():
    gpu, numbers = FakeGpu(), iter(range(10**6))

    def call():
        gpu.busy_host(20e-3 if next(numbers) % 97 == 90 else 1e-6)
        gpu.kernel(20e-6)

    clock = EventClock(gpu)
    assert readings(clock, call, 640) == pytest.approx([20e-6] * 640)
    assert clock.flags == ()
    assert clock._size == QUEUE


def test_a_call_that_waits_for_the_device_is_kept_and_flagged_as_launch_bound():
    gpu = FakeGpu()

    def call():
        gpu.kernel(20e-6)
        gpu.synchronize()
        gpu.busy_host(30e-6)
        gpu.kernel(20e-6)

    clock = EventClock(gpu)
    taken = readings(clock, call, 8)
    assert len(taken) == 8
    assert min(taken) > 70e-6  # the gap is in it
    assert clock.flags[0].startswith("launch-bound: ")


def test_a_host_slower_than_the_longest_sleep_is_flagged():
    gpu = FakeGpu()

    def call():
        gpu.busy_host(0.3)
        gpu.kernel(20e-6)

    clock = EventClock(gpu)
    assert len(readings(clock, call, 4)) == 4
    assert "takes 300 ms to queue a call" in clock.flags[0]


def test_fewer_calls_are_queued_where_the_queue_is_too_short_for_all():
    gpu = FakeGpu(launch_s=2e-6)

    def call():  # sixteen times 100 launches are more than a stream holds
        for _ in range(100):
            gpu.kernel(3e-6)

    clock = EventClock(gpu)
    assert readings(clock, call, 48) == pytest.approx([300e-6] * 48)
    assert clock.flags == ()
    assert 1 < clock._size < QUEUE


def test_every_call_finds_its_inputs_gone_from_the_cache():
    gpu = FakeGpu(cold=1.0)
    for clock in (EventClock(gpu), EndToEndClock(gpu)):
        assert min(readings(clock, lambda: gpu.kernel(1e-3), 20)) >= 1.99e-3


def test_fresh_values_come_before_the_cache_is_emptied_and_outside_the_sample():
    gpu = FakeGpu()

    def before():
        gpu.log.append("before")
        gpu.kernel(5e-3)

    def call():
        gpu.log.append("call")
        gpu.kernel(20e-6)

    for make, tail in ((EventClock, []), (EndToEndClock, ["synchronize"])):
        gpu.log.clear()
        taken = readings(make(gpu), call, 4, before)
        assert max(taken) < 1e-4
        steps = [x for x in gpu.log if x != "sleep"]
        assert steps[: 3 + len(tail)] == ["before", "flush", *tail, "call"]


def test_one_wait_serves_a_whole_batch():
    gpu = FakeGpu()
    readings(EventClock(gpu), lambda: gpu.kernel(20e-6), 64)
    assert gpu.log.count("synchronize") == 4


def test_a_before_that_waits_for_the_device_ends_in_batches_of_one_without_a_flag():
    gpu = FakeGpu()
    clock = EventClock(gpu)
    taken = readings(clock, lambda: gpu.kernel(20e-6), 20, gpu.synchronize)
    assert taken == pytest.approx([20e-6] * 20)
    assert clock.flags == ()
    assert clock._size == 1
