"""A sweep with a stand-in for the engine; which records of one run contradict each other."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.core.device import Device
from attnbench.core.record import Ranks, Record, Status, Work
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import Settings
from attnbench.core.store import read_records
from attnbench.core.wire import convert, plain
from attnbench.gate import watch
from attnbench.sweep import engine as engines
from attnbench.sweep import places, sweep, worker
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.places import Slot, SlotLost
from impls.errors import CantBeDone
from impls.problem import Problem
from tests.sweep import build
from tests.sweep.build import Answering, ToldEngine, Watched, plan_of, sweep_of, swept, timed


@pytest.fixture
def folder(tmp_path):
    """A run's folder that a sweep writes to."""
    made = RunFolder.create(tmp_path, "box", build.HEADER)
    yield made
    made.close()


def test_a_worker_is_asked_what_the_run_was_begun_with(folder):
    folder.header |= {"seed": 3, "budget_s": 0.25, "energy": True}
    engine, plan = Answering(), plan_of("einsum", "matmul")
    swept(plan, folder, engine)
    asked = {"timed": True, "seed": 3, "budget_s": 0.25, "energy": True, "ceilings": {"flops": {}}}
    assert {name: engine.jobs[0][name] for name in asked} == asked
    jobs, engine.jobs = engine.jobs, []
    sweep.check_cells(plan, engine, 5, Watched())
    assert {(job["timed"], job["seed"]) for job in engine.jobs} == {(False, 5)}
    for some in (jobs, engine.jobs):  # of each variant the first in each phase, for the same bits
        whose = [(job["variant"]["name"], job["problem"]["phase"]) for job in some]
        assert len(whose) == 8
        assert [job["bits_s"] > 0 for job in some] == [
            x not in whose[:n] for n, x in enumerate(whose)
        ]


