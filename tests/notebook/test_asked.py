"""What ``attnbench.run`` may be asked for, and what it refuses."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import attnbench
from attnbench.command import arguments
from attnbench.core.store import read_header
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.notebook.arguments import command, grid_changes
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import Problem


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
    assert grid_changes(asked) == changed
    told = arguments.parser().parse_args(shlex.split(command(["sdpa"], asked, ["a b.py"]))[1:])
    assert arguments.grid_changes(told) == changed
    assert (told.variants, told.table) == (["sdpa"], ["a b.py"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"batch": "many"}, "batch: 'many' is not whole numbers"),
        ({"mask": []}, "mask holds nothing"),
        ({"devices": ["cuda:7"]}, "device cuda:7 is not here"),
        ({"resume": "nowhere", "seq": np.array([3])}, "resume takes the grid of the run it names"),
        ({"problems": SeenCalls(), "seq": 16, "budget": 1, "preset": "smoke"}, "out seq, preset"),
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
            f"attnbench run sdpa --budget 0.5 --problems {said} --devices cpu"
        )
        assert header["budget_s"] == 0.5
    assert planned == [found] * 2
    assert "note: the calls are not complete; a thread was not seen" in capsys.readouterr().err


def test_arrays_and_generators_are_read_once_and_recorded(planned, tmp_path):
    df = attnbench.run(
        np.array(["sdpa", "matmul"]),
        seq=np.array([16, 24]),
        heads=(n for n in (2,)),
        phase=pd.Series(["forward"]),
        budget=np.float64(0.5),
        tables=np.array([]),
        out=tmp_path,
        quiet=True,
    )
    assert read_header(Path(df.attrs["run"]))["command"] == (
        "attnbench run sdpa matmul --seq 16,24 --heads 2 --phase forward --budget 0.5"
    )
