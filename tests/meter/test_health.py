"""Was the device itself, and the processor there? Slow-downs, waits and others are planted."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.core.gpu import SLOWDOWNS, Absent
from attnbench.meter import timed
from attnbench.meter.timed import Health, Processor, health_for
from impls.loading import load_file

fake = load_file(Path(__file__).with_name("fake_gpu.py"))


class Scene:
    """A GPU that is slow at times, and batches of ten calls of ten milliseconds on it."""

    def __init__(self, *slow, **board):
        self.gpu = fake.FakeGpu(launch_s=0.0)
        self.gpu.slow = list(slow)
        self.waits = []
        self.watch = Health(fake.FakeBoard(self.gpu, **board), self.wait)

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
        return [x for _ in range(count) for x in self.watch.take(self.batch)]


def test_a_healthy_device_keeps_everything():
    scene = Scene()
    assert len(scene.take(5)) == 50
    assert (scene.watch.discarded, scene.watch.flags(), scene.waits) == (0, [], [])
    assert scene.watch.clocks() == {"sm_mhz": 1980.0, "sm_mhz_min": 1980.0}


@pytest.mark.parametrize("reason", sorted(SLOWDOWNS))
def test_what_was_taken_while_slow_is_thrown_away_counted_and_taken_again(reason):
    scene = Scene((0.12, 0.5, 2.0, reason))
    taken = scene.take(5)
    assert len(taken) == 50
    assert max(taken) == pytest.approx(0.01)
    assert scene.watch.discarded >= 20
    assert scene.watch.flags() == []


def test_a_slow_down_that_came_and_went_within_a_batch_is_found_by_its_time():
    scene = Scene((0.03, 0.05, 2.0, "SwThermal"), sees=False)
    assert max(scene.take(2)) == pytest.approx(0.01)
    assert scene.watch.discarded == 10
    blind = Scene((0.03, 0.05, 2.0, "SwThermal"), sees=False, remembers=False)
    assert max(blind.take(2)) > 0.015


def test_waits_grow_and_then_it_gives_up_and_says_so():
    scene = Scene((0.0, 1e9, 2.0, "HwThermal"))
    taken = scene.take(3)
    assert len(taken) == 30
    assert scene.waits == [0.05, 0.1, 0.2, 0.4, 0.5]
    assert scene.watch.discarded == 50
    (flag,) = scene.watch.flags()
    assert flag.startswith("slowed down all the time (HwThermal): 50 samples were thrown away")


def test_a_power_cap_is_flagged_and_kept():
    scene = Scene((0.0, 0.25, 1.2, "SwPowerCap"))
    assert len(scene.take(4)) == 40
    assert scene.watch.discarded == 0
    (flag,) = scene.watch.flags()
    assert flag.startswith("power-capped: in 3 of 4 batches")
    assert "700 W" in flag


def test_a_power_cap_that_came_and_went_within_a_batch_is_flagged_too():
    scene = Scene((0.03, 0.05, 1.2, "SwPowerCap"), sees=False)
    scene.take(4)
    (flag,) = scene.watch.flags()
    assert flag.startswith("power-capped: in 1 of 4 batches")
    assert scene.watch.discarded == 0


def test_clocks_are_the_median_and_the_least_of_what_was_seen():
    scene = Scene((0.05, 0.15, 1.5, "SwPowerCap"))
    scene.take(5)
    assert scene.watch.clocks() == {"sm_mhz": 1980.0, "sm_mhz_min": 1320.0}


def test_a_driver_that_does_not_say_is_flagged_once():
    scene = Scene()
    board = scene.watch._board
    board.reasons = lambda: Absent("the driver doesn't say what holds its clocks down: No")
    board.sm_mhz = lambda: Absent("no")
    board.held_down_s = lambda policy: Absent("no")
    assert len(scene.take(2)) == 20
    assert scene.watch.clocks() == {}
    (flag,) = scene.watch.flags()
    assert flag.startswith("slow-downs were not watched for: the driver doesn't say")


def test_on_the_processor_nothing_is_watched():
    watch = health_for("cpu")
    assert watch.take(lambda: [1.0]) == [1.0]
    assert (watch.discarded, watch.clocks(), watch.flags()) == (0, {}, [])


def test_a_gpu_whose_driver_can_not_be_asked_is_unwatched_with_the_reason(monkeypatch):
    monkeypatch.setattr(timed, "cuda_gpu", lambda device: SimpleNamespace(uuid="1"))
    monkeypatch.setattr(timed.gpu, "board", lambda uuid: Absent("there is no driver"))
    flags = health_for("cuda").flags()
    assert flags == ["slow-downs were not watched for: there is no driver"]


def test_a_gpu_is_watched_by_its_uuid(monkeypatch):
    board = fake.FakeBoard(fake.FakeGpu())
    monkeypatch.setattr(timed, "cuda_gpu", lambda device: SimpleNamespace(uuid="1"))
    monkeypatch.setattr(timed.gpu, "board", {"1": board}.get)
    assert health_for("cuda")._board is board


# ---- the processor -------------------------------------------------------------------------------


class Ticking:
    """What a process got, set by hand."""

    wall = cpu = 0.0
    waits = 0

    def __init__(self, monkeypatch):
        monkeypatch.setattr(timed, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(timed, "process_time", lambda: self.cpu)
        monkeypatch.setattr(timed, "_waits", lambda: self.waits)

    def flags(self, wall, cpu, waits, calls=100, threads=1):
        processor = Processor()
        self.wall, self.cpu, self.waits = self.wall + wall, self.cpu + cpu, self.waits + waits
        return processor.flags(calls, threads)


@pytest.fixture
def ticking(monkeypatch):
    return Ticking(monkeypatch)


def test_a_process_that_ran_all_the_time_is_not_flagged(ticking):
    assert ticking.flags(1.0, 0.95, 500) == []
    assert ticking.flags(1.0, 1.9, 500, threads=2) == []


def test_a_processor_that_others_took_is_contended(ticking):
    assert ticking.flags(1.0, 0.6, 3) == ["contended: 60% of a processor"]


def test_calls_that_gave_it_back_themselves_waited(ticking):
    (flag,) = ticking.flags(1.0, 0.38, 100)
    assert flag == "it waited: 62% of each call without the processor, of its own will"


def test_threads_that_wait_for_one_another_are_not_blamed(ticking):
    assert ticking.flags(1.0, 0.5, 1000, threads=2) == ["contended: 50% of a processor"]


def test_a_wait_is_counted_by_the_system():
    before = timed._waits()
    for _ in range(5):
        timed.sleep(1e-4)
    assert timed._waits() - before >= 5
