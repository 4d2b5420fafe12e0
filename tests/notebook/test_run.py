"""``attnbench.run`` measures, resumes and can be stopped."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import attnbench
from attnbench.core.store import read_header, read_records
from attnbench.sweep import start
from attnbench.sweep.sweep import Stopped

ROOT = Path(attnbench.__file__).parents[1]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The rows, the run's folder, and what was said."""
    out = tmp_path_factory.mktemp("out")
    code = (
        "import sys, attnbench\n"
        "df = attnbench.run(['sdpa', 'matmul', 'sdpa.efficient'], seq=[16], heads=2, "
        "phase='forward', budget=0.02, threads=1, seed=7, out=sys.argv[1])\n"
        "assert 'torch' not in sys.modules\n"
        "print(df.to_json(orient='records')); print(df.attrs['run'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    rows, path = done.stdout.splitlines()
    return json.loads(rows), Path(path), done.stderr


def test_a_run_gives_its_records_keeps_its_folder_and_says_its_plan_and_its_end(measured):
    rows, path, said = measured
    assert [row["variant"] for row in rows] == [r.variant for r in read_records(path)]
    assert all(r["time.median_s"] > 0 for r in rows if r["variant"] != "sdpa.efficient")
    (left_out,) = [r for r in rows if r["variant"] == "sdpa.efficient"]
    assert left_out["status"] == "unavailable" and "cuda" in left_out["reason"]
    header = read_header(path)
    assert header["command"] == (
        "attnbench run sdpa matmul sdpa.efficient --seq 16 --heads 2 --phase forward "
        "--budget 0.02 --seed 7 --threads 1"
    )
    assert (header["seed"], header["settings"]["threads"]) == (7, 1)
    first, *_, last = said.splitlines()
    assert first.startswith("2 cells: 2 variants on 1 problem")
    assert re.fullmatch(rf"2 measured, in \d+ s; the run is {path}", last)
    assert "\r" not in said


def test_a_run_that_is_done_can_be_resumed_and_says_nothing_when_quiet(measured, capfd):
    df = attnbench.run(resume=measured[1], quiet=True)
    assert (len(df), df.attrs["run"]) == (len(measured[0]), str(measured[1]))
    assert capfd.readouterr() == ("", "")


def test_stopping_is_an_interrupt_that_says_how_to_go_on(tmp_path, monkeypatch):
    def stopped(*_):
        raise Stopped

    monkeypatch.setattr("attnbench.sweep.sweep.sweep", stopped)
    with pytest.raises(KeyboardInterrupt, match=r"attnbench\.run\(resume='.*goes on"):
        attnbench.run("sdpa", seq=16, out=tmp_path, quiet=True)
    (path,) = tmp_path.glob("*/*")
    start.resume(path).folder.close()  # it was let go


def test_a_thread_beside_the_main_one_can_measure_too(tmp_path, monkeypatch):
    """Only the main thread can hear Ctrl-C, and Python says so to any other that tries."""
    heard, failed = [], []

    def listens(plan, done, folder, slots, watcher, interrupt, until):
        with interrupt.watching():
            heard.append(interrupt)

    def work():
        try:
            attnbench.run("sdpa", seq=16, out=tmp_path, quiet=True)
        except BaseException as error:
            failed.append(error)

    monkeypatch.setattr("attnbench.sweep.sweep.sweep", listens)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert len(heard) == 1
