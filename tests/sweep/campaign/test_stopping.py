"""Ctrl-C, while a variant holds the worker where no signal reaches it."""

import signal
import time
from pathlib import Path

import pytest

from attnbench.store import read_records
from impls.loading import load_file

starting = load_file(Path(__file__).with_name("starting.py"))
sweeping = starting.sweeping


@pytest.mark.slow
@pytest.mark.parametrize("stuck", [
    "loops_in_c_with_the_interpreter_held", "ignores_every_signal_and_hangs", "shouts_for_ever",
    "stands_still",
])  # fmt: skip
def test_ctrl_c_twice_ends_at_once_what_is_stuck_and_leaves_nothing(stuck, tmp_path):
    tables = [w for table in sweeping.laid_out(tmp_path) for w in ("--table", table)]
    words = ["c.honest", f"c.{stuck}", "einsum", "--seq", "16", *starting.SMALL, *tables]
    out = tmp_path / "results"
    with sweeping.marked() as word, starting.started(word, *words, "--out", out) as run:
        sweeping.processes.until(lambda: any(map(starting.lines, out.glob("*/2*"))), 120)
        time.sleep(1.0)  # it is stuck by then
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.poll() is None
        asked = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert run.wait(20) == 130
        assert time.monotonic() - asked < 10
        said = run.stderr.read()
        starting.until_gone(word)
    (path,) = out.glob("*/2*")
    assert "Traceback" not in said
    assert f"attnbench run --resume {path}" in said
    assert [r.variant for r in read_records(path)] == ["c.honest"]
