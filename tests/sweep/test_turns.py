"""A worker that holds a variant: what it is asked, and what its refusals become."""

import os
from pathlib import Path

import pytest

from attnbench.core.settings import Settings
from attnbench.sweep import engine
from attnbench.sweep.engine import HoldingWorker, Refused, WorkerLost, open_worker
from impls.problem import Problem
from tests.sweep.build import ToldEngine

PROBLEM = Problem(q_len=8, kv_len=8)
HERE = Path("/a")


def test_both_workers_get_the_same_cores_and_the_parent_its_own_back(monkeypatch, tmp_path):
    now, cores, during, limits = {0, 1, 2, 3}, {2, 3}, [], []

    def put(pid, wanted):
        now.clear()
        now.update(wanted)

    class Engine(ToldEngine):
        def __init__(self, settings, path, limited):
            super().__init__()
            self.path = path
            limits.append(limited)

        def __enter__(self):
            during.append((self.path, set(now)))
            return self

        def __exit__(self, *_):
            during.append((self.path, set(now)))

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(now))
    monkeypatch.setattr(os, "sched_setaffinity", put)
    monkeypatch.setattr(engine, "LocalEngine", Engine)
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
        (WorkerLost("it wrote", "", timed_out=False, wrong=True), "wrong", "it wrote"),
    ],
)
def test_a_refusal_says_why_and_how_a_record_would_have_ended(answer, status, said):
    with pytest.raises(Refused) as caught:
        HoldingWorker(ToldEngine(answer), 0, 0.1, HERE).hold("x", PROBLEM)
    assert (caught.value.status, str(caught.value)) == (status, said)
