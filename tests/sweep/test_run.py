"""A sweep with a stand-in for the engine: who is asked, and what is written down."""

import os
import signal
import time

import pytest

from attnbench.core.record import Record, Status
from attnbench.core.store import read_records
from attnbench.sweep import engine as engines
from attnbench.sweep import sweep
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot, SlotLost
from tests.sweep.build import GRID, MANY, Answering, Watched, plan_of, swept, timed


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
    sweep.check_cells(plan, engine, 0, Watched())
    assert len(engine.jobs) == 8
    assert len(first_of_each(engine.jobs)) == 4


def test_a_worker_is_asked_what_the_run_was_begun_with(folder):
    folder.header |= {"seed": 3, "budget_s": 0.25, "energy": True}
    engine, plan = Answering(), plan_of("einsum")
    swept(plan, folder, engine)
    job = engine.jobs[0]
    asked = {"timed": True, "seed": 3, "budget_s": 0.25, "energy": True, "ceilings": {"flops": {}}}
    assert {name: job[name] for name in asked} == asked
    engine.jobs.clear()
    sweep.check_cells(plan, engine, 5, Watched())
    assert {(job["timed"], job["seed"]) for job in engine.jobs} == {(False, 5)}


def test_a_record_that_contradicts_another_of_its_run_is_written_down_as_not_believed(folder):
    found = swept(plan_of("einsum"), folder, Answering(forward=0.010, train=0.005))
    told = {r.problem.phase: r.status for r in found}
    assert told == {"forward": Status.MEASURED, "train": Status.IMPLAUSIBLE}


def test_what_was_measured_before_a_run_was_stopped_counts_and_is_not_asked_again(folder):
    grid = GRID.with_(seq=("16",))
    plan = plan_of("einsum", grid=grid)
    forward, train = plan.to_run
    done = Record.of(forward.variant, forward.problem, Status.MEASURED, seed=0).with_(
        time=timed(0.010)
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


@pytest.mark.parametrize(
    ("lost", "status"),
    [
        ({"timed_out": False}, Status.CRASHED),
        ({"timed_out": True}, Status.TIMED_OUT),
        ({"timed_out": False, "wrong": True}, Status.WRONG),
    ],
)
def test_a_worker_that_is_lost_says_by_how_it_ended_what_the_cell_was(folder, lost, status):
    class Losing(Answering):
        def ask(self, question, limit_s):
            if "canary" in question:
                return super().ask(question, limit_s)
            raise WorkerLost("that is how", "last words", **lost)

    found = swept(plan_of("einsum"), folder, Losing())
    assert {(r.status, r.reason, r.detail) for r in found} == {
        (status, "that is how", "last words")
    }
    assert {r.note == engines.TWICE for r in found} == {status is Status.CRASHED}


def test_a_cell_whose_worker_dies_is_tried_once_more_alone_in_a_new_one(folder):
    class DyingOnce(Answering):
        closed = 0

        def ask(self, question, limit_s):
            if "job" in question and not self.closed:
                raise WorkerLost("it was broken", "", timed_out=False)
            return super().ask(question, limit_s)

        def close(self):
            self.closed += 1

    engine = DyingOnce()
    first, *rest = swept(plan_of("einsum"), folder, engine)
    assert (first.status, engine.closed) == (Status.MEASURED, 1)
    assert first.note == "its worker died first, and it was measured in a new one: it was broken"
    assert {r.note for r in rest} == {""}


# ---- Ctrl-C --------------------------------------------------------------------------------------


def test_after_ctrl_c_the_cell_that_ended_is_kept_and_no_other_is_begun(folder):
    engine, interrupt = Answering(), sweep.Interrupt(print)
    with pytest.raises(sweep.Stopped):
        sweep.sweep(
            plan_of("einsum"), RunRecords(), folder, [Slot(engine)], Watched(interrupt), interrupt
        )
    assert len(engine.jobs) == len(list(read_records(folder.path))) == 1


def test_the_first_ctrl_c_asks_and_the_second_stops_and_neither_is_caught_afterwards():
    said, before = [], signal.getsignal(signal.SIGINT)
    interrupt = sweep.Interrupt(said.append)
    with pytest.raises(KeyboardInterrupt), interrupt.watching():
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked
        assert said == ["stopping after this cell; Ctrl-C again stops at once"]
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


# ---- several places ------------------------------------------------------------------------------


def test_several_places_share_the_cells_and_each_record_says_which_kind_measured_it(folder):
    folder.header["nodes"] |= {"a": {"ceilings": {}}, "b": {"ceilings": {}}}
    plan, engines = plan_of("einsum", "matmul", grid=MANY), [Slow(), Slow()]
    slots = [Slot(engines[0], node="a"), Slot(engines[1], node="b")]
    sweep.sweep(plan, RunRecords(), folder, slots, Watched(), sweep.Interrupt(print))
    found = list(read_records(folder.path))
    assert sorted(r.key for r in found) == sorted(c.key for c in plan.to_run)
    by_node = {n: sum(r.node == n for r in found) for n in "ab"}
    assert by_node == {"a": len(engines[0].jobs), "b": len(engines[1].jobs)}
    assert min(by_node.values()) > 2


class Slow(Answering):
    """Takes a moment, so that others get their share."""

    def ask(self, question, limit_s):
        time.sleep(0.05)
        return super().ask(question, limit_s)


class Leaving(Slow):
    """A place that is gone after some cells."""

    def ask(self, question, limit_s):
        if len(self.jobs) == 3 and "job" in question:
            raise SlotLost("node n1 is lost")
        return super().ask(question, limit_s)


def test_the_cell_of_a_place_that_is_lost_is_measured_elsewhere(folder):
    plan, watched = plan_of("einsum", "matmul", grid=MANY), Watched()
    slots = [Slot(Leaving()), Slot(Slow())]
    sweep.sweep(plan, RunRecords(), folder, slots, watched, sweep.Interrupt(print))
    found = list(read_records(folder.path))
    assert sorted(r.key for r in found) == sorted(c.key for c in plan.to_run)
    assert watched.told == ["node n1 is lost; its cell is measured elsewhere"]


def test_when_every_place_is_lost_it_says_how_to_go_on_and_keeps_what_there_is(folder):
    plan = plan_of("einsum", "matmul", grid=MANY)
    with pytest.raises(sweep.NobodyLeft, match="attnbench run --resume"):
        sweep.sweep(
            plan,
            RunRecords(),
            folder,
            [Slot(Leaving()), Slot(Leaving())],
            Watched(),
            sweep.Interrupt(print),
        )
    assert len(list(read_records(folder.path))) == 6


def test_what_goes_wrong_in_one_of_several_places_is_not_swallowed(folder):
    class Broken(Answering):
        def ask(self, question, limit_s):
            raise ZeroDivisionError("a fault of ours")

    with pytest.raises(ZeroDivisionError):
        sweep.sweep(
            plan_of("einsum"),
            RunRecords(),
            folder,
            [Slot(Broken()), Slot(Slow())],
            Watched(),
            sweep.Interrupt(print),
        )


def test_ctrl_c_lets_every_place_end_its_cell(folder):
    plan, interrupt = plan_of("einsum", "matmul", grid=MANY), sweep.Interrupt(print)
    engines = [Slow(), Slow()]
    with pytest.raises(sweep.Stopped):
        sweep.sweep(
            plan, RunRecords(), folder, [Slot(e) for e in engines], Watched(interrupt), interrupt
        )
    assert len(list(read_records(folder.path))) == sum(len(e.jobs) for e in engines) <= 4
