"""attnbench in a notebook: what it may be asked, what it measures, shows and chooses."""

import ast
import json
import re
import shlex
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import attnbench
from attnbench.command import arguments
from attnbench.core.machine import this_machine
from attnbench.core.store import read_header, read_records
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.notebook.verbs import parse as told
from attnbench.sweep import start
from attnbench.sweep.sweep import Stopped
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from tests.answer import build as lines
from tests.calling import well
from tests.sweep.build import Answering
from tests.verbs import chosen_runs as made


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
)
def test_words_become_what_the_command_line_makes_of_them(asked, changed):
    found = told("run", {"variants": "sdpa", **asked, "tables": ["a b.py"], "out": "here"})
    again = arguments.parser().parse_args(shlex.split(found.command)[1:])
    for given in (found, again):
        assert arguments.grid_changes(given) == changed
        assert (given.variants, given.table) == (["sdpa"], ["a b.py"])
    assert found.out == "here"


CALLS = {"problems": SeenCalls(), "seq": 16, "budget": 1, "preset": "smoke"}


@pytest.mark.parametrize(
    ("verb", "asked", "said"),
    [
        ("run", {"batch": "many"}, "batch: 'many' is not whole numbers"),
        ("run", {"mask": []}, "mask holds nothing"),
        ("run", {"devices": ["cuda:7"]}, "no CUDA device found"),
        ("run", {"resume": "nowhere", "seq": [3]}, "resume takes the grid of the run it names"),
        ("run", CALLS, "out --seq, --preset"),
        ("choose", {"seq": [128, 256]}, "--seq has several values"),
        ("choose", {"seq": 128, "max_memory": 0}, "is not a size"),
        ("choose", {"seq": 128, "runs": "nowhere"}, "there is no folder nowhere"),
        ("choose", {"problems": SeenCalls(), "seq": 64}, "leave --seq out"),
        ("choose", {"problems": SeenCalls()}, "no call that can be described as a problem"),
        ("choose", {}, "say --seq at the least"),
    ],
)
def test_what_can_not_be_asked_is_a_sentence_and_leaves_no_folder(verb, asked, said, tmp_path):
    with pytest.raises(CantBeDone, match=said):
        getattr(attnbench, verb)(**asked, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_problems_of_a_program_are_measured_in_place_of_a_grid(monkeypatch, tmp_path, capsys):
    planned, found = [], [Problem(q_len=n, kv_len=n, heads=2, kv_heads=2) for n in (16, 24)]
    monkeypatch.setattr("attnbench.sweep.sweep.sweep", lambda plan, *_: planned.append(plan.to_run))
    made = SeenCalls([Site(p, "train.py:1", "sdpa", 1, 0.1) for p in found])
    file = tmp_path / "calls.json"
    made.write(file)
    made.complete, made.unseen = False, ["a thread was not seen"]
    asked = {"budget": 0.5, "devices": ["cpu"], "out": tmp_path / "out"}
    for problems, said in ((made, "CALLS.json"), (str(file), shlex.quote(str(file)))):
        with pytest.raises(CantBeDone, match="holds no record"):  # of this sweep
            attnbench.run("sdpa", problems=problems, **asked)
        header = read_header(
            max((tmp_path / "out").glob("*/*"), key=lambda p: p.stat().st_mtime_ns)
        )
        command = f"attnbench run sdpa --devices cpu --budget 0.5 --problems {said}"
        assert (header["command"], header["budget_s"]) == (command, 0.5)
    assert [[cell.problem for cell in cells] for cells in planned] == [found] * 2
    assert "note: the calls are not complete; a thread was not seen" in capsys.readouterr().err


def test_a_run_gives_its_records_keeps_its_folder_and_says_its_plan_and_its_end(
    tmp_path, monkeypatch, capfd
):
    engine = Answering()
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: engine)
    grid = {"seq": np.array([16]), "heads": (n for n in (2,)), "phase": pd.Series(["forward"])}
    grid |= {"budget": np.float64(0.02), "threads": 1, "allocator": "kept", "seed": 7}
    df = attnbench.run(np.array(["sdpa", "matmul", "sdpa.efficient"]), **grid, out=tmp_path)
    path, said = Path(df.attrs["run"]), capfd.readouterr().err
    assert list(df["variant"]) == [r.variant for r in read_records(path)]
    measured = df["variant"] != "sdpa.efficient"
    assert (df[measured]["ms"] > 0).all()
    assert list(df[~measured]["verdict"]) == ["unavailable"]
    header = read_header(path)
    assert header["command"] == (
        "attnbench run sdpa matmul sdpa.efficient --seq 16 --heads 2 --phase forward "
        "--budget 0.02 --threads 1 --allocator kept --seed 7"
    )
    settings = header["settings"]
    assert (header["seed"], settings["threads"], settings["allocator"]) == (7, 1, "kept")
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
    with pytest.raises(KeyboardInterrupt, match=r"attnbench\.run\(resume=['\"].*goes on"):
        attnbench.run("sdpa", seq=16, out=tmp_path, quiet=True)
    (path,) = tmp_path.glob("*/*")
    start.resume(path).folder.close()  # it was let go


