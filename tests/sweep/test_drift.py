"""A sweep on a machine that becomes another meanwhile: what is marked, and measured again."""

import pytest

from attnbench.core.store import read_records
from attnbench.sweep import sweep
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot
from impls.problem import Problem
from tests.sweep.build import MANY, Answering, Watched, plan_of, swept


class Drifting(Answering):
    """A machine that is slower by half while some cells are measured."""

    def __init__(self, slow):
        super().__init__()
        self.slow = slow

    def canary(self, jobs):
        return 0.0015 if jobs in self.slow else 0.001


@pytest.fixture
def often(monkeypatch):
    """A canary after every second cell, that waits for nobody."""
    monkeypatch.setattr(sweep, "EVERY_CELLS", 2)
    monkeypatch.setattr(sweep, "WAIT_S", 0.0)


def test_what_was_measured_while_the_machine_drifted_is_measured_again_at_the_end(folder, often):
    engine, plan, watched = Drifting(slow={4}), plan_of("einsum", "matmul", grid=MANY), Watched()
    sweep.sweep(plan, RunRecords(), folder, [Slot(engine)], watched, sweep.Interrupt(print))
    asked = [(job["variant"]["name"], Problem.from_dict(job["problem"])) for job in engine.jobs]
    assert asked[16:] == asked[2:4]
    found = list(read_records(folder.path))
    assert sorted(r.key for r in found) == sorted(c.key for c in plan.to_run)  # each once
    assert [r.key for r in found[14:]] == [c.key for c in plan.to_run[2:4]]
    assert "was 50% slower; 2 cells measured again; 2 taken meanwhile are marked" in watched.told[0]


def test_a_record_says_what_the_canary_took_before_it_and_is_marked_where_that_is_off(
    folder, often
):
    found = swept(plan_of("einsum", "matmul", grid=MANY), folder, Drifting(slow={4}))
    by_flag = [(r.canary_s, r.time.flags) for r in found]
    marked = (0.0015, ["drifted: the canary before it was +50% off"])
    assert by_flag == [(0.001, [])] * 2 + [marked] * 2 + [(0.001, [])] * 12


def test_a_burst_that_is_over_when_it_is_looked_at_again_spoils_nothing(folder, often):
    class Bursting(Answering):
        looks = 0

        def canary(self, jobs):
            self.looks += 1
            return 0.002 if self.looks == 3 else 0.001

    engine = Bursting()
    swept(plan_of("einsum", "matmul", grid=MANY), folder, engine)
    assert len(engine.jobs) == 16


def test_what_this_machines_noise_makes_of_it_is_no_drift(folder, often):
    folder.header["noise"] = [{"call_s": 1.0, "floor": 0.01}, {"call_s": 0.001, "floor": 0.6}]
    engine = Drifting(slow={4})
    swept(plan_of("einsum", "matmul", grid=MANY), folder, engine)
    assert len(engine.jobs) == 16


def test_no_more_than_a_share_of_a_run_is_measured_again_and_no_cell_a_third_time(folder, often):
    slow = set(range(3, 1000))
    engine, watched = Drifting(slow), Watched()
    sweep.sweep(
        plan_of("einsum", "matmul", grid=MANY),
        RunRecords(),
        folder,
        [Slot(engine)],
        watched,
        sweep.Interrupt(print),
    )
    assert len(engine.jobs) == 16 + 2
    assert len(list(read_records(folder.path))) == 16
