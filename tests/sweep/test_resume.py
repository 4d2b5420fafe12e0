"""A run that is stopped goes on where it was, and every cell ends up there once."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from attnbench.core.disk import StoreError
from attnbench.core.evidence import save_beside
from attnbench.core.machine import this_machine
from attnbench.core.record import PROTOCOL, Status
from attnbench.core.store import read_header, read_records
from attnbench.sweep import start
from impls import UnknownVariant
from tests.calling import ROOT, only_run, well
from tests.processes import alive, until
from tests.sweep.build import ONE, Answering

GRID = ["--seq", "16,24", "--heads", "1", "--head-dim", "8", "--phase", "forward"]
GRID += ["--budget", "0.01", "--mask", "none"]
VARIANTS = ["h.waits", "numpy", "sdpa.cudnn"]
CELLS = {(name, n) for name in VARIANTS for n in (16, 24)}
WAITS = """
import os, time
from pathlib import Path
from impls.spec import Variant

HERE = Path(__file__).parent

def build(problem):
    from impls.dense.einsum import build
    (HERE / "pid").write_text(str(os.getpid()))
    end = time.monotonic() + 60
    while (HERE / "hold").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return build(problem)

ROWS = [Variant(name="h.waits", title="waits", family="h", computes="softmax", build=":build")]
"""


def cells(path):
    return Counter((r.variant, r.problem.kv_len) for r in read_records(path))


def test_a_run_that_ctrl_c_stopped_goes_on_with_every_cell_once(tmp_path, monkeypatch):
    table, hold, pid = (tmp_path / name for name in ("waiting.py", "hold", "pid"))
    table.write_text(WAITS)
    hold.touch()
    command = [sys.executable, "-m", "attnbench", "run", "--no-report", *VARIANTS, *GRID]
    process = subprocess.Popen(
        [*command, "--table", str(table), "--out", str(tmp_path / "out")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: pid.exists() and pid.read_text())
    worker = int(pid.read_text())
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None and alive(worker)
    hold.unlink()  # the cell that was running ends
    _, err = process.communicate(timeout=60)
    path = only_run(tmp_path / "out")
    assert process.returncode == 130 and not alive(worker) and "Traceback" not in err
    assert f"attnbench run --resume {path}" in err and "stopping after this measurement" in err
    assert cells(path)["h.waits", 16] == 1 and ("numpy", 16) not in cells(path)

    engine = Answering()
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: engine)
    with (path / "records.jsonl").open("a") as file:
        file.write('{"status":"measured","vari')
    resume = ["run", "--no-report", "--json", "--resume", path, "--table", table]
    done = well(*resume)
    assert (path / "torn.txt").read_text() == '{"status":"measured","vari\n'
    assert cells(path) == dict.fromkeys(CELLS, 1)
    for record in read_records(path):
        left_out = record.variant == "sdpa.cudnn"
        assert record.status is (Status.UNAVAILABLE if left_out else Status.MEASURED)
        assert record.run == path.name
    assert "3 done before" in done.stderr and len(engine.jobs) == 3  # left out are two
    before = (path / "records.jsonl").read_bytes()
    again = well(*resume)  # nothing is left to do but to answer
    assert again.stdout == done.stdout and len(json.loads(again.stdout)["records"]) == len(CELLS)
    assert (path / "records.jsonl").read_bytes() == before and len(engine.jobs) == 3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"grid": None}, "damaged"),
        ({"protocol": 99}, "protocol 99"),
        ({"machine": {"name": "elsewhere"}}, "elsewhere"),
        ({"tables": ["/no/such/table.py"]}, "/no/such/table.py"),
        ({"tables": ["rows/mine.py"]}, f"go on with --table {ROOT}/rows/mine.py"),
        ({"variants": ["gone"]}, "there is no variant 'gone'"),
    ],
)
def test_a_run_that_can_not_go_on_here_says_why(tmp_path, changed, words):
    run = start.begin(["einsum"], ONE, [], tmp_path, seed=0, threads=1)
    run.folder.close()
    header = json.loads((run.folder.path / "run.json").read_text()) | changed
    kept = {key: value for key, value in header.items() if value is not None}
    (run.folder.path / "run.json").write_text(json.dumps(kept))
    with pytest.raises((StoreError, UnknownVariant), match=words):
        start.resume(run.folder.path)


def test_a_header_keeps_what_the_self_check_said(tmp_path):
    def kept():
        run = start.begin(["einsum"], ONE, [], tmp_path, seed=0, threads=1)
        run.folder.close()
        return read_header(run.folder.path)["selfcheck"]

    assert kept() is None
    said = {"line": "ruler self-check: 2/2 on this machine", "date": "2026-01-01T00:00:00+00:00"}
    facts = {"protocol": PROTOCOL, **said, "versions": {"torch": "2"}, "outcomes": [{"deed": "x"}]}
    path = save_beside(tmp_path, this_machine().name, "selfcheck.json", facts)
    assert kept() == said
    path.write_text(json.dumps({**facts, "protocol": PROTOCOL - 1}))
    assert kept() is None