SCRIPT = """
import numpy
def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1])
def freed():
    before = resident()
    numpy.ones(1 << 23)
    return resident() - before
print(freed())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("allocator", "kept"), [("plain", False), ("kept", True)])
def test_freed_pages_stay_in_a_worker_only_where_that_is_asked_for(allocator, kept):
    with LocalEngine(Settings(allocator=allocator)) as engine:
        engine.ask({"apply": {"allocator": allocator}}, 60)
        words = Path(f"/proc/{engine.pid}/environ").read_bytes().decode().split("\0")
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    script = [sys.executable, "-c", SCRIPT]
    pages = subprocess.run(script, env=variables, capture_output=True, check=True, text=True).stdout
    assert (int(pages) * 4096 > 1 << 25) == kept


def test_what_has_a_record_is_not_asked_again_but_others_are_held_against_it(folder):
    plan = plan_of("einsum", grid=build.GRID.with_(seq=("16",)))
    forward, train = plan.to_run
    done = Record.of(forward.variant, forward.problem, Status.MEASURED, seed=0)
    engine = Answering(train=0.005)
    _, found = swept(plan, folder, engine, done=[done.with_(time=timed(0.010))])
    assert [job["problem"] for job in engine.jobs] == [plain(train.problem)]
    assert (found.key, found.status) == (train.key, Status.IMPLAUSIBLE)


@pytest.mark.parametrize(
    ("how", "status"), [("", "crashed"), ("timed_out", "timed_out"), ("wrong", "wrong")]
)
def test_a_worker_that_is_lost_says_by_how_it_ended_what_the_cell_was(folder, how, status):
    lost = [WorkerLost("that is how", "last words", **{how: True} if how else {})] * 8
    found = swept(plan_of("einsum"), folder, Answering(*lost))
    ends = {(r.status, r.reason, r.detail) for r in found}
    assert ends == {(status, "that is how", "last words")}
    assert {r.note == engines.TWICE for r in found} == {how == ""}


def test_a_cell_whose_worker_dies_is_tried_once_more_alone_in_a_new_one(folder):
    engine = Answering(WorkerLost("it was broken", "", timed_out=False))
    first, *rest = swept(plan_of("einsum"), folder, engine)
    assert (first.status, engine.closed) == (Status.MEASURED, 1)
    assert first.note == "its worker died first, and it was measured in a new one: it was broken"
    assert {r.note for r in rest} == {""}


CELL, OTHER = plan_of("bmm", grid=build.GRID.with_(seq=("16",))).to_run
OTHERS = plain(Record.of(OTHER.variant, OTHER.problem, Status.FAILED, "it was slow"))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "no record"),
        ({"record": 5}, "no record"),
        ({"record": {"schema": 1, "variant": 5, "status": [], "problem": 5}}, "no record"),
        ({"record": OTHERS}, "the worker answered about another measurement"),
    ],
    ids=range(4),
)
def test_an_answer_that_is_no_record_of_the_cell_is_a_crash(answer, said):
    engine = Answering(answer, answer)
    record = engines.measure(CELL, {"seed": 0, "budget_s": 0.1}, engine)
    assert (record.status, record.note) == (Status.CRASHED, engines.TWICE)
    assert said in record.reason and record.key == CELL.key and engine.closed


def slow(*said):
    """Takes a moment, so that others get their share."""
    return Answering(*said, wait_s=0.02)


def leaving():
    """A place that is gone after three cells."""
    return slow(None, None, None, SlotLost("node n1 is lost"))


@pytest.mark.parametrize("count", [1, 2])
def test_ctrl_c_lets_every_place_end_its_cell_and_begins_no_other(folder, count):
    interrupt, engines = sweep.Interrupt(print), [slow() for _ in range(count)]
    stopping = {"watcher": Watched(interrupt), "interrupt": interrupt}
    with pytest.raises(sweep.Stopped):
        sweep_of(plan_of("einsum", grid=build.MANY), folder, *engines, **stopping)
    kept = len((folder.path / "records.jsonl").read_text().splitlines())
    assert kept == sum(len(e.jobs) for e in engines) <= 2 * count - 1 + count // 2


def test_several_places_share_the_cells_and_each_record_says_which_kind_measured_it(folder):
    folder.header["nodes"] |= {"a": {"ceilings": {}}, "b": {"ceilings": {}}}
    plan, engines = plan_of("einsum", "matmul", grid=build.MANY), [slow(), slow()]
    found = swept(plan, folder, *(Slot(e, node=n) for e, n in zip(engines, "ab", strict=True)))
    assert sorted(r.key for r in found) == sorted(c.key for c in plan.to_run)
    by_node = {n: sum(r.node == n for r in found) for n in "ab"}
    assert by_node == {"a": len(engines[0].jobs), "b": len(engines[1].jobs)}
    assert min(by_node.values()) > 2


def test_the_cell_of_a_place_that_is_lost_is_measured_elsewhere_while_there_is_one(folder):
    plan, watched = plan_of("einsum", "matmul", grid=build.MANY), Watched()
    with pytest.raises(CantBeDone, match="attnbench run --resume"):
        swept(plan, folder, leaving(), leaving())
    done = list(read_records(folder.path))
    assert len(done) == 6
    gone = slow(SlotLost("node n1 is lost"))
    found = swept(plan, folder, gone, slow(), watcher=watched)
    assert sorted(r.key for r in found) == sorted(c.key for c in plan.to_run)
    assert watched.told == ["node n1 is lost; its measurement is made elsewhere"]


def test_a_place_that_is_lost_before_its_ceilings_are_known_is_done_without(folder):
    plan, watched, gone = plan_of("einsum"), Watched(), ToldEngine(SlotLost("node n1 is lost"))
    found = swept(plan, folder, Slot(gone, node="c"), slow(), watcher=watched)
    assert sorted(r.key for r in found) == sorted(c.key for c in plan.to_run)
    assert watched.told == ["node n1 is lost; the others measure without it"]
    assert "c" not in folder.header["nodes"]


class Busy(Answering):
    def __init__(self):
        super().__init__()
        self.stopped, self.asked = threading.Event(), 0

    def ask(self, question, limit_s):
        if "job" not in question:
            return super().ask(question, limit_s)
        self.asked += 1
        assert self.stopped.wait(10)
        raise WorkerLost("it was stopped", "")

    def stop(self):
        self.stopped.set()


class Full(Watched):
    def cell(self, *_):
        raise ZeroDivisionError


@pytest.mark.parametrize("watcher", [Watched(), Full()])
def test_what_goes_wrong_in_one_of_several_places_is_raised_and_stops_the_others(folder, watcher):
    said = [ZeroDivisionError("a fault of ours")] if type(watcher) is Watched else []
    busy, before = Busy(), threading.active_count()
    with pytest.raises(ZeroDivisionError):
        swept(plan_of("einsum"), folder, slow(*said), busy, watcher=watcher)
    assert threading.active_count() == before
    assert busy.asked in (0, 2), "its cell, twice, and no other"


class Drifting(Answering):
    """A machine that is slower by half while some cells are measured, or at one look."""

    def __init__(self, slow=(), look=None):
        super().__init__()
        self.slow, self.look, self.looks = slow, look, 0

    def canary(self, jobs):
        self.looks += 1
        return 0.0015 if jobs in self.slow or self.looks == self.look else 0.001


@pytest.fixture
def drifted(folder, monkeypatch):
    """Of sixteen cells, a canary after every second: the records, and what was told."""
    monkeypatch.setattr(sweep, "EVERY_CELLS", 2)
    monkeypatch.setattr(places, "WAIT_S", 0.0)
    plan, watched = plan_of("einsum", "matmul", grid=build.MANY), Watched()
    return lambda engine: (swept(plan, folder, engine, watcher=watched), watched.told, plan)


def test_what_was_measured_while_the_machine_drifted_is_measured_again_at_the_end(drifted):
    engine = Drifting(slow={4})
    found, told, plan = drifted(engine)
    asked = [(job["variant"]["name"], convert(job["problem"], Problem)) for job in engine.jobs]
    assert asked[16:] == asked[2:4]
    assert sorted(r.key for r in found) == sorted(c.key for c in plan.to_run)  # each once
    assert [r.key for r in found[14:]] == [c.key for c in plan.to_run[2:4]]
    assert "moved by up to 50\u00a0%; measured again: 2; marked as noisy: 2" in told[0]
    marked = (0.0015, ["drifted: the drift check before it was +50\u00a0% off"])
    by_flag = [(r.canary_s, r.time.flags) for r in found]
    assert by_flag == [(0.001, [])] * 2 + [marked] * 2 + [(0.001, [])] * 12


@pytest.mark.parametrize(
    ("engine", "noise"),
    [
        (Drifting(look=3), []),
        (Drifting(slow={4}), [{"call_s": 1.0, "floor": 0.01}, {"call_s": 0.001, "floor": 0.6}]),
    ],
)
def test_a_burst_that_is_over_or_this_machines_noise_spoils_nothing(drifted, folder, engine, noise):
    folder.header["noise"] = noise
    drifted(engine)
    assert len(engine.jobs) == 16


def test_no_more_than_a_share_of_a_run_is_measured_again_and_no_cell_a_third_time(drifted):
    engine = Drifting(slow=set(range(3, 1000)))
    found, *_ = drifted(engine)
    assert (len(engine.jobs), len(found)) == (16 + 2, 16)


@pytest.mark.parametrize(
    ("status", "gone", "readable", "ends", "reason"),
    [
        (Status.MEASURED, True, True, "failed", "no call to the GPU works any more"),
        (Status.MEASURED, True, False, "failed", "no call to the GPU works any more"),
        (Status.FAILED, True, True, "failed", "own"),  # what had failed already keeps its reason
        (Status.MEASURED, False, True, "measured", ""),
        (Status.MEASURED, False, False, "wrong", "what it left could not be looked at"),
    ],
)
def test_what_becomes_of_a_cell_whose_context_is_gone_or_that_left_what_is_unreadable(
    monkeypatch, status, gone, readable, ends, reason
):
    more = {"time": timed(1.0)} if status is Status.MEASURED else {"reason": "own"}
    made = Record(status=status, variant="v", problem=plain(Problem()), **more)
    bench = SimpleNamespace(measure=lambda job, before: made)
    monkeypatch.setattr(Device, "works", lambda self: not gone)
    if not readable:
        monkeypatch.setattr(watch, "left_changed", lambda before: 1 / 0)
    job = SimpleNamespace(problem=Problem(), variant=SimpleNamespace(swaps=()))
    told = worker._measured(bench, job)
    assert told["spoiled"] is (gone or not readable)
    assert told["record"]["status"] == ends and reason in told["record"].get("reason", "")
    assert (told["record"].get("time") is None) == (ends != "measured")


def record(s, phase="forward", n=512, flops=None, variant="a", **more):
    problem = plain(Problem(q_len=n, kv_len=n, phase=phase, **more))
    time = timed(s).with_(low_s=s * 0.99, high_s=s * 1.01, min_s=s * 0.98, n=20)
    cost = Work(flops=n * n if flops is None else flops, bytes=n)
    return Record(status=Status.MEASURED, variant=variant, problem=problem, time=time, cost=cost)


def doubted(*records):
    """Each record as it is believed beside those before it."""
    known = []
    for each in records:
        known.append(sweep.check_times(each, known))
    return known


@pytest.mark.parametrize("order", [1, -1])
def test_what_contradicts_an_earlier_record_is_not_believed(order):
    last = doubted(*[record(0.010), record(0.005, "train")][::order])[-1]
    assert (last.status, last.time) == (Status.IMPLAUSIBLE, None)
    assert last.reason == "a training step took 5 ms and its forward pass alone 10 ms"
    last = doubted(*[record(0.010, n=512), record(0.0102, n=1024)][::order])[-1]
    assert last.status is Status.IMPLAUSIBLE
    assert "its time stands still from 512 to 1024 tokens" in last.reason
    assert "while its work grows 4-fold" in last.reason


TWO = Ranks(world=2, time_s=[1.0] * 2, peak_bytes=[0] * 2, sent_bytes=[0] * 2, backend="gloo")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((record(0.010), record(s, "train")) for s in (0.00875, 0.0095, 0.010, 0.030)),
        (record(0.010, variant="b"), record(0.005, "train")),
        (record(0.010, n=256, flops=512 * 512), record(0.005, "train")),
        (record(0.010, batch=2), record(0.005, "train")),
        (record(0.010, dtype="bfloat16"), record(0.005, "train")),
        (record(0.010, n=512), record(0.011, n=1024)),  # it grew
        (record(0.0005, n=512), record(0.0005, n=1024)),  # short enough to be all overhead
        (record(0.010, n=512, flops=100), record(0.010, n=1024, flops=200)),  # work only doubled
        (record(0.010, n=512), record(0.010, n=1024, phase="train")),  # another phase
        (record(0.010), record(0.005, "backward")),  # a backward pass holds no forward pass
        (record(0.00005, device="cuda"), record(0.00005, n=1024, device="cuda")),
        (record(0.010).with_(cost=None), record(0.010, n=1024)),  # nobody knows of its work
        (record(0.010), record(0.010, n=1024).with_(cost=None)),
        [each.with_(ranks=TWO) for each in (record(0.010), record(0.010, n=1024))],  # they wait
    ],
    ids=range(17),
)
def test_what_can_be_true_is_believed(first, second):
    assert doubted(first, second)[-1].status is Status.MEASURED
