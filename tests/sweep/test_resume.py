"""A run that is stopped goes on where it was, and every cell ends up there once."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

import attnbench
from attnbench.answer import compare_runs
from attnbench.core import checkout
from attnbench.core.disk import StoreError
from attnbench.core.record import Status
from attnbench.core.store import read_header, read_records
from attnbench.sweep import start
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from tests.calling import ROOT, only_run, told, well
from tests.core.tuned_lines import keep, line
from tests.processes import alive, until
from tests.repositories import CORE, ROWS, Kernels, git
from tests.sweep.build import ONE, Answering

GRID = ["--seq", "16,24", "--heads", "1", "--head-dim", "8", "--phase", "forward"]
GRID += ["--budget", "0.01", "--mask", "none"]
VARIANTS = ["h.waits", "numpy", "sdpa.cudnn"]
GPU = {"name": "H", "uuid": "u", "capability": 9.0, "memory_bytes": 1, "driver": "570.1"}
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

ROWS = [Variant(name="h.waits", title="waits", family="h", operator="softmax", build=":build")]
"""


def cells(path):
    return Counter((r.variant, r.problem.kv_len) for r in read_records(path))


@pytest.mark.slow
def test_a_run_that_ctrl_c_stopped_goes_on_with_every_cell_once(tmp_path, monkeypatch):
    table, hold, pid = (tmp_path / name for name in ("waiting.py", "hold", "pid"))
    table.write_text(WAITS)
    hold.touch()
    command = [sys.executable, "-m", "attnbench", "run", "--no-report", *VARIANTS, *GRID]
    command += ["--table", str(table), "--out", str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, **pipes)
    until(lambda: pid.exists() and pid.read_text())
    worker = int(pid.read_text())
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None and alive(worker)
    hold.unlink()  # the cell that was running ends
    _, err = process.communicate(timeout=60)
    path = only_run(tmp_path / "out")
    assert process.returncode == 130 and not alive(worker) and "Traceback" not in err
    assert (
        f"attnbench run --resume {shlex.quote(str(path))}" in err
        and "stopping after this measurement" in err
    )
    assert cells(path)["h.waits", 16] == 1 and ("numpy", 16) not in cells(path)

    engine = Answering()
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: engine)
    with (path / "records.jsonl").open("a") as file:
        file.write('{"status":"measured","vari')
    resume = ["run", "--no-report", "--json", "--resume", path, "--table", table]
    done = well(*resume)
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
        ({"tables": 3}, "damaged"),
        ({"machine": {"cpu": 1}}, "damaged"),
        ({"problems": [1]}, "damaged"),
        ({"grid__mask": [3]}, "damaged"),
        ({"grid__heads": [10**13]}, "heads"),
        ({"protocol": 99}, "protocol 99"),
        ({"machine__name": "elsewhere"}, "elsewhere"),
        ({"tables": ["/no/such/table.py"]}, "/no/such/table.py"),
        (
            {"tables": ["rows/mine.py"]},
            re.escape(f"go on with --table {shlex.quote(str(ROOT / 'rows/mine.py'))}"),
        ),
        ({"variants": ["gone"]}, "there is no variant 'gone'"),
        ({"machine__versions__torch": "2.0.0"}, r"torch was 2\.0\.0 and is"),
        ({"machine__gpus": [GPU]}, r"GPU 0 was H with driver 570\.1"),
        ({"requires": {"xformers": "0.1"}}, r"xformers was 0\.1"),
        ({"code__impls": "0" * 16}, "code of the variants has changed"),
        ({"code__ruler": "0" * 16}, "code that measures has changed"),
        ({"settings__threads": 64}, "64 on [0-9]+ cores?"),
    ],
    ids=str,
)
def test_a_run_that_can_not_go_on_here_says_why(tmp_path, changed, words):
    run = begun(tmp_path)
    told(run.path, **changed)
    with pytest.raises(CantBeDone, match=words):
        start.resume(run.path)


def begun(out, grid=ONE, tables=(), variants=("einsum",)):
    """The folder of a run that was begun."""
    folder = start.begin([*variants], grid, [*tables], out, seed=0, threads=1).folder
    folder.close()
    return folder


def test_files_that_hold_something_else_are_named_at_once_and_before_it_goes_on(tmp_path):
    mask, table, aid = (tmp_path / name for name in ("m.npy", "mine.py", "aid.py"))
    np.save(mask, np.ones((16, 16), bool))
    table.write_text("import aid\n" + WAITS)
    aid.write_text("")
    grid, rows = ONE.with_(mask=(f"dense:{mask}",)), [str(table)]
    run = begun(tmp_path / "out", grid, rows, ["h.waits"])
    start.check_unchanged(run, now := time.time())
    for file in (mask, aid):
        file.write_bytes(file.read_bytes() + b"#")
        os.utime(file, (now + 1, now + 1))
        with pytest.raises(CantBeDone, match=rf"{file.name} was changed while the run went on"):
            start.check_unchanged(run, now)
        os.utime(file, (now - 1, now - 1))
    with pytest.raises(StoreError, match=r"aid\.py has changed; m\.npy has changed"):
        start.resume(run.path, tables=rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [pytest.param("core.py", marks=pytest.mark.slow), "rows.py", "helper.cu"]
)
def test_an_installed_plugins_files_are_code(tmp_path, monkeypatch, file):
    """Rows of an entry point, whose package is imported nowhere in this process."""
    site, package = tmp_path / "site", tmp_path / "work" / "mykernels"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("rows", ROWS), ("core", CORE.replace("TIMES", "1"))):
        (package / f"{name}.py").write_text(text)
    (package / "helper.cu").write_text("// compiled when it is called")
    (site / "mine-1.dist-info").mkdir(parents=True)
    (site / "mine-1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: mine\nVersion: 1\n"
    )
    points = "[attnbench.variants]\na = mykernels.rows:ROWS\n"
    (site / "mine-1.dist-info/entry_points.txt").write_text(points)
    for place in (site, package.parent):
        monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (site, package.parent))))
    run, again = (begun(tmp_path / out, ONE, [], ["my.good"]) for out in ("a", "b"))
    assert not list(compare_runs.differences(run.header, again.header))
    assert run.header["outside"]["mine 1"]["rows"] == ["my.good"]
    (package / file).write_text((package / file).read_text() + "\n")
    with pytest.raises(StoreError, match=rf"{file} has changed"):
        start.resume(run.path)
    later = begun(tmp_path / "c", ONE, [], ["my.good"])
    (one,) = compare_runs.differences(run.header, later.header)
    assert one.what.endswith(f"mykernels/{file}")
    assert "mykernels" not in sys.modules


