"""``attnbench.run`` measures, resumes and can be stopped."""

import re
import threading
from pathlib import Path

import pytest

import attnbench
from attnbench.core.store import read_header, read_records
from attnbench.sweep import start
from attnbench.sweep.sweep import Stopped
from tests.sweep.build import Answering


def test_a_run_gives_its_records_keeps_its_folder_and_says_its_plan_and_its_end(
    tmp_path, monkeypatch, capfd
):
    engine = Answering()
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: engine)
    grid = {"seq": [16], "heads": 2, "phase": "forward", "budget": 0.02, "threads": 1, "seed": 7}
    df = attnbench.run(["sdpa", "matmul", "sdpa.efficient"], **grid, out=tmp_path)
    path, said = Path(df.attrs["run"]), capfd.readouterr().err
    assert list(df["variant"]) == [r.variant for r in read_records(path)]
    measured = df["variant"] != "sdpa.efficient"
    assert (df[measured]["time.median_s"] > 0).all()
    assert list(df[~measured]["status"]) == ["unavailable"]
    header = read_header(path)
    assert header["command"] == (
        "attnbench run sdpa matmul sdpa.efficient --seq 16 --heads 2 --phase forward "
        "--budget 0.02 --seed 7 --threads 1"
    )
    assert (header["seed"], header["settings"]["threads"]) == (7, 1)
    first, *_, last = said.splitlines()
    assert first.startswith("2 cells: 2 variants on 1 problem")
    assert re.fullmatch(rf"2 measured, in [\d.]+ m?s; the run is {path}", last)
    again = attnbench.run(resume=path, quiet=True)
    assert (len(again), again.attrs["run"]) == (len(df), str(path))
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
