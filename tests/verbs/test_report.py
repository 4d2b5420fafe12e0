"""``attnbench report`` as its users meet it, and what becomes of a run whose report fails."""

import json
from pathlib import Path

import pytest

from attnbench.features.report import build
from attnbench.features.report.verb import report_of
from impls.loading import load_file
from tests.calling import attnbench_

runs = load_file(Path(__file__).parents[1] / "report" / "page" / "runs.py")
NAN = float("nan")


@pytest.fixture(autouse=True)
def unfigured(monkeypatch):
    """Figures have tests of their own, and take their time."""
    monkeypatch.setattr(build, "draw_all", lambda *_: ([], {}))


def asked(*words):
    """The status, data and prose of the verb."""
    done = attnbench_("report", *words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run(tmp_path):
    return runs.written(tmp_path / "results" / "box" / "one", runs.small())


def test_several_runs_want_a_place_and_are_never_one_ranking(run, tmp_path):
    other = runs.written(run.parent / "two", [runs.timed("sdpa", 1e-4)])
    status, out, err = asked(run, other)
    assert (status, out) == (2, "") and "these are 2 runs" in err
    status, out, err = asked(run.parent, "--json", "--out", tmp_path / "both")
    assert status == 0
    by_run = {(a["run"], a["winner"]) for a in json.loads(out)["answers"]}
    assert by_run == {
        ("one on slow-box-2c", "sdpa"),
        ("one on slow-box-2c", "matmul"),
        ("two on slow-box-2c", "sdpa"),
    }


GOOD = runs.timed("sdpa", 1e-3).line() + "\n"
BAD = {
    "no records": ([], "holds no record"),
    "a newer form": ([runs.changed(runs.timed("a", 1e-3), schema=99)], "update attnbench"),
    "no object": ([GOOD, "[]\n", GOOD], "line 2"),
    "a time of what failed": ([runs.changed(runs.timed("a", 1e-3), status="failed")], "line 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_can_t_be_read_is_a_sentence_and_leaves_nothing(tmp_path, what):
    lines, said = BAD[what]
    folder = runs.written(tmp_path / "run", lines)
    before = sorted(tmp_path.rglob("*"))
    status, out, err = asked(folder)
    assert (status, out) == (2, "") and said in err
    assert sorted(tmp_path.rglob("*")) == before


TRUE = {
    "only failed records": ([runs.untimed("a", "failed", "it broke")], "Nothing was measured"),
    "a run cut off": ([GOOD, GOOD[:50]], "sdpa takes 1.00 ms"),
    "no number": ([runs.changed(runs.timed("a", 1e-3), time__median_s=NAN)], "Nothing was meas"),
}


@pytest.mark.parametrize("what", TRUE)
def test_what_can_be_read_has_a_page_that_says_something_true(tmp_path, what):
    lines, said = TRUE[what]
    folder = runs.written(tmp_path / "run", lines)
    status, out, _ = asked(folder)
    assert status == 0
    assert said in out
    page, summary = ((folder / "report" / x).read_text() for x in ("index.html", "summary.md"))
    assert said in summary
    if what == "only failed records":
        assert "it broke" in page and "failed: a (1 cell): it broke" in summary
    if what == "a run cut off":
        assert "cut off" in page and "cut off" in summary


def test_a_report_that_fails_costs_a_run_nothing(monkeypatch, capsys, run):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(build, "draw_all", fail)
    report_of(run)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "MemoryError" in said
    assert f"'attnbench report {run}' tries again" in said
