"""What ``attnbench.run`` may be asked for, and what it refuses."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import attnbench
from attnbench.command import arguments
from attnbench.core.store import read_header
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.notebook.arguments import BadWord, command, grid_changes
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import Problem


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        ({"seq": 256}, {"seq": ("256",)}),
        ({"seq": [256, "1x4096"]}, {"seq": ("256", "1x4096")}),
        ({"seq": "256,512"}, {"seq": ("256", "512")}),
        ({"seq": range(64, 257, 64)}, {"seq": ("64", "128", "192", "256")}),
        ({"batch": [1, 2], "kv_heads": "1,2"}, {"batch": (1, 2), "kv_heads": (1, 2)}),
        ({"mask": "window:255,0"}, {"mask": ("window:255,0",)}),
        ({"mask": ["causal", "window:3,0"]}, {"mask": ("causal", "window:3,0")}),
        ({"mask": Mask.parse("causal+alibi")}, {"mask": ("causal+alibi",)}),
        ({"phase": ("forward", "train")}, {"phase": ("forward", "train")}),
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


def test_dtypes_may_be_torchs_own():
    import torch

    assert grid_changes({"dtype": [torch.float32, torch.bfloat16]})["dtype"] == (
        "float32",
        "bfloat16",
    )


BAD = [
    ({"batch": "many"}, "batch: 'many' is not whole numbers"),
    ({"batch": 1.5}, "batch: '1.5' is not whole numbers"),
    ({"seq": []}, "seq: '' holds nothing"),
    ({"mask": []}, "mask holds nothing"),
    ({"budget": 0}, "budget: '0' is not a number of seconds above 0"),
    ({"threads": -1}, "threads: '-1' is not a whole number"),
    ({"threads": 10**6}, "threads would wait for each other"),
    ({"seed": "x"}, "seed: 'x' is not a whole number"),
    ({"seq": "long"}, "neither a length N nor QxK"),
    ({"phase": "sideways"}, "phase='sideways' is not one of"),
    ({"mask": "diagonal"}, "'diagonal' is no mask"),
    ({"preset": "large"}, "there is no preset 'large'"),
    ({"device": "tpu"}, "device='tpu' is not cpu"),
    ({"devices": ["cuda:7"]}, "device cuda:7 is not here"),
    ({"variants": "sdqa"}, "there is no variant 'sdqa'"),
    ({"tables": "none.py"}, "there is no table file none.py"),
    ({"resume": "nowhere"}, "there is no run folder nowhere"),
    ({"resume": "nowhere", "seq": 3}, "resume takes the grid of the run it names"),
]


@pytest.mark.parametrize(("asked", "said"), BAD, ids=[str(each[0]) for each in BAD])
def test_what_can_not_be_asked_is_a_sentence_and_leaves_no_folder(asked, said, tmp_path):
    with pytest.raises(CantBeDone, match=said):
        attnbench.run(**asked, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def calls(tmp_path):
    """Two problems that a program put, and their file."""
    found = [Problem(q_len=n, kv_len=n, heads=2, kv_heads=2) for n in (16, 24)]
    made = SeenCalls(
        [
            Site(
                problem=p,
                site="train.py:1",
                via="sdpa",
                calls=1,
                seconds=0.1,
                backward_s=0.0,
                share=None,
                scale=p.scale,
                samples="",
                note="",
            )
            for p in found
        ]
    )
    made.write(tmp_path / "calls.json")
    return made, tmp_path / "calls.json", found


def test_the_problems_of_a_program_are_measured_in_place_of_a_grid(calls, tmp_path, monkeypatch):
    planned = []

    def plans(plan, *_):
        planned.append([cell.problem for cell in plan.to_run])

    monkeypatch.setattr("attnbench.notebook.measured.sweep", plans)
    made, file, found = calls
    for problems, said in ((made, "CALLS.json"), (file, str(file)), (str(file), str(file))):
        df = attnbench.run("sdpa", problems=problems, budget=0.5, out=tmp_path / "out", quiet=True)
        header = read_header(Path(df.attrs["run"]))
        assert header["command"] == f"attnbench run sdpa --budget 0.5 --problems {said}"
        assert header["budget_s"] == 0.5
    assert planned == [found] * 3


def test_devices_are_recorded_and_go_with_the_problems_of_a_program(calls, tmp_path, monkeypatch):
    monkeypatch.setattr("attnbench.notebook.measured.sweep", lambda *_: None)
    for asked, said in (
        ({"problems": calls[0]}, "--problems CALLS.json"),
        ({"seq": 16}, "--seq 16"),
    ):
        df = attnbench.run("sdpa", **asked, devices=["cpu"], out=tmp_path / "out", quiet=True)
        command = read_header(Path(df.attrs["run"]))["command"]
        assert command == f"attnbench run sdpa {said} --devices cpu"


def test_arrays_and_generators_are_read_once_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("attnbench.notebook.measured.sweep", lambda *_: None)
    df = attnbench.run(
        np.array(["sdpa", "matmul"]),
        seq=np.array([16, 24]),
        heads=(n for n in (2,)),
        mask=(text for text in ("none", "causal")),
        phase=pd.Series(["forward"]),
        batch=np.array(1),
        budget=np.float64(0.5),
        devices=(name for name in ("cpu",)),
        tables=np.array([]),
        out=tmp_path,
        quiet=True,
    )
    header = read_header(Path(df.attrs["run"]))
    assert header["command"] == (
        "attnbench run sdpa matmul --seq 16,24 --batch 1 --heads 2 --mask none --mask causal "
        "--phase forward --budget 0.5 --devices cpu"
    )
    assert header["grid"]["heads"] == [2]
    assert header["grid"]["mask"] == ["none", "causal"]
    with pytest.raises(BadWord, match="resume takes the grid"):
        attnbench.run(np.array(["sdpa", "matmul"]), resume=df.attrs["run"])
    with pytest.raises(BadWord, match="resume takes the grid"):
        attnbench.run(resume=df.attrs["run"], seq=np.array([16, 24]))


def test_problems_and_a_grid_are_not_asked_for_together(calls, tmp_path):
    made, file, _ = calls
    with pytest.raises(BadWord, match="problems says which problems; leave out seq, preset"):
        attnbench.run(problems=made, seq=16, preset="smoke", budget=1, out=tmp_path / "out")
    with pytest.raises(BadWord, match="holds no call"):
        attnbench.run(problems=SeenCalls(), out=tmp_path / "out")
    with pytest.raises(CantBeDone, match="can't read calls from"):
        attnbench.run(problems=file.with_name("none.json"), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_calls_that_were_cut_off_are_measured_and_said_to_be(calls, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("attnbench.notebook.measured.sweep", lambda *_: None)
    made = calls[0]
    made.complete, made.unseen = False, ["a thread was not seen"]
    attnbench.run("sdpa", problems=made, out=tmp_path / "out")
    assert "note: the calls are not complete; a thread was not seen" in capsys.readouterr().err


def test_bad_words_are_value_errors_too():
    with pytest.raises(ValueError, match="batch: 'many'"):
        attnbench.run(batch="many")
