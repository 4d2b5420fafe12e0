"""``attnbench.run``, ``load`` and ``show`` as a notebook's user meets them."""

import ast
import base64
import json
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import attnbench
from attnbench import arguments
from attnbench.models.calls import Calls, Site
from attnbench.notebook.asked import BadWord, changes, command
from attnbench.notebook.frames import FIRST
from attnbench.notebook.progress import OneLine
from attnbench.store import read_header, read_records
from attnbench.store.run_folder import RunFolder
from attnbench.sweep import start
from attnbench.sweep.run import Stopped
from impls.asked import CantBeDone
from impls.loading import load_file
from impls.masks import Mask
from impls.problem import Problem

ROOT = Path(attnbench.__file__).parents[1]
lines = load_file(Path(__file__).with_name("answer") / "lines.py")
HEADER = load_file(Path(__file__).with_name("answer") / "run_folders.py").HEADER


# ---- names that are loaded when they are asked for -----------------------------------------------


def test_what_is_loaded_later_is_said_the_same_to_editors():
    stub = ast.parse((ROOT / "attnbench" / "__init__.pyi").read_text())
    told = {
        alias.asname: f"{node.module}:{alias.name}"
        for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }  # fmt: skip
    assert told == attnbench.LATER


@pytest.mark.parametrize("name", attnbench.LATER)
def test_each_name_is_there_and_says_what_it_is(name):
    module, _, function = attnbench.LATER[name].partition(":")
    found = getattr(attnbench, name)
    assert found is getattr(sys.modules[module], function)
    assert name in dir(attnbench)
    assert found.__doc__


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'ruin'"):
        _ = attnbench.ruin


def test_importing_the_package_loads_nothing_and_measuring_does_not_load_torch():
    code = (
        "import sys, attnbench; assert not {'torch', 'pandas', 'numpy'} & set(sys.modules); "
        "attnbench.run; attnbench.show; assert not {'torch', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


# ---- what was measured, from folders written by hand ---------------------------------------------


def written(path, *records):
    folder = RunFolder.create(path, "box", json.loads(json.dumps(HEADER)))
    for record in records:
        folder.append(record)
    folder.close()
    return folder.path


@pytest.fixture
def one(tmp_path):
    """A run of two exact variants and another operator over three lengths, one cell unmeasured."""
    return written(
        tmp_path / "one",
        *lines.line("sdpa", {256: 1e-3, 512: 3e-3, 1024: 9e-3}),
        *lines.line("matmul", {256: 2e-3, 512: 6e-3}), lines.untimed("matmul", 1024),
        *lines.line("linear.elu", {256: 5e-3, 512: 6e-3}, computes="its own operator"),
        *lines.line("sdpa", {256: 4e-3}, phase="train"),
    )  # fmt: skip


@pytest.fixture
def other(tmp_path):
    return written(tmp_path / "other", *lines.line("chunked", {256: 7e-3}))


def test_a_run_is_a_table_with_a_row_for_each_record(one):
    df = attnbench.load(one)
    records = list(read_records(one))
    assert list(df["variant"]) == [r.variant for r in records]
    assert list(df["time.median_s"].dropna()) == [r.time.median_s for r in records if r.time]
    (lost,) = df[df["status"] == "out_of_memory"].to_dict("records")
    assert (lost["variant"], lost["problem.kv_len"], lost["reason"]) == ("matmul", 1024, "why")
    assert tuple(df.columns[: len(FIRST)]) == FIRST
    assert df.attrs["run"] == str(one)
    assert not {"time", "memory", "error", "time.samples_s"} & set(df)
    assert "time.samples_s" in attnbench.load(one, samples=True)


def test_several_runs_are_one_table_that_knows_the_folder_of_each_row(one, other):
    df = attnbench.load(one, other)
    assert list(df["folder"]) == [str(one)] * 9 + [str(other)]
    assert df["variant"].iloc[-1] == "chunked"
    assert df.attrs["runs"] == [str(one), str(other)]
    assert "run" not in df.attrs
    pd.testing.assert_frame_equal(df, attnbench.load(one, other, one))
    assert len(attnbench.load(one.parents[2])) == 10


def test_a_run_without_records_is_an_empty_table_with_the_same_first_columns(tmp_path):
    df = attnbench.load(written(tmp_path))
    assert len(df) == 0
    assert tuple(df.columns[: len(FIRST)]) == FIRST


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path):
    for function in (attnbench.load, attnbench.show):
        with pytest.raises(CantBeDone, match="there is no"):
            function(tmp_path / "nowhere")


# ---- what is shown inline ------------------------------------------------------------------------


