"""The other two clocks of a GPU that isn't there: from end to end, and by graphs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.meter.clocks import QUEUE, EndToEndClock, EventClock, GraphClock
from attnbench.meter.timed import prepare
from impls.loading import load_file

FakeGpu = load_file(Path(__file__).with_name("fake_gpu.py")).FakeGpu


def nothing():
    pass


def readings(clock, call, count=QUEUE, before=nothing):
    return clock.samples(before, call, count)


# ---- what events can't see, the other clock does -------------------------------------------------


def test_work_on_a_side_stream_is_seen_from_end_to_end_alone():
    gpu = FakeGpu()

    def call():
        gpu.kernel(10e-6)
        gpu.kernel(5e-3, stream="side")

    assert max(readings(EventClock(gpu), call, 4)) < 20e-6
    assert min(readings(EndToEndClock(gpu), call, 4)) >= 5e-3


def test_events_that_lie_are_contradicted_from_end_to_end():
    gpu = FakeGpu(lie=0.5)
    events = readings(EventClock(gpu), lambda: gpu.kernel(1e-3), 4)
    whole = readings(EndToEndClock(gpu), lambda: gpu.kernel(1e-3), 4)
    assert events == pytest.approx([0.5e-3] * 4)
    assert min(whole) >= 1e-3


def test_end_to_end_has_launching_in_it():
    gpu = FakeGpu(launch_s=50e-6)

    def call():
        for _ in range(4):
            gpu.kernel(10e-6)

    assert min(readings(EndToEndClock(gpu), call, 4)) >= 200e-6


# ---- graphs --------------------------------------------------------------------------------------


class Decoder:
    """A call of many small kernels that puts its result aside, as what is timed does."""

    def __init__(self, gpu, fault=None):
        self.gpu, self.fault, self.out, self.seen = gpu, fault, None, []

    def before(self):
        self.seen.append(self.out)
        self.out = None

    def run(self):
        for _ in range(30):
            self.gpu.kernel(2e-6)
        if self.fault == "waits":
            self.gpu.synchronize()
        self.out = "result" if self.gpu.captured is None else "static result"
        return self.out

    def held(self):
        kept = self.out

        def put_back():
            self.out = kept

        return put_back


def prepared(gpu, fault=None):
    one, clock = Decoder(gpu, fault), GraphClock(gpu)
    clock.prepare(one.before, one.run, one.held)
    return one, clock


def test_a_graph_is_replayed_behind_the_sleep_and_named_so():
    gpu = FakeGpu(launch_s=10e-6)
    one, clock = prepared(gpu)
    taken = clock.samples(one.before, one.run, 40)
    assert (clock.name, clock.flags, clock.batch) == ("graph", (), QUEUE)
    assert taken == pytest.approx([60e-6] * 40)
    assert gpu.log.count("replay") == 41


def test_a_replay_leaves_its_result_where_it_is_looked_for():
    one, clock = prepared(FakeGpu())
    one.seen.clear()
    clock.samples(one.before, one.run, 5)
    assert one.seen == ["static result"] * 5
    assert one.out == "static result"


@pytest.mark.parametrize("moves", [False, True])
def test_a_decoder_is_captured_where_what_it_remembers_stays(moves):
    gpu = FakeGpu()
    one, clock = Decoder(gpu), GraphClock(gpu)
    one.hold, one.call = one.held, SimpleNamespace(moves=moves)
    prepare(clock, one)
    clock.samples(one.before, one.run, 4)
    assert clock.name == ("e2e" if moves else "graph")
    said = "timed without a CUDA graph: what it remembers of the tokens before lies elsewhere"
    assert len(clock.flags) == moves and all(flag.startswith(said) for flag in clock.flags)


def test_a_call_that_can_not_be_captured_is_timed_from_end_to_end_and_says_why():
    gpu = FakeGpu(launch_s=10e-6)
    one, clock = prepared(gpu, "waits")
    assert one.out == "result"
    taken = clock.samples(one.before, one.run, 4)
    assert clock.name == "e2e"
    assert clock.batch == 1
    assert "not permitted when stream is capturing" in clock.flags[0]
    assert clock.flags[0].startswith("timed without a CUDA graph: the call can't be captured")
    assert min(taken) >= 300e-6
    assert "replay" not in gpu.log


def test_a_clock_that_was_not_prepared_is_the_end_to_end_clock():
    gpu = FakeGpu()
    clock = GraphClock(gpu)
    assert clock.name == "e2e"
    assert clock.flags == ("timed without a CUDA graph: no call was captured",)
    assert len(clock.samples(nothing, lambda: gpu.kernel(1e-5), 3)) == 3


def test_a_replay_is_never_taken_for_another_call():
    gpu = FakeGpu()
    _, clock = prepared(gpu)
    other = Decoder(gpu)
    with pytest.raises(ValueError, match="another call"):
        clock.samples(other.before, other.run, 1)
    clock.prepare(other.before, other.run, other.held)
    assert len(clock.samples(other.before, other.run, 1)) == 1


def test_the_step_of_a_prepared_clock_is_the_replay():
    gpu = FakeGpu()
    one, clock = prepared(gpu)
    before = gpu.log.count("replay")
    clock.step(one.run)()
    assert gpu.log.count("replay") == before + 1
    assert GraphClock(gpu).step(one.run) == one.run
