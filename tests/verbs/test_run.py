"""``attnbench run`` and ``report``: the problems of a program, how a check ends, a failure."""

import json
from contextlib import nullcontext

import pytest

from attnbench import cli
from attnbench.core.store import read_header, read_records
from attnbench.core.wire import convert
from attnbench.features.report import contents
from attnbench.features.report.verb import report_of
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.report.scenes import read_run
from attnbench.sweep.engine import WorkerLost
from impls.masks import Mask
from impls.problem import Problem
from tests.calling import asked, only_run
from tests.report.page import runs
from tests.sweep.build import Answering

A = Problem(2, heads=4, kv_heads=2, q_len=24, kv_len=24, mask=Mask.parse("causal"), phase="train")
B = A.with_(q_len=1, kv_len=40, mask=Mask(), phase="decode", batch=1)


def test_the_problems_of_a_program_are_measured_and_gone_on_with(tmp_path, capsys, monkeypatch):
    engine = Answering()
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: engine)
    sites = [Site(p, "model.py:5", "sdpa", 4, 1.0) for p in (A, B)]
    sites.append(Site(A.with_(batch=7), "a.py:1", "flex", 1, 9.0, faithful=False, note="capped"))
    SeenCalls(sites).write(calls := tmp_path / "calls.json")
    asked = ["--problems", str(calls), "--budget", "0.02", "--no-report"]
    assert cli.main(["run", "sdpa", *asked, "--out", str(tmp_path / "out")]) == 0
    folder = only_run(tmp_path / "out")
    assert [convert(job["problem"], Problem) for job in engine.jobs] == [A, B]
    assert [(r.variant, r.problem) for r in read_records(folder)] == [("sdpa", A), ("sdpa", B)]
    header = read_header(folder)
    assert [convert(p, Problem) for p in header["problems"]] == [A, B]
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text(lines[0])
    calls.unlink()  # the run knows by itself what it was to measure
    assert cli.main(["run", "--resume", str(folder), "--no-report"]) == 0
    assert "1 done before" in capsys.readouterr().err
    assert [convert(job["problem"], Problem) for job in engine.jobs] == [A, B, B]
    assert len(read_records(folder)) == 2


def test_a_check_that_finds_something_wrong_ends_with_1(monkeypatch):
    engine = Answering(WorkerLost("it wrote", "", timed_out=False, wrong=True))
    monkeypatch.setattr("attnbench.sweep.engine.LocalEngine", lambda *_, **__: nullcontext(engine))
    check = ["check", "sdpa", "--seq", "16", "--phase", "forward", "--mask", "none"]
    assert [cli.main(check), cli.main(check)] == [1, 0]


@pytest.fixture
def run(tmp_path):
    return runs.written(tmp_path / "results" / "box" / "one", runs.small())


def test_several_runs_want_a_place_and_are_never_one_ranking(run, tmp_path):
    other = runs.written(run.parent / "two", [runs.timed("sdpa", 1e-4)])
    status, out, err = asked("report", run, other)
    assert (status, out) == (2, "") and "these are 2 runs" in err
    status, out, err = asked("report", run.parent, "--json", "--out", tmp_path / "both")
    assert status == 0
    by_run = {(a["run"].split()[0], a["winner"]) for a in json.loads(out)["answers"]}
    assert by_run == {("one", "sdpa"), ("one", "matmul"), ("two", "sdpa")}
    status, out, err = asked("report", runs.written(tmp_path / "void", []))
    assert (status, out) == (2, "") and "holds no record" in err
    assert not (tmp_path / "void" / "report").exists()


def test_a_report_that_fails_costs_a_run_nothing(monkeypatch, capsys, run):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(contents, "headlines", fail)
    report_of(read_run(run))
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "MemoryError" in said
    assert f"'attnbench report {run}' tries again" in said
