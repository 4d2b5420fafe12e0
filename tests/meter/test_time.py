"""Time: when it stops, and why it says so. The clocks here are scripted."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attnbench.meter.clocks import EventClock, HostClock
from attnbench.meter.timed import Health, _drift, measure_time, warm_up
from impls.loading import load_file

fake = load_file(Path(__file__).with_name("fake_gpu.py"))

NOTHING = SimpleNamespace(before=lambda: None, run=lambda: None, settle=lambda: None)
STEADY = [1.0, 1.001, 0.999, 1.0005, 0.9995]
BIMODAL = [1.0, 2.0]


# ---- when to stop --------------------------------------------------------------------------------


def test_a_narrow_interval_stops_as_converged_once_half_the_budget_was_used(scripted):
    clock = scripted(itertools.cycle(STEADY), step_s=0.01)
    got = measure_time(NOTHING, clock, 1.0, [])
    assert got.stop == "converged"
    assert 50 <= got.n <= 56
    assert got.median_s == 1.0
    assert got.high_s - got.low_s < 0.02


def test_a_narrow_interval_needs_twenty_samples(scripted):
    got = measure_time(NOTHING, scripted(itertools.repeat(1.0), step_s=0.04), 1.0, [])
    assert got.stop == "converged"
    assert got.n == 20


def test_a_wide_interval_goes_on_to_the_budget(scripted):
    got = measure_time(NOTHING, scripted(itertools.cycle(BIMODAL), step_s=0.01), 1.0, [])
    assert got.stop == "budget"
    assert 100 <= got.n <= 106


@pytest.mark.parametrize("third", [0.5, 1.5])
def test_an_interval_that_is_wide_on_one_side_alone_is_not_narrow(scripted, third):
    got = measure_time(NOTHING, scripted(itertools.cycle([1.0, third, 1.0]), step_s=0.04), 1.0, [])
    assert (got.stop, got.median_s) == ("budget", 1.0)
    assert {got.low_s, got.high_s} == {1.0, third}


def test_seven_samples_are_taken_however_small_the_budget(scripted):
    got = measure_time(NOTHING, scripted(itertools.repeat(1.0), step_s=10.0), 1e-9, [])
    assert (got.stop, got.n) == ("budget", 7)


def test_noise_that_stays_the_same_stops_as_a_plateau(scripted):
    got = measure_time(NOTHING, scripted(itertools.cycle(BIMODAL), step_s=0.001), 0.2, [])
    assert got.stop == "plateau"
    assert 128 <= got.n < 140


def test_noise_that_still_grows_is_no_plateau(scripted):
    growing = (1.0 + (i % 2) * i / 100 for i in itertools.count())
    got = measure_time(NOTHING, scripted(growing, step_s=0.001), 0.3, [])
    assert got.stop == "budget"
    assert got.n >= 300


def test_short_calls_end_at_the_most_samples(scripted):
    got = measure_time(NOTHING, scripted(itertools.repeat(1.0), step_s=1e-6), 1.0, [])
    assert got.n == 400


def test_short_calls_that_agree_have_converged_and_say_so(scripted):
    got = measure_time(NOTHING, scripted(itertools.repeat(1.0), step_s=1e-6), 1.0, [])
    assert got.stop == "converged"


def test_short_calls_that_do_not_agree_have_not_converged_at_the_most_samples(scripted):
    growing = (1.0 + (i % 2) * i / 100 for i in itertools.count())
    got = measure_time(NOTHING, scripted(growing, step_s=1e-6), 1.0, [])
    assert (got.stop, got.n) == ("budget", 400)


def test_the_time_keeps_every_sample_and_sums_them_up_as_numpy_does(scripted):
    readings = list(np.random.default_rng(0).lognormal(0, 0.5, 200))
    got = measure_time(NOTHING, scripted(readings, step_s=0.01), 1.0, ["not steady"])
    assert got.samples_s == readings[: got.n]
    assert got.median_s == pytest.approx(np.median(got.samples_s))
    assert (got.q25_s, got.q75_s) == pytest.approx(tuple(np.percentile(got.samples_s, [25, 75])))
    assert got.min_s == min(got.samples_s)
    assert got.low_s <= got.median_s <= got.high_s
    assert (got.clock, got.flags, got.discarded) == ("scripted", ["not steady"], 0)


def test_a_call_that_leaves_the_processor_idle_is_flagged():
    waiting = SimpleNamespace(
        before=lambda: None, run=lambda: time.sleep(0.005), settle=lambda: None
    )
    given = []
    got = measure_time(waiting, HostClock(), 0.01, given)
    assert len(got.flags) == 1
    assert got.flags[0].startswith(("it waited: ", "contended: "))
    assert given == []


# ---- drift ---------------------------------------------------------------------------------------


def drifting(readings):
    return [f for f in _drift(list(readings)) if f.startswith("drifting: ")]


def test_samples_that_grow_all_the_time_are_flagged_with_how_much():
    (flag,) = drifting([1.0] * 30 + [1.1] * 30 + [1.2] * 30)
    assert flag == "drifting: the last third of the samples took +20.0% against the first"


def test_samples_that_get_faster_are_flagged_too():
    assert "took -" in drifting(2.0 - i / 100 for i in range(60))[0]


@pytest.mark.parametrize(
    "readings",
    [
        [1.0, 1.001] * 40,  # steady
        [1.0, 2.0] * 40,  # noisy, the same all along
        [1.0] * 30 + [1.005] * 30,  # less than anybody would call a change
        [1.0, 1.5, 2.0] * 6,  # too few to tell
        [1.0] * 6 + [2.0] * 12,
    ],
)
def test_what_does_not_drift_is_not_flagged(readings):
    assert drifting(readings) == []


def test_a_slow_first_sample_or_two_are_no_drift():
    assert drifting([9.0, 5.0] + [1.0, 1.001, 0.999] * 20) == []


# ---- on a GPU that isn't there -------------------------------------------------------------------


def on(gpu, clock, call, budget_s=1.0, health=None):
    """The time of a call, all clocks being the fake's."""
    timed = SimpleNamespace(before=lambda: None, run=call, settle=lambda: None)
    return measure_time(timed, clock, budget_s, [], health=health)


