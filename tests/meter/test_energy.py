"""Joules a call, from counters whose power and steps are known; a board's and a processor's."""

import math

import pytest

from attnbench.core.gpu import Absent, Board
from attnbench.meter import energy
from attnbench.meter.energy import counter_for, measure_energy

TOKENS = 1024


class World:
    """A device that draws ``idle`` watts, more while it works, and counts them in steps."""

    key = "fake"

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
    assert (got.method, got.why, got.flags) == (energy.METHOD, "", [])


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
def of_board(gpu):
    """The counter of a GPU whose board gives these answers."""

    def found(**answers):
        answers = {"mig": False, "other_processes": 0, "energy_j": 5.0, **answers}
        board = Board(None, None, "GPU-aa")
        for question, answer in answers.items():
            setattr(board, question, lambda answer=answer: answer)
        gpu.driver = board
        return counter_for("cuda:1")

    return found


def test_a_boards_counter_is_taken_where_it_is_ours_alone(of_board):
    counter = of_board(mig=Absent("no"), other_processes=Absent("no"))  # it is believed
    assert (counter.joules(), counter.key) == (5.0, "GPU-aa")
    counter._board.energy_j = lambda: Absent("GPU is lost")
    with pytest.raises(OSError, match="GPU is lost"):
        counter.joules()


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"mig": True}, "cut into instances (MIG)"),
        ({"other_processes": 1}, "1 other process computes on the GPU"),
        ({"other_processes": 3}, "3 other processes compute on the GPU"),
        ({"energy_j": Absent("the driver doesn't say its energy: Not Supported")}, "Not Supported"),
    ],
)
def test_a_boards_counter_that_is_not_ours_alone_is_a_reason(of_board, answers, why):
    got = of_board(**answers)
    assert why in got.why and got.joules is None


def test_a_processor_has_no_counter():
    assert "is for root alone" in counter_for("cpu").why
