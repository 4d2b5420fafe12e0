"""A sweep on a machine that becomes another meanwhile: what is marked, and measured again."""

from dataclasses import replace

import pytest

import impls
from attnbench.machine import this_machine
from attnbench.record import Record, Status, Time
from attnbench.store import RunFolder, read_records
from attnbench.sweep import canary, run
from attnbench.sweep.plan import make_plan
from attnbench.sweep.plausible import Known
from attnbench.sweep.presets import Preset
from attnbench.sweep.slots import Slot
from impls.problem import Problem
from impls.spec import Variant

GRID = Preset("small", seq=("16", "32"), heads=(1,), head_dim=(8,), phase=("forward", "train"),
              mask=("none",))  # fmt: skip
HEADER = {"seed": 0, "budget_s": 0.01, "nodes": {"": {"ceilings": {"flops": {}}}}}


def timed(seconds):
    return Time(median_s=seconds, low_s=seconds, high_s=seconds, q25_s=seconds, q75_s=seconds,
                min_s=seconds, n=7, clock="host", stop="converged",
                samples_s=[seconds] * 7)  # fmt: skip


class Answering:
    """An engine whose worker takes as long as it is told for each phase."""

    def __init__(self, forward=0.010, train=0.030):
        self.seconds, self.jobs = {"forward": forward, "train": train}, []

    def ask(self, question, limit_s):
        if "canary" in question:
            return {"canary": self.canary(len(self.jobs))}
        job = question["job"]
        self.jobs.append(job)
        variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
        record = Record.of(variant, problem, Status.MEASURED, seed=0)
        return {"record": replace(record, time=timed(self.seconds[problem.phase])).to_dict()}

    def canary(self, jobs):
        """Seconds of its canary, when so many cells have been asked for."""
        return 0.001

    def close(self):
        """Nothing."""


class Watched:
    """Whoever shows the progress; stops the sweep after the first cell if told to."""

    def __init__(self, interrupt=None):
        self.cells, self.interrupt, self.told = 0, interrupt, []

    def cell(self, record, done, total, left_s):
        self.cells += 1
        if self.interrupt is not None:
            self.interrupt.asked = True

    def tell(self, sentence):
        self.told.append(sentence)


def plan_of(*names, grid=GRID):
    return make_plan(impls.table(), names, grid, this_machine())


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path, "box", HEADER)
    yield made
    made.close()


def swept(plan, folder, engine, done=()):
    """The records that a sweep has written down."""
    run.sweep(plan, Known(done), folder, [Slot(engine)], Watched(), run.Interrupt(print))
    return list(read_records(folder.path))


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
    monkeypatch.setattr(canary, "EVERY_CELLS", 2)
    monkeypatch.setattr(canary, "WAIT_S", 0.0)


MANY = GRID.with_(seq=("16", "32", "48", "64"))


def test_what_was_measured_while_the_machine_drifted_is_measured_again_at_the_end(folder, often):
    engine, plan, watched = Drifting(slow={4}), plan_of("einsum", "matmul", grid=MANY), Watched()
    run.sweep(plan, Known(), folder, [Slot(engine)], watched, run.Interrupt(print))
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
    run.sweep(plan_of("einsum", "matmul", grid=MANY), Known(), folder, [Slot(engine)], watched,
              run.Interrupt(print))  # fmt: skip
    assert len(engine.jobs) == 16 + 2
    assert len(list(read_records(folder.path))) == 16
