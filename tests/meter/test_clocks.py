"""The host clock reads what passes, and lets nothing else into the sample."""

import gc
import time
from pathlib import Path

import pytest

from attnbench.meter import clocks
from attnbench.meter.clocks import HostClock, clock_for
from impls.loading import load_file

FakeGpu = load_file(Path(__file__).with_name("fake_gpu.py")).FakeGpu


def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_busy_wait_of_five_milliseconds_reads_as_five_milliseconds():
    taken = HostClock().samples(lambda: None, lambda: busy(0.005), 20)
    assert len(taken) == 20
    assert 0.005 * 0.999 <= min(taken) <= 0.005 * 1.02


def test_what_goes_before_runs_ahead_of_each_call_and_is_not_timed():
    steps = []

    def before():
        steps.append("before")
        time.sleep(0.02)

    taken = HostClock().samples(before, lambda: steps.append("call"), 5)
    assert steps == ["before", "call"] * 5
    assert min(taken) < 0.01


def test_what_a_call_returned_is_freed_before_the_next_and_outside_the_sample():
    class Slow:
        alive = 0

        def __init__(self):
            Slow.alive += 1

        def __del__(self):
            Slow.alive -= 1
            time.sleep(0.02)

    seen = []
    taken = HostClock().samples(lambda: seen.append(Slow.alive), Slow, 3)
    assert seen == [0, 0, 0]
    assert min(taken) < 0.01


def test_the_collector_waits_and_is_put_back_even_after_an_error():
    seen = []
    HostClock().samples(lambda: None, lambda: seen.append(gc.isenabled()), 2)
    assert seen == [False, False]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        HostClock().samples(lambda: None, lambda: 1 / 0, 2)
    assert gc.isenabled()


def test_a_call_that_puts_another_clock_in_place_is_read_by_the_one_it_began_with(monkeypatch):
    def call():
        monkeypatch.setattr(clocks, "perf_counter_ns", lambda: 0)

    (taken,) = HostClock().samples(lambda: None, call, 1)
    assert taken > 0


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        HostClock().samples(lambda: None, lambda: None, 1)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("phase", ["forward", "train", "backward", "decode"])
def test_the_processor_is_timed_by_the_host_clock(phase):
    assert clock_for("cpu", phase).name == "host"


@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("forward", "EventClock"),
        ("train", "EventClock"),
        ("backward", "EventClock"),
        ("decode", "GraphClock"),
    ],
)
def test_a_gpu_is_timed_by_events_and_a_decoder_by_its_graph(monkeypatch, phase, name):
    monkeypatch.setattr(clocks, "cuda_gpu", lambda device: FakeGpu())
    assert type(clock_for("cuda:1", phase)).__name__ == name