def images(html):
    """The figures in a page's text, each read as the XML that it must be."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return [ElementTree.fromstring(base64.b64decode(data)) for data in found]


def test_a_run_shows_its_answers_and_its_figures(one):
    shown = attnbench.show(attnbench.load(one))
    assert any(
        line.startswith("To run forward at 512 tokens, use sdpa: 3.00 ms")
        for line in shown.headlines
    )
    assert any("256 to 1,024: at 1,024 sdpa takes 9.00 ms" in line for line in shown.answers)
    names = [picture.name for picture in shown.figures]
    assert names == ["map-0", "r0-exact-time-ms", "r1-exact-time-ms", "r1-others-time-ms"]
    assert "matmul (1): why" in shown.missing
    html = shown._repr_html_()
    assert len(images(html)) == len(names)
    assert "512 tokens, use sdpa: 3.00 ms" in html
    assert shown.headlines[0] in repr(shown)
    assert "r0-exact-time-ms" in repr(shown)


def test_a_figure_shows_itself_and_is_written_as_what_its_name_says(one, tmp_path):
    picture = attnbench.show(one)["map-0"]
    (image,) = images(picture._repr_html_())
    assert image.tag == "{http://www.w3.org/2000/svg}svg"
    wide = image.get("viewBox").split()[2]
    assert f"width:{wide}pt" in picture._repr_html_()
    assert re.search(r'alt="[^"]*sdpa', picture._repr_html_())
    for suffix, start_ in ((".svg", b"<svg"), (".png", b"\x89PNG"), (".csv", b"regime")):
        picture.save(tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes().startswith(start_), suffix
    with pytest.raises(BadWord, match=r"as \.svg, \.png or \.csv, not as '\.jpg'"):
        picture.save(tmp_path / "a.jpg")
    with pytest.raises(KeyError, match="there is no figure 'nap'; there are map-0"):
        attnbench.show(one, "map")["nap"]


def test_only_the_rows_that_are_given_are_answered_for(one):
    df = attnbench.load(one)
    some = attnbench.show(df[(df["variant"] != "sdpa") & (df["problem.kv_len"] < 1024)], ())
    assert not any("sdpa" in line for line in [*some.answers, *some.headlines])
    assert any("matmul" in line for line in some.answers)
    assert some.missing == []
    assert some.figures == []


def test_reasons_that_are_left_out_are_counted_as_reasons_and_are_none(tmp_path):
    def of(count):
        records = [
            replace(lines.untimed("sdpa", 16 * n), reason="why " + "not" * n)
            for n in range(1, count + 1)
        ]
        return attnbench.show(written(tmp_path / str(count), *records), ())

    for count, told, more in (
        (1, "1 reason", None), (6, "6 reasons", None), (7, "7 reasons", "1 reason more"),
        (9, "9 reasons", "3 reasons more"),
    ):  # fmt: skip
        shown = of(count)
        assert f"Not measured: {told}<" in shown._repr_html_()
        assert len(shown.missing) == min(count, 6)
        assert shown.more == max(0, count - 6)
        for text in (repr(shown), shown._repr_html_()):
            assert (f"{more}" in text) if more else (" more" not in text)


def test_rows_of_several_runs_are_shown_run_by_run(one, other):
    both = pd.concat([attnbench.load(one), attnbench.load(other)], ignore_index=True)
    shown = attnbench.show(both, "map")
    assert [picture.name for picture in shown.figures] == ["map-0", "map-1"]
    for path in (one, other):
        assert any(line.startswith(f"{path.name} on box") for line in shown.answers)
    assert repr(attnbench.show([one, other], "map")) == repr(shown)


def test_every_figure_that_can_be_asked_for_is_drawn_or_said_to_be_none(one):
    shown = attnbench.show(one, ["memory", "error", "energy", "roofline", "closeness"])
    assert [p.name for p in shown.figures] == ["closeness-0"]
    for name in ("memory", "error", "energy", "roofline"):
        assert f"nothing was measured that a figure of {name} could be drawn of" in shown.notes


def test_a_figure_that_fails_costs_itself_alone(one, monkeypatch):
    def fall(*_):
        raise RuntimeError("ink")

    monkeypatch.setattr("attnbench.report.figures.winner_map.draw", fall)
    shown = attnbench.show(one, ["map", "closeness"])
    assert [p.name for p in shown.figures] == ["closeness-0"]
    assert "a figure of map could not be drawn (RuntimeError: ink)" in shown.notes


def test_what_somebody_named_is_words_and_no_markup(tmp_path):
    record = lines.timed("sdpa", 256, 1e-3)
    object.__setattr__(record, "variant", "<script>alert(1)</script>")
    html = attnbench.show(written(tmp_path, record))._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_what_can_not_be_shown_is_a_sentence(one):
    df = attnbench.load(one)
    with pytest.raises(BadWord, match="there is no figure pie; there are map, time"):
        attnbench.show(df, "pie")
    with pytest.raises(BadWord, match="has no column folder, variant"):
        attnbench.show(df.groupby("variant")[["time.median_s"]].min())
    with pytest.raises(BadWord, match="has no rows"):
        attnbench.show(df[df["variant"] == "nobody"])


# ---- what is asked -------------------------------------------------------------------------------


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
    assert changes(asked) == changed
    told = arguments.parser().parse_args(shlex.split(command(["sdpa"], asked, ["a b.py"]))[1:])
    assert arguments.grid_changes(told) == changed
    assert (told.variants, told.table) == (["sdpa"], ["a b.py"])


def test_dtypes_may_be_torchs_own():
    import torch

    assert changes({"dtype": [torch.float32, torch.bfloat16]})["dtype"] == ("float32", "bfloat16")


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
    made = Calls([
        Site(problem=p, site="train.py:1", via="sdpa", calls=1, seconds=0.1, backward_s=0.0,
             share=None, scale=p.scale, samples="", note="")
        for p in found
    ])  # fmt: skip
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
        np.array(["sdpa", "matmul"]), seq=np.array([16, 24]), heads=(n for n in (2,)),
        mask=(text for text in ("none", "causal")), phase=pd.Series(["forward"]),
        batch=np.array(1), budget=np.float64(0.5), devices=(name for name in ("cpu",)),
        tables=np.array([]), out=tmp_path, quiet=True,
    )  # fmt: skip
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
        attnbench.run(problems=Calls(), out=tmp_path / "out")
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


# ---- measuring -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    code = (
        "import sys, attnbench\n"
        "df = attnbench.run(['sdpa', 'matmul', 'sdpa.efficient'], seq=[16, 32], heads=2, "
        "phase='forward', budget=0.02, threads=1, seed=7, out=sys.argv[1])\n"
        "assert 'torch' not in sys.modules\n"
        "print(df.to_json(orient='records')); print(df.attrs['run'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=ROOT, timeout=120, check=True,
                          capture_output=True, text=True)  # fmt: skip
    rows, path = done.stdout.splitlines()
    return json.loads(rows), Path(path), done.stderr


def test_a_run_gives_its_records_and_keeps_its_folder(measured):
    rows, path, _ = measured
    on_disk = list(read_records(path))
    assert [row["variant"] for row in rows] == [r.variant for r in on_disk]
    times = {(r["variant"], r["problem.q_len"]): r["time.median_s"] for r in rows}
    assert times["sdpa", 16] > 0
    assert times["matmul", 32] > 0
    left_out = [r for r in rows if r["variant"] == "sdpa.efficient"]
    assert {r["status"] for r in left_out} == {"unavailable"}
    assert all("cuda" in r["reason"] for r in left_out)


def test_the_header_holds_the_command_that_measures_the_same(measured):
    header = read_header(measured[1])
    assert header["command"] == (
        "attnbench run sdpa matmul sdpa.efficient --seq 16,32 --heads 2 --phase forward "
        "--budget 0.02 --seed 7 --threads 1"
    )
    assert (header["seed"], header["settings"]["threads"]) == (7, 1)


def test_a_run_says_its_plan_and_its_end_in_a_line_each(measured):
    said = measured[2].splitlines()
    assert said[0].startswith("4 cells: 2 variants on 2 problems")
    assert re.fullmatch(rf"4 measured, in \d+ s; the run is {measured[1]}", said[-1])
    assert "\r" not in measured[2]


def test_a_run_that_is_done_can_be_resumed_and_says_nothing_when_quiet(measured, capfd):
    df = attnbench.run(resume=measured[1], quiet=True)
    assert len(df) == len(measured[0])
    assert df.attrs["run"] == str(measured[1])
    assert capfd.readouterr() == ("", "")


def test_stopping_is_an_interrupt_that_says_how_to_go_on(tmp_path, monkeypatch):
    def stopped(*_):
        raise Stopped

    monkeypatch.setattr("attnbench.notebook.measured.sweep", stopped)
    with pytest.raises(KeyboardInterrupt, match=r"attnbench\.run\(resume='.*goes on"):
        attnbench.run("sdpa", seq=16, out=tmp_path, quiet=True)
    (path,) = tmp_path.glob("*/*")
    start.resume(path).folder.close()  # it was let go


def test_a_thread_beside_the_main_one_can_measure_too(tmp_path, monkeypatch):
    """Only the main thread can hear Ctrl-C, and Python says so to any other that tries."""
    heard, failed = [], []

    def listens(plan, done, folder, slots, watcher, interrupt):
        with interrupt.watching():
            heard.append(interrupt)

    def work():
        try:
            attnbench.run("sdpa", seq=16, out=tmp_path, quiet=True)
        except BaseException as error:
            failed.append(error)

    monkeypatch.setattr("attnbench.notebook.measured.sweep", listens)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert len(heard) == 1


def test_the_line_is_written_over_where_somebody_watches(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    line = OneLine(quiet=False)
    line.cell(lines.timed("a-long-name", 256, 1e-3), 1, 2, 3.0)
    line.cell(lines.timed("b", 16, 1e-3), 2, 2, 0.0)
    line.end(Path("there"))
    first, second, gone, last = capsys.readouterr().err.split("\r")[1:]
    assert first.startswith("[1/2, 3 s left] a-long-name b1")
    assert second.startswith("[2/2, 0 s left] b b1")
    assert len(second) == len(first)
    assert gone.strip() == ""
    assert last == "2 measured, in 0 s; the run is there\n"