def test_what_a_row_files_rows_are_built_by_is_code_wherever_it_lies(tmp_path, monkeypatch):
    """Such as a package in ``src``, with the row file at the top."""
    kernels = Kernels(tmp_path / "kernels", "src")
    (kernels.root / "kernels.py").write_text(ROWS)
    monkeypatch.syspath_prepend(kernels.root / "src")
    monkeypatch.setenv("PYTHONPATH", str(kernels.root / "src"))
    rows = [str(kernels.root / "kernels.py")]
    run = begun(tmp_path / "out", ONE, rows, ["my.good"])
    kernels.commit("nine times", times=9)
    with pytest.raises(StoreError, match=r"core\.py has changed"):
        start.resume(run.path, tables=rows)
    (outside,) = run.header["outside"].values()
    assert outside["commit"] == git(kernels.root, "rev-parse", "HEAD~1")


def test_what_is_measured_with_other_code_is_another_leg_and_ranked_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: Answering())
    well("run", "einsum", "matmul", *GRID[2:], "--seq", "16", "--no-report", "--out", tmp_path)
    path = only_run(tmp_path)
    file = path / "records.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    told(path, code__impls="0" * 16)
    resume = ["run", "--resume", path, "--no-report", "--json"]
    assert "--anyway" in well(*resume, status=2).stderr
    assert len(read_records(path)) == 1 and "legs" not in read_header(path)
    answers = json.loads(well(*resume, "--anyway").stdout)["answers"]
    first, second = (r.node for r in read_records(path))
    assert read_header(path)["legs"][0]["changes"] and second == f"{first}#2"
    assert [answer["node"] for answer in answers] == [first, second]
    assert not any(answer["equal"] or answer["next"] for answer in answers)


def test_a_run_whose_variants_are_tuned_otherwise_by_now_does_not_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    problem = Problem(1, 1, 1, 16, 16, 8, 8, mask=Mask.parse(ONE.mask[0]))
    keep(line(problem, block=64))
    run = begun(tmp_path / "out", variants=("chunked", "einsum"))
    assert run.header["tuned"] == {"chunked": {"block=64": [str(problem)]}}
    same = start.resume(run.path)
    same.folder.close()
    assert len(same.left) == 2
    keep(line(problem, block=128), line(problem.with_(phase="train"), block=32))
    with pytest.raises(StoreError, match="the options tuned for chunked are others"):
        start.resume(run.path)
    again = start.resume(run.path, anyway=True)
    again.folder.close()
    cells = {cell.variant.label: cell.variant.chosen for cell in again.plan.cells}
    assert cells == {"chunked": {"block": 128}, "einsum": {}}


def test_nothing_that_is_kept_names_the_user(tmp_path, monkeypatch):
    class Tells(Answering):
        def ask(self, question, limit_s):
            answer = super().ask(question, limit_s)
            answer.get("record", {}).update(note=f"in {home}/mine.py", detail=str(home))
            return answer

    home = tmp_path / "zaphod"
    home.mkdir()
    (home / "mine.py").write_text(WAITS)
    np.save(home / "mask.npy", np.ones((16, 16), bool))
    monkeypatch.setenv("HOME", str(home))
    words = ["einsum", "h.waits", "--table", home / "mine.py", "--mask", f"dense:{home}/mask.npy"]
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: Tells())
    well("run", *words, "--seq", "16", *GRID[2:-2], "--out", tmp_path / "out")
    path = only_run(tmp_path / "out")
    assert {(r.note, r.detail) for r in read_records(path)} == {("in ~/mine.py", "~")}
    assert read_header(path)["tables"] == ["~/mine.py"]
    assert read_header(path)["grid"]["mask"] == ["dense:~/mask.npy"]
    for each in path.rglob("*"):
        assert not each.is_file() or b"zaphod" not in each.read_bytes(), each


def test_a_run_is_of_the_commit_that_its_code_lies_in_whatever_git_is_told(tmp_path, monkeypatch):
    commit = checkout.code()["commit"]
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "another's")
    (tmp_path / "attnbench").mkdir()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert checkout.code()["commit"] == commit is not None
    monkeypatch.setattr(attnbench, "__file__", str(tmp_path / "attnbench/__init__.py"))
    assert checkout.code() == {"commit": None, "dirty": None}
