"""``attnbench.run``: what it may be asked for, what it refuses; it measures, and can be stopped."""

import re
import shlex
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import attnbench
from attnbench.command import arguments
from attnbench.core.store import read_header, read_records
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.notebook.arguments import asked as told
from attnbench.sweep import start
from attnbench.sweep.sweep import Stopped
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from tests.sweep.build import Answering


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        ({"seq": [256, "1x4096"]}, {"seq": ("256", "1x4096")}),
        ({"seq": range(64, 257, 64)}, {"seq": ("64", "128", "192", "256")}),
        ({"batch": [1, 2], "kv_heads": "1,2"}, {"batch": (1, 2), "kv_heads": (1, 2)}),
        ({"mask": ["causal", "window:3,0"]}, {"mask": ("causal", "window:3,0")}),
        ({"mask": Mask.parse("causal+alibi")}, {"mask": ("causal+alibi",)}),
        ({"dtype": [torch.float32, "bf16"]}, {"dtype": ("float32", "bf16")}),
        ({"budget": 1, "world": 2, "device": "cpu"}, {"budget": 1.0, "world": 2, "device": "cpu"}),
        ({"seq": None}, {}),
    ],
    ids=str,
)
def test_words_become_what_the_command_line_makes_of_them(asked, changed):
    found = told("run", {"variants": "sdpa", **asked, "tables": ["a b.py"], "out": "here"})
    again = arguments.parser().parse_args(shlex.split(found.command)[1:])
    for given in (found, again):
        assert arguments.grid_changes(given) == changed
        assert (given.variants, given.table) == (["sdpa"], ["a b.py"])
    assert found.out == "here"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"batch": "many"}, "batch: 'many' is not whole numbers"),
        ({"mask": []}, "mask holds nothing"),
        ({"devices": ["cuda:7"]}, "no CUDA device found"),
        ({"resume": "nowhere", "seq": np.array([3])}, "resume takes the grid of the run it names"),
        (
            {"problems": SeenCalls(), "seq": 16, "budget": 1, "preset": "smoke"},
            "out --seq, --preset",
        ),
    ],
    ids=str,
)
def test_what_can_not_be_asked_is_a_sentence_and_leaves_no_folder(asked, said, tmp_path):
    with pytest.raises(CantBeDone, match=said):
        attnbench.run(**asked, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def planned(monkeypatch):
    """In place of sweeping: the problems that would have been measured."""
    found = []

    def plans(plan, *_):
        found.append([cell.problem for cell in plan.to_run])

    monkeypatch.setattr("attnbench.sweep.sweep.sweep", plans)
    return found


def test_the_problems_of_a_program_are_measured_in_place_of_a_grid(planned, tmp_path, capsys):
    found = [Problem(q_len=n, kv_len=n, heads=2, kv_heads=2) for n in (16, 24)]
    made = SeenCalls([Site(p, "train.py:1", "sdpa", 1, 0.1) for p in found])
    file = tmp_path / "calls.json"
    made.write(file)
    made.complete, made.unseen = False, ["a thread was not seen"]
    for problems, said in ((made, "CALLS.json"), (str(file), str(file))):
        df = attnbench.run(
            "sdpa", problems=problems, budget=0.5, devices=["cpu"], out=tmp_path / "out"
        )
        header = read_header(Path(df.attrs["run"]))
        assert header["command"] == (
            f"attnbench run sdpa --devices cpu --budget 0.5 --problems {said}"
        )
        assert header["budget_s"] == 0.5
    assert planned == [found] * 2
    assert "note: the calls are not complete; a thread was not seen" in capsys.readouterr().err


def test_a_run_gives_its_records_keeps_its_folder_and_says_its_plan_and_its_end(
    tmp_path, monkeypatch, capfd
):
    engine = Answering()
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: engine)
    grid = {"seq": np.array([16]), "heads": (n for n in (2,)), "phase": pd.Series(["forward"])}
    grid |= {"budget": np.float64(0.02), "tables": np.array([]), "threads": 1, "seed": 7}
    df = attnbench.run(np.array(["sdpa", "matmul", "sdpa.efficient"]), **grid, out=tmp_path)
    path, said = Path(df.attrs["run"]), capfd.readouterr().err
    assert list(df["variant"]) == [r.variant for r in read_records(path)]
    measured = df["variant"] != "sdpa.efficient"
    assert (df[measured]["ms"] > 0).all()
    assert list(df[~measured]["verdict"]) == ["unavailable"]
    header = read_header(path)
    assert header["command"] == (
        "attnbench run sdpa matmul sdpa.efficient --seq 16 --heads 2 --phase forward "
        "--budget 0.02 --threads 1 --seed 7"
    )
    assert (header["seed"], header["settings"]["threads"]) == (7, 1)
    first, *_, last = said.splitlines()
    assert first.startswith("2 measurements: 2 variants on 1 problem")
    assert re.fullmatch(rf"measured in [\d.]+ m?s; the run is {path}", last)
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
