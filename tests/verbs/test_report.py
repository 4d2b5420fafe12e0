"""``attnbench report`` as its users meet it, and what becomes of a run whose report fails."""

import json

import pytest

from attnbench.features.report import build
from attnbench.features.report.verb import report_of
from tests.calling import asked
from tests.report.page import runs


@pytest.fixture(autouse=True)
def unfigured(monkeypatch):
    """Figures have tests of their own, and take their time."""
    monkeypatch.setattr(build, "draw_all", lambda *_: ([], {}))


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

    monkeypatch.setattr(build, "draw_all", fail)
    report_of(run)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "MemoryError" in said
    assert f"'attnbench report {run}' tries again" in said
