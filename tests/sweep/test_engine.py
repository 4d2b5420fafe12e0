"""A sweep over variants that die, hang and shout: each costs its own cell and no other."""

import re

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.process import LAST_WORDS
from attnbench.core.record import Record, Status
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import Settings
from attnbench.core.store import read_records
from attnbench.sweep import engine as engines
from attnbench.sweep import sweep
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.plan import make_plan
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot
from tests.processes import alive
from tests.sweep.build import KNOWN, ONE, Watched

ORDER = [
    "einsum", "h.exits", "h.honest", "h.exits_in_build", "h.segfaults", "matmul", "h.hangs", "bmm",
    "h.chatters", "h.raises", "h.quits", "h.closes", "sdpa",
]  # fmt: skip
LIMIT_S = 8.0


@pytest.fixture(scope="module")
def swept(hostile, tmp_path_factory):
    """The records by variant, in order, and the watcher."""
    out = tmp_path_factory.mktemp("results")
    plan = make_plan(impls.table([hostile]), ORDER, ONE, this_machine())
    folder = RunFolder.create(out, "box", {"seed": 0, "budget_s": ONE.budget, **KNOWN})
    engine, watcher = LocalEngine(Settings()), Watched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "MARGIN", 1e9)  # the machine that tests run on is busy
        patch.setattr(engines, "CELL_LIMIT_S", LIMIT_S)
        try:
            sweep.sweep(plan, RunRecords(), folder, [Slot(engine)], watcher, sweep.Interrupt(print))
        finally:
            engine.close()
            folder.close()
    return {r.variant: r for r in read_records(folder.path)}, watcher, folder


def test_every_cell_has_its_record_in_the_order_of_the_plan(swept):
    records, _, folder = swept
    assert list(records) == ORDER
    assert {r.run for r in records.values()} == {folder.name}


@pytest.mark.parametrize("name", ["einsum", "h.honest", "matmul", "bmm", "sdpa"])
def test_what_is_honest_is_measured_whoever_went_before(swept, name):
    record = swept[0][name]
    assert record.status is Status.MEASURED, record.reason
    assert record.time.n >= 7


@pytest.mark.parametrize(
    ("name", "reason"),
    [("h.exits", "status 3"), ("h.exits_in_build", "status 4"), ("h.segfaults", "SIGSEGV")],
)
def test_a_variant_that_kills_its_process_has_crashed_and_how_is_said(swept, name, reason):
    record = swept[0][name]
    assert record.status is Status.CRASHED
    assert reason in record.reason
    assert record.time is None


def test_the_last_words_of_a_dead_worker_are_kept(swept):
    detail = swept[0]["h.exits"].detail
    assert "my last words are xyzzy" in detail
    assert len(detail.encode()) <= LAST_WORDS


def test_the_last_words_are_those_of_the_cell_and_not_of_its_neighbours(swept):
    assert "err err" not in swept[0]["h.quits"].detail  # h.chatters had the same worker before
    assert "USDT" not in swept[0]["h.segfaults"].detail  # nor of the profiler that the ruler warms


def test_a_variant_that_hangs_is_ended_and_has_timed_out(swept, hostile):
    record = swept[0]["h.hangs"]
    assert record.status is Status.TIMED_OUT
    assert f"{LIMIT_S:.0f} s" in record.reason
    assert not alive(int((hostile.parent / "hangs.pid").read_text()))


def test_a_variant_that_shouts_on_both_streams_is_measured(swept, capfd):
    record = swept[0]["h.chatters"]
    assert record.status is Status.MEASURED, record.reason


def test_a_variant_that_closes_the_pipes_has_a_record_without_a_time(swept):
    record = swept[0]["h.closes"]
    assert record.status in (Status.CRASHED, Status.TIMED_OUT, Status.FAILED)
    assert record.reason


def test_a_variant_that_raises_has_failed_with_the_first_line_and_the_traceback(swept):
    record = swept[0]["h.raises"]
    assert record.status is Status.FAILED
    assert re.fullmatch(r"it raised RuntimeError at \w+\.py:\d+: first line", record.reason)
    assert "Traceback" in record.detail
    assert "second line" in record.detail


def test_a_variant_that_calls_sys_exit_costs_its_own_cell(swept):
    record = swept[0]["h.quits"]
    assert record.status in (Status.CRASHED, Status.FAILED)
    assert "5" in record.reason


def test_the_watcher_counts_up_to_the_total_and_the_time_left_reaches_zero(swept):
    cells = swept[1].cells
    assert [c[0] for c in cells] == ORDER
    assert [c[1] for c in cells] == list(range(1, len(ORDER) + 1))
    assert {c[2] for c in cells} == {len(ORDER)}
    assert all(c[3] >= 0 for c in cells)
    assert cells[-1][3] == pytest.approx(0.0, abs=1e-6)


def test_a_sweep_measures_nothing_that_has_a_record(swept, hostile, tmp_path):
    plan = make_plan(impls.table([hostile]), ORDER, ONE, this_machine())
    folder = RunFolder.create(tmp_path, "box", {"seed": 0, "budget_s": 1.0, **KNOWN})
    done = RunRecords(swept[0].values())
    engine, watcher = LocalEngine(Settings()), Watched()
    sweep.sweep(plan, done, folder, [Slot(engine)], watcher, sweep.Interrupt(print))
    folder.close()
    assert watcher.cells == []
    assert list(read_records(folder.path)) == []


# ---- the engine alone ----------------------------------------------------------------------------


def test_an_engine_does_not_wait_past_the_limit_but_lets_the_worker_start():
    engine = LocalEngine(Settings())
    with pytest.raises(WorkerLost) as caught:
        engine.ask({"ceilings": ["float64"], "device": "cpu"}, 0.01)  # copying alone takes longer
    assert caught.value.timed_out
    assert engine.pid is None


@pytest.fixture
def cells(hostile):
    plan = make_plan(impls.table([hostile]), ["bmm", "matmul"], ONE, this_machine())
    return plan.to_run[:2]


class Answering:
    """An engine with one answer to everything."""

    def __init__(self, answer):
        self.answer, self.closed = answer, 0

    def ask(self, question, limit_s):
        return self.answer

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"record": 5},
        {"record": None},
        {"record": {}},
        {"record": {"schema": 1, "time": 5}},
        {"record": {"schema": 1, "variant": 5, "status": [], "problem": 5, "reason": ""}},
        {"error": "no"},
    ],
)
def test_an_answer_that_is_no_record_is_a_crash(cells, answer):
    engine = Answering(answer)
    record = engines.measure(cells[0], {"seed": 0, "budget_s": 0.1}, engine)
    assert (record.status, record.note) == (Status.CRASHED, engines.TWICE)
    assert "no record" in record.reason
    assert engine.closed


def test_a_record_about_another_cell_is_a_crash(cells):
    bmm, other = cells
    record = Record.of(other.variant, other.problem, Status.FAILED, "it was slow", seed=0)
    engine = Answering({"record": record.to_dict()})
    found = engines.measure(bmm, {"seed": 0, "budget_s": 0.1}, engine)
    assert found.status is Status.CRASHED
    assert found.reason == "the worker answered about another cell"
    assert found.key == bmm.key and engine.closed
