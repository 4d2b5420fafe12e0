"""A sweep with a stand-in for the engine: who is asked, and what is written down."""

import os
import signal
from dataclasses import replace

import pytest

import impls
from attnbench.machine import this_machine
from attnbench.record import Record, Status, Time
from attnbench.store import RunFolder, read_records
from attnbench.sweep import run
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from impls.problem import Problem
from impls.spec import Variant

GRID = Preset("small", seq=("16", "32"), heads=(1,), head_dim=(8,), phase=("forward", "train"),
              mask=("none",))  # fmt: skip
HEADER = {"seed": 0, "budget_s": 0.01, "ceilings": {}}


def timed(seconds):
    return Time(median_s=seconds, low_s=seconds, high_s=seconds, q25_s=seconds, q75_s=seconds,
                min_s=seconds, n=7, clock="host", stop="converged",
                samples_s=[seconds] * 7)  # fmt: skip


class Answering:
    """An engine whose worker takes as long as it is told for each phase."""

    def __init__(self, forward=0.010, train=0.030):
        self.seconds, self.jobs = {"forward": forward, "train": train}, []

    def ask(self, question, limit_s):
        job = question["job"]
        self.jobs.append(job)
        variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
        record = Record.of(variant, problem, Status.MEASURED, seed=0)
        return {"record": replace(record, time=timed(self.seconds[problem.phase])).to_dict()}

    def close(self):
        """Nothing."""


class Watched:
    """Whoever shows the progress; stops the sweep after the first cell if told to."""

    def __init__(self, interrupt=None):
        self.cells, self.interrupt = 0, interrupt

    def cell(self, record, done, total, left_s):
        self.cells += 1
        if self.interrupt is not None:
            self.interrupt.asked = True


def plan_of(*names, grid=GRID):
    return make_plan(impls.table(), names, grid, this_machine())


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path, "box", HEADER)
    yield made
    made.close()


def swept(plan, folder, engine, done=()):
    """The records that a sweep has written down."""
    before = {r.key: r for r in done}
    run.sweep(plan, before, folder, engine, Watched(), run.Interrupt(print))
    return list(read_records(folder.path))


def first_of_each(jobs):
    """Whose first job in each phase is tried for the same bits, and no other job of theirs."""
    seen = set()
    for job in jobs:
        what = job["variant"]["name"], job["problem"]["phase"]
        assert job["bits"] == (what not in seen)
        seen.add(what)
    return seen


def test_the_same_bits_are_tried_at_a_variants_first_cell_in_each_phase(folder):
    engine, plan = Answering(), plan_of("einsum", "matmul")
    swept(plan, folder, engine)
    assert len(engine.jobs) == 8
    assert len(first_of_each(engine.jobs)) == 4
    engine.jobs.clear()
    run.check_cells(plan, engine, 0, Watched())
    assert len(engine.jobs) == 8
    assert len(first_of_each(engine.jobs)) == 4


def test_a_worker_is_asked_what_the_run_was_begun_with(folder):
    folder.header |= {"seed": 3, "budget_s": 0.25, "energy": True, "ceilings": {"flops": {}}}
    engine, plan = Answering(), plan_of("einsum")
    swept(plan, folder, engine)
    job = engine.jobs[0]
    asked = {"timed": True, "seed": 3, "budget_s": 0.25, "energy": True, "ceilings": {"flops": {}}}
    assert {name: job[name] for name in asked} == asked
    engine.jobs.clear()
    run.check_cells(plan, engine, 5, Watched())
    assert {(job["timed"], job["seed"]) for job in engine.jobs} == {(False, 5)}


def test_a_record_that_contradicts_another_of_its_run_is_written_down_as_not_believed(folder):
    found = swept(plan_of("einsum"), folder, Answering(forward=0.010, train=0.005))
    told = {r.problem["phase"]: r.status for r in found}
    assert told == {"forward": Status.MEASURED, "train": Status.IMPLAUSIBLE}


def test_what_was_measured_before_a_run_was_stopped_counts_and_is_not_asked_again(folder):
    grid = GRID.with_(seq=("16",))
    plan = plan_of("einsum", grid=grid)
    forward, train = plan.to_run
    done = replace(
        Record.of(forward.variant, forward.problem, Status.MEASURED, seed=0), time=timed(0.010)
    )
    engine = Answering(train=0.005)
    (found,) = swept(plan, folder, engine, [done])
    assert [job["problem"] for job in engine.jobs] == [train.problem.to_dict()]
    assert (found.key, found.status) == (train.key, Status.IMPLAUSIBLE)


def test_what_is_left_out_is_written_down_once(folder):
    plan = plan_of("sdpa.cudnn")
    found = swept(plan, folder, Answering())
    assert [r.status for r in found] == [Status.UNAVAILABLE] * 4
    assert swept(plan, folder, Answering(), found) == found


@pytest.mark.parametrize(("lost", "status"), [
    ({"timed_out": False}, Status.CRASHED), ({"timed_out": True}, Status.TIMED_OUT),
    ({"timed_out": False, "wrong": True}, Status.WRONG),
])  # fmt: skip
def test_a_worker_that_is_lost_says_by_how_it_ended_what_the_cell_was(folder, lost, status):
    class Losing(Answering):
        def ask(self, question, limit_s):
            raise WorkerLost("that is how", "last words", **lost)

    found = swept(plan_of("einsum"), folder, Losing())
    assert {(r.status, r.reason, r.detail) for r in found} == {
        (status, "that is how", "last words")
    }


# ---- Ctrl-C --------------------------------------------------------------------------------------


def test_after_ctrl_c_the_cell_that_ended_is_kept_and_no_other_is_begun(folder):
    engine, interrupt = Answering(), run.Interrupt(print)
    with pytest.raises(run.Stopped):
        run.sweep(plan_of("einsum"), {}, folder, engine, Watched(interrupt), interrupt)
    assert len(engine.jobs) == len(list(read_records(folder.path))) == 1


def test_the_first_ctrl_c_asks_and_the_second_stops_and_neither_is_caught_afterwards():
    said, before = [], signal.getsignal(signal.SIGINT)
    interrupt = run.Interrupt(said.append)
    with pytest.raises(KeyboardInterrupt), interrupt.watching():
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked
        assert said == ["stopping after this cell; Ctrl-C again stops at once"]
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
