"""Joules a call, from counters whose power and steps are known; a board's and a processor's."""

import math
from types import SimpleNamespace

import pytest

from attnbench.core import machine
from attnbench.core.gpu import Absent
from attnbench.meter import energy
from attnbench.meter.energy import counter_for, measure_energy

TOKENS = 1024


class World:
    """A device that draws ``idle`` watts, more while it works, and counts them in steps."""

    key, method, warm_s = "fake", "a fake counter", 1.0

    def __init__(self, *, idle=80.0, load=600.0, call_s=0.01, step_s=0.1, ramp_s=0.0):
        self.idle, self.load, self.call_s, self.step_s = idle, load, call_s, step_s
        self.ramp_s = ramp_s  # how long the draw takes from idle to load
        self.reading_s = 0.0  # what a reading of the counter takes, idle meanwhile
        self.time = self.drawn = self.shown = self.worked = 0.0
        self.calls = self.freshened = 0

    def pass_by(self, seconds, watts):
        while seconds > 0:
            edge = (math.floor(self.time / self.step_s + 1e-9) + 1) * self.step_s
            part = min(seconds, edge - self.time)
            self.time, self.drawn = self.time + part, self.drawn + part * watts
            seconds -= part
            if self.time >= edge - 1e-12:
                self.shown = self.drawn

    def rest(self, seconds):
        self.pass_by(seconds, self.idle)

    def run(self):
        share = min(1.0, self.worked / self.ramp_s) if self.ramp_s else 1.0
        self.pass_by(self.call_s, self.idle + share * (self.load - self.idle))
        self.worked += self.call_s
        self.calls += 1

    def before(self):
        self.freshened += 1
        self.pass_by(2e-4, self.load)

    def joules(self):
        self.rest(self.reading_s)
        return self.shown

    def wait(self):
        pass

    def measure(self, **more):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(energy, "perf_counter", lambda: self.time)
            patch.setattr(energy, "sleep", self.rest)
            return measure_energy(TOKENS, self.run, self.before, self, **more)


@pytest.fixture(autouse=True)
def no_idle_yet(monkeypatch):
    monkeypatch.setattr(energy, "_idle", {})


@pytest.mark.parametrize(
    ("call_s", "step_s"), [(2e-5, 0.1), (1e-3, 1e-3), (0.0137, 0.02), (0.3, 0.02), (1.7, 0.1)]
)
def test_the_joules_of_a_call_are_found_within_one_percent(call_s, step_s):
    got = World(call_s=call_s, step_s=step_s, ramp_s=0.9).measure()
    most = 0.01 if call_s < 0.1 or step_s < 0.1 else 0.03  # a call longer than a step or two
    assert got.gross_joules == pytest.approx(600 * call_s, rel=most)
    assert got.joules == pytest.approx(520 * call_s, rel=most)
    assert got.call_s == pytest.approx(call_s, rel=most)
    assert got.idle_w == pytest.approx(80, rel=0.01)
    assert got.tokens_per_joule == pytest.approx(TOKENS / got.joules)
    assert (got.method, got.why, got.flags) == ("a fake counter", "", [])


def test_a_slow_reading_of_the_counter_is_a_small_part_of_what_is_measured():
    world = World(call_s=1e-3, step_s=0.02)
    world.reading_s = 0.0036  # an H200's
    got = world.measure()
    assert got.call_s == pytest.approx(1e-3, rel=0.03)
    assert got.joules == pytest.approx(520e-3, rel=0.02)


def test_it_takes_a_second_and_a_half_and_fifteen_steps_at_the_least():
    quick, slow = World(step_s=1e-3), World(step_s=0.2)
    slow.key = "slow"
    assert quick.measure().calls * 0.01 == pytest.approx(1.5, abs=0.1)
    assert slow.measure().calls * 0.01 == pytest.approx(3.0, abs=0.2)
    assert quick.measure(budget_s=7.0).calls * 0.01 == pytest.approx(7.0, abs=0.1)


def test_idle_is_measured_once_for_a_device():
    world = World()
    world.measure()
    at = world.time
    world.idle = 500.0  # the device is warm from the load: that isn't its idle draw
    assert world.measure().idle_w == pytest.approx(80, rel=0.01)
    assert world.time - at < 7.0
    world.key = "another"
    assert world.measure().idle_w == pytest.approx(500, rel=0.01)


def test_fresh_values_come_ten_times_a_second_and_not_with_each_call():
    world = World(call_s=1e-3)
    world.measure()
    assert world.freshened < world.calls / 50
    assert world.freshened > 20


