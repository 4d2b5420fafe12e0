"""Ctrl-C, while a variant holds the worker where no signal reaches it."""

import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from attnbench.core.store import read_records
from impls.loading import load_file

starting = load_file(Path(__file__).with_name("starting.py"))
sweeping = starting.sweeping


STUCK = [
    "loops_in_c_with_the_interpreter_held",
    "ignores_every_signal_and_hangs",
    "shouts_for_ever",
    "stands_still",
]


@contextmanager
def stuck_in(name, folder):
    """A run whose second cell holds its worker; the run, its folder and its word."""
    tables = [w for table in sweeping.laid_out(folder) for w in ("--table", table)]
    words = ["c.honest", f"c.{name}", "einsum", "--seq", "16", *starting.SMALL, *tables]
    out = folder / "results"
    with sweeping.marked() as word, starting.started(word, *words, "--out", out) as run:
        sweeping.processes.until(lambda: any(map(starting.lines, out.glob("*/2*"))), 120)
        time.sleep(1.0)  # it is stuck by then
        (path,) = out.glob("*/2*")
        yield run, path, word
    assert [r.variant for r in read_records(path)] == ["c.honest"]


@pytest.mark.slow
@pytest.mark.parametrize("stuck", STUCK)
def test_ctrl_c_twice_ends_at_once_what_is_stuck_and_leaves_nothing(stuck, tmp_path):
    with stuck_in(stuck, tmp_path) as (run, path, word):
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.poll() is None
        asked = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert run.wait(20) == 130
        assert time.monotonic() - asked < 10
        said = run.stderr.read()
        starting.until_gone(word)
    assert "Traceback" not in said
    assert f"attnbench run --resume {path}" in said


@pytest.mark.slow
@pytest.mark.parametrize("stuck", STUCK)
def test_a_run_that_is_killed_while_its_worker_is_stuck_leaves_nothing(stuck, tmp_path):
    with stuck_in(stuck, tmp_path) as (run, _, word):
        assert len(sweeping.left_behind(word)) >= 3  # it, the keeper and the worker
        run.kill()
        run.wait()
        starting.until_gone(word)
