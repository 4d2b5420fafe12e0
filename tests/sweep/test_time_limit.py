"""A run that may begin cells for so long: the first are measured, the rest is left and said."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import attnbench
from attnbench.core.store import read_records
from attnbench.sweep import sweep
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot
from impls.loading import load_file

stand_in = load_file(Path(__file__).with_name("answering.py"))
Answering, Watched, plan_of, folder = (
    stand_in.Answering,
    stand_in.Watched,
    stand_in.plan_of,
    stand_in.folder,
)
ROOT = Path(attnbench.__file__).parents[1]


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only while a cell is measured: ten each."""
    now = [100.0]
    monkeypatch.setattr(sweep, "monotonic", lambda: now[0])

    class Taking(Answering):
        def ask(self, question, limit_s):
            now[0] += 10.0 * ("job" in question)
            return super().ask(question, limit_s)

    return Taking


def swept(plan, folder, engine, until, done=()):
    left = sweep.sweep(
        plan, RunRecords(done), folder, [Slot(engine)], Watched(), sweep.Interrupt(print), until
    )
    return left, list(read_records(folder.path))


@pytest.mark.parametrize(
    ("until", "measured"), [(99.0, 0), (101.0, 1), (111.0, 2), (110.0, 1), (1000.0, 4)]
)
def test_after_the_limit_no_cell_is_begun_and_the_first_ones_are_kept(
    clock, folder, until, measured
):
    plan = plan_of("einsum")
    left, found = swept(plan, folder, clock(), until)
    assert left == 4 - measured
    assert [r.key for r in found] == [c.key for c in plan.to_run[:measured]]


def test_what_the_limit_left_is_measured_when_the_run_goes_on(clock, folder):
    plan = plan_of("einsum")
    _, found = swept(plan, folder, clock(), 101.0)
    left, both = swept(plan, folder, clock(), 1e9, found)
    assert (left, [r.key for r in both]) == (0, [c.key for c in plan.to_run])


def test_what_is_left_out_is_written_down_though_there_is_no_time(clock, folder):
    left, found = swept(plan_of("sdpa.cudnn"), folder, clock(), 0.0)
    assert (left, len(found)) == (0, 4)


def called(*words):
    told = [sys.executable, "-m", "attnbench", "run", *map(str, words)]
    return subprocess.run(told, cwd=ROOT, capture_output=True, text=True)


def test_a_run_says_what_its_limit_left_and_how_to_go_on(tmp_path):
    grid = ("--seq", "16,32", "--heads", 1, "--head-dim", 8, "--phase", "forward")
    cut = called(
        "einsum",
        *grid,
        "--budget",
        0.01,
        "--limit",
        "1ms",
        "--out",
        tmp_path,
        "--no-report",
        "--json",
    )
    assert (cut.returncode, cut.stdout) == (2, "")
    assert "2 of 2 cells were not begun" in cut.stderr
    folder = cut.stderr.rpartition("attnbench run --resume ")[2].strip()
    rest = called("--resume", folder, "--limit", "5min", "--no-report", "--json")
    assert len(json.loads(rest.stdout)["records"]) == 2, rest.stderr
    assert "not begun" not in rest.stderr


def test_what_was_left_out_before_is_not_taken_for_something_measured(tmp_path):
    grid = ("--seq", "16", "--heads", 1, "--head-dim", 8, "--phase", "forward")
    cut = called("einsum", "sdpa.cudnn", *grid, "--limit", "1ms", "--out", tmp_path, "--no-report")
    folder = cut.stderr.rpartition("attnbench run --resume ")[2].strip()
    again = called("--resume", folder, "--limit", "1ms", "--no-report")
    for ran in (cut, again):
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "the limit of 1 ms is reached: 1 of 1 cells were not begun" in ran.stderr
        assert "nothing was run" not in ran.stderr