def test_a_counter_that_never_moves_or_a_load_that_draws_no_more_than_idle_is_a_reason():
    got = World(step_s=1e9).measure()
    assert (got.joules, got.gross_joules, got.tokens_per_joule, got.calls) == (None, None, None, 0)
    assert got.why == "the energy counter did not move in 3 s"
    got = World(idle=80, load=79.9).measure()
    assert got.tokens_per_joule is None
    assert got.flags == ["the device drew no more than when idle"]


def test_the_idle_draw_is_taken_when_it_has_stopped_falling():
    class Cooling(World):
        def rest(self, seconds):
            self.pass_by(seconds, self.idle + max(0.0, 150.0 - 50.0 * self.time))

    assert Cooling().measure().idle_w == pytest.approx(80.0, rel=0.03)


@pytest.fixture
def of_board(monkeypatch):
    """The counter of a GPU whose board gives these answers."""

    def found(**answers):
        answers = {"mig": False, "other_processes": 0, "energy_j": 5.0, **answers}
        board = SimpleNamespace(uuid="GPU-aa", **{k: lambda v=v: v for k, v in answers.items()})
        gpu = SimpleNamespace(uuid="aa", synchronize=lambda: None)
        monkeypatch.setattr(energy, "cuda_gpu", lambda device: gpu)
        monkeypatch.setattr(energy.nvml, "board", {"aa": board}.get)
        return counter_for("cuda:1")

    return found


def test_a_boards_counter_is_taken_where_it_is_ours_alone(of_board):
    counter = of_board(mig=Absent("no"), other_processes=Absent("no"))  # it is believed
    assert (counter.joules(), counter.key) == (5.0, "GPU-aa")
    assert counter.method == "nvml counter: the whole board"
    counter._board.energy_j = lambda: Absent("GPU is lost")
    with pytest.raises(OSError, match="GPU is lost"):
        counter.joules()


def test_a_boards_counter_that_is_not_ours_alone_is_a_reason(of_board):
    for answers, why in (
        ({"mig": True}, "cut into instances (MIG)"),
        ({"other_processes": 1}, "1 other process computes on the GPU"),
        ({"other_processes": 3}, "3 other processes compute on the GPU"),
        ({"energy_j": Absent("the driver doesn't say its energy: Not Supported")}, "Not Supported"),
    ):
        got = of_board(**answers)
        assert why in got.why and got.joules is None


RANGE = 262_143_328_850


@pytest.fixture
def zone(tmp_path, monkeypatch):
    """Makes a folder as Linux shows it, of a part of a processor; the file of its microjoules."""
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)

    def made(name, what, microjoules=1000):
        place = tmp_path / name
        place.mkdir()
        files = {"name": what, "energy_uj": microjoules, "max_energy_range_uj": RANGE}
        for file, text in files.items():
            (place / file).write_text(f"{text}\n")
        return place / "energy_uj"

    return made


def test_packages_are_summed_and_their_parts_are_not(zone):
    a, b = zone("intel-rapl:0", "package-0"), zone("intel-rapl:1", "package-1")
    others = ("intel-rapl:0:0", "core"), ("intel-rapl:2", "psys"), ("intel-rapl-mmio:0", "package")
    parts = [zone(*other) for other in others]
    counter = counter_for("cpu")
    start = counter.joules()
    added = [(a, 2_000_000), (b, 500_000), *((part, 99_000_000) for part in parts)]
    for file, microjoules in added:
        file.write_text(str(1000 + microjoules))
    assert counter.joules() - start == pytest.approx(2.5)
    assert counter.method == "rapl counter: package-0, package-1"


def test_a_counter_that_begins_again_at_zero_goes_on_counting(zone):
    file = zone("intel-rapl:0", "package-0", RANGE - 1_000_000)
    counter = counter_for("cpu")
    file.write_text(str(RANGE - 400_000))
    first = counter.joules()
    for microjoules, joules in ((600_000, 1.0), (700_000, 1.1)):
        file.write_text(str(microjoules))
        assert counter.joules() - first == pytest.approx(joules)


def test_a_counter_that_can_not_be_read_says_why(zone, monkeypatch):
    zone("intel-rapl:2", "psys")
    assert "shows no energy counter of its processor" in counter_for("cpu").why
    zone("intel-rapl:0", "package-0", "broken")
    assert "can't be read" in counter_for("cpu").why

    def denied(file):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(energy, "_number", denied)
    assert "is for root alone; allow it with sudo chmod a+r" in counter_for("cpu").why
