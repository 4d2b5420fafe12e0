"""A run that may begin cells for so long: the first are measured, the rest is left and said."""

import json

import pytest

from attnbench import cli
from attnbench.core.store import read_records
from attnbench.sweep import sweep
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot
from tests.sweep.build import Answering, Watched, plan_of


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


@pytest.fixture
def called(capsys):
    """The exit status, output and error stream of ``attnbench run``."""

    def run(*words):
        status = cli.main(["run", *map(str, words), "--no-report"])
        return status, *capsys.readouterr()

    return run


GRID = ["--heads", "1", "--head-dim", "8", "--phase", "forward", "--budget", "0.01"]
RESUME = "attnbench run --resume "


def test_a_run_says_what_its_limit_left_and_how_to_go_on(called, tmp_path):
    words = ("einsum", "--seq", "16,32", *GRID, "--limit", "1ms", "--out", tmp_path, "--json")
    status, out, err = called(*words)
    assert (status, out) == (2, "")
    assert "2 of 2 cells were not begun" in err
    folder = err.rpartition(RESUME)[2].strip()
    _, out, err = called("--resume", folder, "--limit", "5min", "--json")
    assert len(json.loads(out)["records"]) == 2, err
    assert "not begun" not in err


def test_what_was_left_out_before_is_not_taken_for_something_measured(called, tmp_path):
    first = called(
        "einsum", "sdpa.cudnn", "--seq", "16", *GRID, "--limit", "1ms", "--out", tmp_path
    )
    again = called("--resume", first[2].rpartition(RESUME)[2].strip(), "--limit", "1ms")
    for status, out, err in (first, again):
        assert (status, out) == (2, "")
        assert "the limit of 1 ms is reached: 1 of 1 cells were not begun" in err
        assert "nothing was run" not in err
