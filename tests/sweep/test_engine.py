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


ENDED = (Status.CRASHED, Status.TIMED_OUT, Status.FAILED)


@pytest.mark.parametrize(
    ("name", "statuses", "reason"),
    [
        *((name, (Status.MEASURED,), "") for name in ORDER if not name.startswith("h.")),
        ("h.honest", (Status.MEASURED,), ""),
        ("h.chatters", (Status.MEASURED,), ""),
        ("h.exits", (Status.CRASHED,), "status 3"),
        ("h.exits_in_build", (Status.CRASHED,), "status 4"),
        ("h.segfaults", (Status.CRASHED,), "SIGSEGV"),
        ("h.hangs", (Status.TIMED_OUT,), f"{LIMIT_S:.0f} s"),
        ("h.raises", (Status.FAILED,), r"^it raised RuntimeError at \w+\.py:\d+: first line$"),
        ("h.quits", (Status.CRASHED, Status.FAILED), "5"),
        ("h.closes", ENDED, "."),
    ],
)
def test_each_variant_costs_its_own_cell_and_no_other(swept, name, statuses, reason):
    record = swept[0][name]
    assert record.status in statuses, record.reason
    assert re.search(reason, record.reason)
    assert (record.time is not None) == (record.status is Status.MEASURED)
    assert record.time is None or record.time.n >= 7


def test_records_are_in_the_order_of_the_plan_and_the_dead_leave_last_words(swept, hostile):
    records, _, folder = swept
    assert list(records) == ORDER
    assert {r.run for r in records.values()} == {folder.name}
    assert not alive(int((hostile.parent / "hangs.pid").read_text()))
    last = records["h.exits"].detail
    assert "my last words are xyzzy" in last and len(last.encode()) <= LAST_WORDS
    assert "Traceback" in records["h.raises"].detail
    assert "second line" in records["h.raises"].detail
    assert "err err" not in records["h.quits"].detail  # h.chatters had the same worker before
    assert "USDT" not in records["h.segfaults"].detail  # nor of the profiler that warms up


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