def test_a_thread_beside_the_main_one_can_measure_too(tmp_path, monkeypatch):
    """Only the main thread can hear Ctrl-C, and Python says so to any other that tries."""
    heard, failed = [], []

    def listens(plan, folder, slots, watcher, interrupt, until):
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
    assert len(heard) == 1 and "holds no record" in str(*failed)  # of this sweep


def test_what_is_loaded_later_is_there_and_is_said_the_same_to_editors():
    stub = ast.parse(Path(attnbench.__file__).with_suffix(".pyi").read_text())
    told = {
        alias.asname: f"{node.module}:{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == attnbench.LATER
    for name, place in attnbench.LATER.items():
        found, (module, function) = getattr(attnbench, name), place.split(":")
        assert found is getattr(sys.modules[module], function) and found.__doc__
        assert name in dir(attnbench)


@pytest.fixture
def one(tmp_path):
    """A run of two exact variants and another operator over three lengths, one cell unmeasured."""
    records = [
        *lines.line("sdpa", {256: 1e-3, 512: 3e-3, 1024: 9e-3}),
        *lines.line("matmul", {256: 2e-3, 512: 6e-3}),
        lines.untimed("matmul", 1024),
        *lines.line("linear.elu", {256: 5e-3, 512: 6e-3}, computes="its own operator"),
        *lines.line("sdpa", {256: 4e-3}, phase="train"),
    ]
    return made.written(tmp_path / "results" / "box" / "one", records)


def test_a_run_is_a_table_with_a_row_for_each_record_and_a_dozen_plain_columns(one):
    df = attnbench.load(one)
    records = list(read_records(one))
    assert list(df["variant"]) == [r.variant for r in records]
    raw = attnbench.load(one, raw=True)
    assert list(raw["time.median_s"].dropna()) == [r.time.median_s for r in records if r.time]
    (lost,) = df[df["verdict"] == "out of memory"].to_dict("records")
    assert (lost["variant"], lost["seq"], lost["reason"]) == ("matmul", 1024, "the reason")
    assert df.attrs["run"] == str(one)
    names = "variant computes phase mask seq ms low_ms high_ms mib error fidelity vs_best verdict"
    assert list(df) == [*names.split(), "flags", "reason"]
    forward = df[(df["phase"] == "forward") & (df["seq"] == 512)].set_index("variant")
    assert list(forward.index) == ["sdpa", "matmul", "linear.elu"]
    assert list(forward["verdict"]) == ["use", "slower", "not exact"]
    assert list(forward["ms"]) == pytest.approx([3, 6, 6])
    assert list(forward["vs_best"]) == pytest.approx([1, 2, 2])
    same = [*lines.line("chunked", {512: 3e-3}), *lines.line("sdpa", {512: 3e-3})]
    tied = attnbench.load(made.written(one.parent / "tied", same))
    assert list(tied["verdict"]) == ["tied", "use"]


def test_a_run_shows_its_answers_and_some_rows_theirs_alone(one):
    df = attnbench.load(one)
    text = attnbench.show(df)._repr_markdown_()
    assert "forward at 512 tokens, use sdpa: 3.00 ms" in text and "| regime | 256 |" in text
    assert "at 512: use sdpa: 3.00 ms" in text and "**sdpa** alone" in text  # at 1,024
    assert "out of memory: matmul (1 measurement): the reason" in text
    assert text == repr(attnbench.show(one))
    some = attnbench.show(df[df["phase"] == "train"].reset_index(drop=True)).contents
    assert [str(line).partition(" at ")[0] for line in some.headlines] == ["To train"]


def test_rows_with_a_parameter_that_others_lack_are_shown_with_these(tmp_path):
    records = [*lines.line("sdpa", {256: 1.0}), *lines.line("sdpa", {512: 2.0}, softcap=30.0)]
    df = attnbench.load(made.written(tmp_path / "one", records))
    (run,) = attnbench.show(df).contents.runs
    assert [record.problem.kv_len for record in run.records] == [256, 512]
    (run,) = attnbench.show(df[df["softcap"].isna()]).contents.runs
    assert [record.problem.kv_len for record in run.records] == [256]


def test_what_can_not_be_shown_is_a_sentence(one):
    df = attnbench.load(one)
    with pytest.raises(CantBeDone, match="these are not rows of attnbench"):
        attnbench.show(df.groupby("variant")[["ms"]].min())
    with pytest.raises(CantBeDone, match="has no rows"):
        attnbench.show(df[df["variant"] == "nobody"])


def test_a_choice_says_who_and_gives_what_to_paste_and_what_proves_it_or_says_why_not(tmp_path):
    folder = tmp_path / "results" / this_machine().name / "one"
    asked = {"phase": "forward", "runs": made.written(folder, made.lines(sdpa=1.0, matmul=2.0))}
    found = attnbench.choose(512, heads=4, **asked)
    assert found.variant == "sdpa"
    assert "use sdpa" in str(found) and "use sdpa" in repr(found)
    assert found.code.endswith("is_causal=True)")
    assert found.proof.startswith("attnbench compare sdpa matmul --seq 512")
    df = found.to_frame()
    measured = df[df["verdict"] != "left out"]
    assert list(measured["variant"]) == ["sdpa", "matmul"]
    assert list(measured["ms"]) == pytest.approx(
        [1e3 * made.quadratic(made.problem(512)) * n for n in (1, 2)]
    )
    assert set(df[df["verdict"] == "left out"]["reason"]) == {
        "not in the run: the run did not measure it"
    }
    shown = found._repr_html_()
    assert "use sdpa" in shown and "<pre>" in shown and "left out" not in shown
    assert shown.index("<td>sdpa</td>") < shown.index("<td>matmul</td>") and "1.00" in shown
    found = attnbench.choose(512, heads=64, **asked)
    assert (found.variant, found.code, found.proof) == (None, "", "")
    assert "no answer: outside what was measured" in found._repr_html_()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program's calls, in a file and as a capture gives them, and a run that knows them."""
    monkeypatch.setattr("attnbench.features.choose.calls.Pricer", made.Halves)
    folder = tmp_path / "results" / this_machine().name / "one"
    known = made.lines(phases=("train",), sdpa=2.0, matmul=1.0)
    asked = {"runs": made.written(folder, known), "quiet": True}
    p, alone = made.problem(512, phase="train"), made.problem(256, phase="train")
    sites = [
        Site(p, "train.py:7 attend", "sdpa", 12, 0.012, 0.024, share=0.4, call=made.FORM),
        Site(alone, "train.py:9 <b>", "flex", 4, 0.004, share=0.1, faithful=False, note="a bias"),
    ]
    step = {"steps": 3, "step_s": 0.5, "step_share": 0.5}
    calls = SeenCalls(sites, wall_s=10.0, attention_s=5.0, unseen=["a <i> was met"], **step)
    calls.write(tmp_path / "calls.json")
    return calls, tmp_path / "calls.json", asked


def test_a_programs_calls_are_answered_as_the_command_answers_them(program, capsys):
    calls, file, asked = program
    found = attnbench.choose(problems=calls, **asked)
    words = ["choose", "--problems", str(file), "--from", str(asked["runs"])]
    table = well(*words, "--csv").stdout
    assert table == found.to_csv(index=False)
    assert table == attnbench.choose(problems=file, **asked).to_csv(index=False)
    first = found.set_index("site").loc["train.py:7 attend"]
    assert (first["takes"], first["computes"], first["seq"]) == ("matmul", "softmax", 512)
    assert first["then_ms"] == pytest.approx(0.5)
    attnbench.choose(problems=file, **{**asked, "quiet": False})
    assert capsys.readouterr().err.endswith(
        json.loads(well(*words, "--json").stdout)["gain"]["sentence"] + "\n"
    )


def test_a_capture_is_a_table_with_its_times_in_milliseconds(program):
    calls, *_ = program
    df = calls.to_frame()
    assert list(df["site"]) == [s.site for s in calls.sites]
    assert list(df["seq"]) == [512, 256] and list(df["phase"]) == ["train"] * 2
    assert list(df["forward_ms"]) == pytest.approx([12, 4])
    assert list(df["call_ms"]) == pytest.approx([3, 1])
    fields = {*Site.__struct_fields__} - {"problem", "seconds", "backward_s"}
    assert fields <= set(df)  # whatever a site knows
    html = calls._repr_html_()
    assert "train.py:9 &lt;b&gt;" in html and "a &lt;i&gt; was met" in html and "a bias" in html
    share = "50\u00a0% of a training step of 500 ms"
    assert share in html and share in repr(calls) and len(repr(calls)) < 250
