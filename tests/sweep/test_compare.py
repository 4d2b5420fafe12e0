"""Two variants in pairs: who is asked what, and what becomes of it; a worker that holds one."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from attnbench.core.record import Record, Status
from attnbench.core.settings import Settings
from attnbench.core.stats import Verdict
from attnbench.core.wire import plain
from attnbench.sweep import compare, engine
from attnbench.sweep.engine import HoldingWorker, Refused, WorkerLost, open_worker
from impls.problem import Problem
from tests.sweep.build import ONE, PLAIN, ToldEngine, plan_of, timed
from tests.times import pairs_answer


def pairs(*logs):
    """An answer of forty pairs with these logarithms of ratios."""
    logs = [*logs] * (40 // len(logs))
    return pairs_answer(logs)


def compared(engine, judged="einsum", against="matmul", margin=None, floors=()):
    grid = ONE.with_(seq=("16", "32", "48"))
    cells = zip(*(plan_of(name, grid=grid).cells for name in (judged, against)), strict=True)
    how = engine, 3, margin, floors, 5.0
    return compare.corrected([compare.compare_cell(*both, *how) for both in cells])


def test_a_worker_that_dies_costs_one_problem():
    lost = WorkerLost("the worker died of SIGSEGV", "", timed_out=False)
    late = WorkerLost("it was still running", "", timed_out=True)
    found = compared(ToldEngine(lost, pairs(-0.5), late))
    assert [c.status for c in found] == [Status.CRASHED, Status.MEASURED, Status.TIMED_OUT]
    assert found[0].why == "the worker died of SIGSEGV"
    assert found[1].comparison.verdict is Verdict.FASTER
    assert found[2].comparison is None


@pytest.mark.parametrize("names", [("sdpa.cudnn", "einsum"), ("einsum", "sdpa.cudnn")])
def test_what_can_not_run_here_is_not_asked_for(names):
    found = compared(engine := ToldEngine(), *names)
    assert engine.asked == []
    assert {c.status for c in found} == {Status.UNAVAILABLE}
    assert all(c.why.startswith("sdpa.cudnn: sdpa.cudnn needs CUDA") for c in found)


def plan(length, **more):
    grid = PLAIN.with_(seq=(str(length),), heads=(8,), **more)
    return plan_of("matmul", "sdpa.flash", "einsum", grid=grid)


def measured(variant, seconds):
    record = Record(status=Status.MEASURED, variant=variant, problem=plain(Problem()))
    return record.with_(time=timed(seconds))


def test_whoever_needs_too_much_by_its_own_formula_is_not_measured():
    names, large = compare.within(plan(1024), 20 << 20)
    assert names == ["sdpa.flash"] and set(large) == {"matmul", "einsum"}
    assert large["matmul"] >= 8 * 1024 * 1024 * 4  # one matrix of scores at the least
    assert compare.within(plan(1024), None) == (["matmul", "sdpa.flash", "einsum"], {})


def test_long_ones_are_tried_on_a_quarter_of_the_tokens():
    found = compare.shorter(plan(65536))
    assert (found.q_len, found.kv_len) == (16384, 16384)
    grid = PLAIN.with_(seq=("4194304",), heads=(64,), phase=("decode",), batch=(64,))
    decode = compare.shorter(plan_of("sdpa", grid=grid))
    assert (decode.q_len, decode.kv_len) == (1, 1 << 20)
    fits_one_length = plan(65536, mask=("document:65000,536",))
    assert compare.shorter(fits_one_length) is compare.shorter(plan(512)) is None


def test_who_is_far_behind_is_left_out_and_who_is_near_the_best_goes_into_pairs_with_it():
    alike = {"problem": plain(Problem()), "reason": "it is so"}
    refused = Record(status=Status.UNSUPPORTED, variant="d", **alike)
    wrong = Record(status=Status.WRONG, variant="e", **alike)
    tried = [measured("a", 3.0), measured("b", 1.0), measured("c", 8.5), refused, wrong]
    assert compare.hopeful(tried) == (["b", "a", "d"], {"c": 8.5})
    records = [measured(*each) for each in (("a", 1.1), ("b", 1.0), ("c", 1.3), ("x", 0.5))]
    assert compare.near_the_best(records, ["a", "b", "c"]) == ["b", "a"]
    assert compare.near_the_best(records, ["c", "b"]) == ["b", "c"]  # the next, where nobody is


def test_both_workers_get_the_same_cores_and_the_parent_its_own_back(monkeypatch, tmp_path):
    now, cores, during, limits = {0, 1, 2, 3}, {2, 3}, [], []

    def put(pid, wanted):
        now.clear()
        now.update(wanted)

    @contextmanager
    def started(settings, path, limited):
        limits.append(limited)
        during.append((path, set(now)))
        yield ToldEngine()
        during.append((path, set(now)))

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(now))
    monkeypatch.setattr(os, "sched_setaffinity", put)
    monkeypatch.setattr(engine, "LocalEngine", started)
    opened = open_worker(Settings(threads=2), 0, 0.1)
    with opened(tmp_path / "a"), opened(tmp_path / "b"):
        assert now == cores
    assert during == [(tmp_path / x, cores) for x in "abba"]
    assert now == {0, 1, 2, 3}
    with open_worker(Settings(), 0, 0.1, device="cuda")(tmp_path):
        assert limits == [True, True, False]  # of a GPU's memory the address space says nothing


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ({"refused": "failed: it raised", "status": "failed"}, "failed", "failed: it raised"),
        ({"refused": "there is no variant 'x'"}, "", "there is no variant 'x'"),
        ({"wrong": "row 3 is off"}, "wrong", "row 3 is off"),
        (WorkerLost("it died", "so\nlast\n", timed_out=False), "crashed", "it died; last"),
        (WorkerLost("it hangs", "", timed_out=True), "timed_out", "it hangs"),
    ],
)
def test_a_refusal_says_why_and_how_a_record_would_have_ended(answer, status, said):
    with pytest.raises(Refused) as caught:
        HoldingWorker(ToldEngine(answer), 0, 0.1, Path("/a")).hold("x", Problem())
    assert (caught.value.status, str(caught.value)) == (status, said)