@pytest.fixture
def gpu(monkeypatch):
    made = fake.FakeGpu()
    monkeypatch.setattr("attnbench.meter.timed.perf_counter", made.now)
    return made


def test_a_gpus_samples_come_in_batches_and_its_clocks_are_noted(gpu):
    got = on(gpu, EventClock(gpu), lambda: gpu.kernel(1e-3), health=Health(fake.FakeBoard(gpu)))
    assert got.clock == "events"
    assert got.median_s == pytest.approx(1e-3)
    assert (got.stop, got.flags, got.discarded) == ("converged", [], 0)
    assert got.clocks == {"sm_mhz": 1980.0, "sm_mhz_min": 1980.0}
    assert gpu.log.count("synchronize") < got.n / 8


def test_long_calls_on_a_gpu_do_not_overrun_the_budget_by_a_batch(gpu):
    got = on(gpu, EventClock(gpu), lambda: gpu.kernel(0.2), budget_s=1.0)
    assert got.n == 7
    assert gpu.host < 2.0


def test_what_was_taken_under_a_slow_down_is_not_in_the_time_and_is_counted(gpu):
    gpu.slow = [(0.1, 0.4, 3.0, "HwThermal")]
    health = Health(fake.FakeBoard(gpu), gpu.busy_host)
    got = on(gpu, EventClock(gpu), lambda: gpu.kernel(1e-3), health=health)
    assert max(got.samples_s) == pytest.approx(1e-3)
    assert got.discarded > 0
    assert got.flags == []


def test_a_power_cap_is_in_the_flags_and_the_clocks(gpu):
    gpu.slow = [(0.0, 1e9, 1.1, "SwPowerCap")]
    health = Health(fake.FakeBoard(gpu), gpu.busy_host)
    got = on(gpu, EventClock(gpu), lambda: gpu.kernel(1e-3), health=health)
    assert got.flags[0].startswith("power-capped: ")
    assert got.median_s == pytest.approx(1.1e-3)
    assert got.clocks["sm_mhz"] == 1800.0


def test_without_anybody_watching_the_slow_samples_stay(gpu):
    gpu.slow = [(0.1, 0.4, 3.0, "HwThermal")]
    got = on(gpu, EventClock(gpu), lambda: gpu.kernel(1e-3))
    assert max(got.samples_s) == pytest.approx(3e-3)
    assert (got.discarded, got.clocks) == (0, {})


def test_a_clock_that_changes_slowly_is_flagged_as_drifting(gpu):
    gpu.drift = 0.5
    got = on(gpu, EventClock(gpu), lambda: gpu.kernel(1e-3))
    assert got.flags[0].startswith("drifting: ")


def test_what_the_clock_says_of_itself_is_in_the_flags(gpu):
    got = on(gpu, EventClock(gpu), lambda: (gpu.kernel(1e-3), gpu.synchronize()))
    assert got.flags[0].startswith("launch-bound: ")


# ---- warming up ----------------------------------------------------------------------------------


def test_warming_up_ends_when_steady_after_a_quarter_of_the_budget(scripted):
    clock = scripted(itertools.repeat(1.0), step_s=0.01)
    spent, flags = warm_up(NOTHING, clock, 1.0)
    assert flags == []
    assert 0.25 <= spent < 0.3


def test_warming_up_waits_for_slow_first_calls(scripted):
    clock = scripted(itertools.chain([9.0] * 10, itertools.repeat(1.0)), step_s=0.001)
    spent, flags = warm_up(NOTHING, clock, 0.1)
    assert flags == []
    assert 0.04 <= spent < 0.05  # until most of the first half is fast too


def test_what_never_becomes_steady_is_flagged_at_the_budget(scripted):
    clock = scripted((1.1**i for i in itertools.count()), step_s=0.01)
    spent, flags = warm_up(NOTHING, clock, 0.5)
    assert flags == ["not steady"]
    assert 0.5 <= spent < 0.55


def test_too_few_calls_to_tell_are_not_flagged(scripted):
    spent, flags = warm_up(NOTHING, scripted((2.0**i for i in itertools.count()), 1.0), 1.5)
    assert flags == []
    assert spent == 2.0
