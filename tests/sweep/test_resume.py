"""A run that is stopped or killed goes on where it was, and every cell ends up there once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import attnbench
from attnbench import cli
from attnbench.core.record import Status
from attnbench.core.store import read_records
from tests.processes import alive, until

ROOT = Path(attnbench.__file__).parents[1]
GRID = [
    "--seq",
    "16,24",
    "--heads",
    "1",
    "--head-dim",
    "8",
    "--phase",
    "forward",
    "--budget",
    "0.01",
    "--mask",
    "none",
]
VARIANTS = ["einsum", "h.waits", "numpy", "sdpa.cudnn"]
CELLS = {(name, n) for name in VARIANTS for n in (16, 24)}
PATIENCE_S = 60


def command(*words):
    return [sys.executable, "-m", "attnbench", "run", "--no-report", *map(str, words)]


class Started:
    """A run in a process of its own, held inside ``h.waits``."""

    def __init__(self, hostile, *words):
        self.hold, self.pid_file = hostile.parent / "hold", hostile.parent / "waits.pid"
        self.pid_file.unlink(missing_ok=True)
        self.hold.touch()
        self.process = subprocess.Popen(
            command(*words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        until(lambda: self.pid_file.exists() and self.pid_file.read_text())
        self.worker = int(self.pid_file.read_text())

    def let_go(self):
        self.hold.unlink(missing_ok=True)

    def end(self):
        """Standard output, standard error and the exit status."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return out, err, self.process.returncode


def finish(path, *more):
    return subprocess.run(
        command("--resume", path, *more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )


def cells(path):
    return Counter((r.variant, r.problem.kv_len) for r in read_records(path))


def only_run(out):
    (path,) = out.glob("*/*")
    return path


@pytest.fixture(scope="module")
def killed(hostile, tmp_path_factory):
    """A run whose process got SIGKILL in its second cell, then resumed, then resumed again."""
    out = tmp_path_factory.mktemp("killed")
    started = Started(hostile, *VARIANTS, *GRID, "--table", hostile, "--out", out)
    started.process.kill()
    started.end()
    until(lambda: not alive(started.worker), 30)
    worker_alive = alive(started.worker)
    started.let_go()
    path = only_run(out)
    said = {"path": path, "at_death": cells(path), "worker_alive": worker_alive}
    with (path / "records.jsonl").open("a") as file:
        file.write('{"status":"measured","vari')
    said["table"] = ["--table", str(hostile)]
    said["second"] = finish(path, *said["table"])
    said["after_second"] = (path / "records.jsonl").read_bytes()
    said["third"] = finish(path, *said["table"])
    said["fourth"] = finish(path, "--json", *said["table"])
    return said


def test_what_was_measured_before_the_kill_is_on_disk(killed):
    assert killed["at_death"][("einsum", 16)] == 1
    assert ("h.waits", 16) not in killed["at_death"]


def test_a_worker_dies_with_its_parent_whatever_it_is_at(killed):
    assert not killed["worker_alive"]


def test_a_resumed_run_ends_with_every_cell_once(killed):
    assert killed["second"].returncode == 0, killed["second"].stderr
    assert cells(killed["path"]) == dict.fromkeys(CELLS, 1)
    for record in read_records(killed["path"]):
        left_out = record.variant == "sdpa.cudnn"
        assert record.status is (Status.UNAVAILABLE if left_out else Status.MEASURED)
        assert record.run == killed["path"].name


def test_a_resumed_run_says_how_much_was_done_before(killed):
    assert "3 done before" in killed["second"].stderr  # einsum and what is left out, twice
    assert "n24" in killed["second"].stderr
    assert not re.search(r"einsum .* n16 ", killed["second"].stderr)


def test_the_torn_line_was_set_aside(killed):
    assert (killed["path"] / "torn.txt").read_text() == '{"status":"measured","vari\n'


def test_resuming_what_is_complete_does_nothing_but_answer(killed):
    third = killed["third"]
    assert third.returncode == 0, third.stderr
    assert (killed["path"] / "records.jsonl").read_bytes() == killed["after_second"]
    assert third.stdout == killed["second"].stdout
    assert "[1/" not in third.stderr


def test_a_resumed_run_takes_json(killed):
    sent = json.loads(killed["fourth"].stdout)
    assert len(sent["records"]) == len(CELLS)
    assert sent["answers"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        *(
            ({key: ...}, "damaged")
            for key in (
                "seed", "budget_s", "grid", "variants", "machine", "settings", "tables", "protocol"
            )
        ),
        ({"protocol": 99}, "protocol 99"),
        ({"machine": {"name": "elsewhere"}}, "elsewhere"),
        ({"tables": ["/no/such/table.py"]}, "/no/such/table.py"),
        ({"variants": ["gone"]}, "there is no variant 'gone'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_run_that_can_not_go_on_here_says_why(killed, tmp_path, capsys, changed, words):
    header = json.loads((killed["path"] / "run.json").read_text())
    header |= {"tables": [], "variants": ["einsum"], **changed}
    kept = {key: value for key, value in header.items() if value is not ...}
    (tmp_path / "run.json").write_text(json.dumps(kept))
    assert cli.main(["run", "--resume", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "records.jsonl").exists()


# ---- Ctrl-C --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(hostile, tmp_path_factory):
    """A run that got one Ctrl-C while its second cell was running."""
    out = tmp_path_factory.mktemp("stopped")
    started = Started(hostile, *VARIANTS, *GRID, "--table", hostile, "--out", out)
    os.kill(started.process.pid, signal.SIGINT)
    time.sleep(0.3)
    still = started.process.poll() is None and alive(started.worker)
    started.let_go()
    _, err, status = started.end()
    return {
        "path": only_run(out),
        "err": err,
        "status": status,
        "still": still,
        "worker": started.worker,
    }


def test_one_ctrl_c_lets_the_running_cell_end(stopped):
    assert stopped["still"]
    by_cell = {(r.variant, r.problem.kv_len): r for r in read_records(stopped["path"])}
    assert by_cell[("h.waits", 16)].status is Status.MEASURED
    assert ("numpy", 16) not in by_cell


def test_one_ctrl_c_says_how_to_go_on_and_exits_130(stopped):
    assert stopped["status"] == 130
    assert f"attnbench run --resume {stopped['path']}" in stopped["err"]
    assert "stopping after this cell" in stopped["err"]
    assert "Traceback" not in stopped["err"]
    assert not alive(stopped["worker"])


def test_two_ctrl_c_stop_at_once_and_end_the_worker(hostile, tmp_path):
    started = Started(hostile, *VARIANTS, *GRID, "--table", hostile, "--out", tmp_path)
    os.kill(started.process.pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(started.process.pid, signal.SIGINT)
    _, err, status = started.end()  # h.waits is still being held
    started.let_go()
    assert status == 130
    assert "Traceback" not in err
    assert f"--resume {only_run(tmp_path)}" in err
    assert not alive(started.worker)
    assert ("h.waits", 16) not in cells(only_run(tmp_path))
    assert cells(only_run(tmp_path))[("einsum", 16)] == 1
