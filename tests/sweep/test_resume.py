"""A run that is stopped or killed goes on where it was, and every cell ends up there once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from attnbench import cli
from attnbench.core.record import Status
from attnbench.core.store import read_records
from tests.calling import ROOT, attnbench_, only_run
from tests.processes import alive, gone, until

GRID = ["--seq", "16,24", "--heads", "1", "--head-dim", "8", "--phase", "forward"]
GRID += ["--budget", "0.01", "--mask", "none"]
VARIANTS = ["einsum", "h.waits", "numpy", "sdpa.cudnn"]
CELLS = {(name, n) for name in VARIANTS for n in (16, 24)}


class Started:
    """A run in a process of its own, held inside ``h.waits``."""

    def __init__(self, table, out):
        self.hold, pid_file = table.parent / "hold", table.parent / "waits.pid"
        pid_file.unlink(missing_ok=True)
        self.hold.touch()
        command = [sys.executable, "-m", "attnbench", "run", "--no-report", *VARIANTS, *GRID]
        self.process = subprocess.Popen(
            [*command, "--table", str(table), "--out", str(out)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: pid_file.exists() and pid_file.read_text())
        self.worker = int(pid_file.read_text())

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        time.sleep(0.3)

    def let_go(self):
        self.hold.unlink(missing_ok=True)

    def end(self):
        """The exit status and standard error."""
        _, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err
        return self.process.returncode, err


def cells(path):
    return Counter((r.variant, r.problem.kv_len) for r in read_records(path))


def resumed(path, table):
    return attnbench_("run", "--no-report", "--json", "--resume", path, "--table", table)


def test_a_run_that_was_killed_goes_on_with_every_cell_once(waiting, tmp_path):
    started = Started(waiting, tmp_path)
    started.process.kill()
    started.process.communicate()
    assert gone(started.worker, 30)  # it dies with its parent whatever it is at
    started.let_go()
    path = only_run(tmp_path)
    assert cells(path)["einsum", 16] == 1 and ("h.waits", 16) not in cells(path)
    with (path / "records.jsonl").open("a") as file:
        file.write('{"status":"measured","vari')
    done = resumed(path, waiting)
    assert done.returncode == 0, done.stderr
    assert (path / "torn.txt").read_text() == '{"status":"measured","vari\n'
    assert cells(path) == dict.fromkeys(CELLS, 1)
    for record in read_records(path):
        left_out = record.variant == "sdpa.cudnn"
        assert record.status is (Status.UNAVAILABLE if left_out else Status.MEASURED)
        assert record.run == path.name
    assert "3 done before" in done.stderr  # einsum and what is left out, twice
    assert "n24" in done.stderr and not re.search(r"einsum .* n16 ", done.stderr)
    before = (path / "records.jsonl").read_bytes()
    again = resumed(path, waiting)  # nothing is left to do but to answer
    assert (again.returncode, "[1/" in again.stderr) == (0, False)
    assert again.stdout == done.stdout and len(json.loads(again.stdout)["records"]) == len(CELLS)
    assert (path / "records.jsonl").read_bytes() == before


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run with a record."""
    out = tmp_path_factory.mktemp("begun")
    words = ["run", "einsum", *GRID, "--limit", "1ms", "--no-report", "--out", out]
    attnbench_(*words)
    return only_run(out)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"grid": ...}, "damaged"),
        ({"settings": ...}, "damaged"),
        ({"protocol": 99}, "protocol 99"),
        ({"machine": {"name": "elsewhere"}}, "elsewhere"),
        ({"tables": ["/no/such/table.py"]}, "/no/such/table.py"),
        ({"variants": ["gone"]}, "there is no variant 'gone'"),
    ],
    ids=str,
)
def test_a_run_that_can_not_go_on_here_says_why(begun, tmp_path, capsys, changed, words):
    header = json.loads((begun / "run.json").read_text()) | changed
    kept = {key: value for key, value in header.items() if value is not ...}
    (tmp_path / "run.json").write_text(json.dumps(kept))
    assert cli.main(["run", "--resume", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "records.jsonl").exists()


# ---- Ctrl-C --------------------------------------------------------------------------------------


def test_one_ctrl_c_lets_the_running_cell_end_and_says_how_to_go_on(waiting, tmp_path):
    started = Started(waiting, tmp_path)
    started.interrupt()
    assert started.process.poll() is None and alive(started.worker)
    started.let_go()
    status, err = started.end()
    path = only_run(tmp_path)
    assert status == 130 and not alive(started.worker)
    assert f"attnbench run --resume {path}" in err and "stopping after this cell" in err
    by_cell = {(r.variant, r.problem.kv_len): r for r in read_records(path)}
    assert by_cell[("h.waits", 16)].status is Status.MEASURED
    assert ("numpy", 16) not in by_cell


def test_two_ctrl_c_stop_at_once_and_end_the_worker(waiting, tmp_path):
    started = Started(waiting, tmp_path)
    started.interrupt()
    os.kill(started.process.pid, signal.SIGINT)
    status, err = started.end()  # h.waits is still being held
    started.let_go()
    path = only_run(tmp_path)
    assert status == 130 and f"--resume {path}" in err and not alive(started.worker)
    assert ("h.waits", 16) not in cells(path) and cells(path)["einsum", 16] == 1
