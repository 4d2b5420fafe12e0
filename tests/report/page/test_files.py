"""A report on disk: whole files, the same bytes for the same records, nothing of anybody else's."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnbench.core import disk
from attnbench.core.disk import StoreError
from attnbench.features.report import build, files
from attnbench.report.figures.sheet import sheet
from attnbench.report.scenes import gather
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
GOLDEN = Path(__file__).with_name("golden")
PAGE_BYTES, SECONDS = 1_500_000, 10
PLAIN_S = 0.15
"""What a plain figure takes where the limit is meant."""


@pytest.fixture
def unfigured(monkeypatch):
    """Contents without figures, which take their time."""
    monkeypatch.setattr(build, "draw_all", lambda *_: ([], {}))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A whole report of a small run."""
    folder = runs.written(
        tmp_path_factory.mktemp("report") / "box" / "20260102-030405", runs.small()
    )
    return files.make([folder], folder / "report")


def read(out):
    return {p.relative_to(out): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def test_a_report_is_its_page_its_texts_and_its_figures(report):
    out = report.index.parent
    assert report.index == out / "index.html"
    names = {str(path.relative_to(out)) for path in report.files}
    assert {"index.html", "summary.md", "data.csv", "table.tex"} < names
    assert names == {str(name) for name in read(out)} - {"figures/figures.json"}
    drawn = {figure.name for figure in report.contents.figures}
    assert {Path(name).stem for name in names if name.startswith("figures/")} == drawn
    assert len(drawn) == len(report.contents.figures) > 10
    assert {"map", "scaling", "tradeoffs", "roofline", "closeness", "memory"} == {
        figure.section for figure in report.contents.figures
    }


def test_no_figure_of_an_ordinary_run_fails(report):
    for sentences in report.contents.absent.values():
        assert not any("could not be drawn" in sentence for sentence in sentences), sentences


def test_nothing_says_where_files_lie_on_this_machine(report):
    for name, content in read(report.index.parent).items():
        assert str(report.index.parents[3]).encode() not in content, name


@pytest.mark.parametrize("name", ["summary.md", "data.csv", "table.tex"])
def test_the_texts_are_as_they_were(report, name):
    """With WRITE_GOLDEN set it writes them anew: look at what has changed before it stays."""
    written = (report.index.parent / name).read_text()
    golden = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(written)
    assert written == golden.read_text()


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    folder = runs.written(tmp_path / "box" / "run", runs.small())
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "attnbench", "report", folder, "--out", tmp_path / f"out{seed}"],
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": zone},
        )
        for seed, zone in (("1", "UTC"), ("4242", "Asia/Tokyo"))
    ]
    assert [process.wait() for process in started] == [0, 0]
    assert read(tmp_path / "out1") == read(tmp_path / "out4242")


def test_data_has_a_row_a_record_and_no_samples(report):
    rows = list(csv.DictReader(io.StringIO((report.index.parent / "data.csv").read_text())))
    assert [row["variant"] for row in rows] == [r.variant for r in runs.small()]
    assert [row["line"] for row in rows] == [str(n + 1) for n in range(len(rows))]
    assert rows[0]["time.median_s"] == "0.001"
    assert rows[0]["problem.kv_len"] == "64"
    assert rows[0]["error.forward.relative"] == "2e-07"
    assert rows[4]["reason"].startswith("sdpa.efficient runs on cuda")
    assert not any("samples" in column for column in rows[0])


def test_figures_of_before_go_and_what_is_not_ours_stays(unfigured, report, tmp_path):
    out = tmp_path / "out"
    files.write(report.contents, out)
    (out / "figures" / "mine.svg").write_text("mine")
    (out / "notes.txt").write_text("mine")
    fewer = report.contents.figures[:2]
    object.__setattr__(report.contents, "figures", fewer)
    files.write(report.contents, out)
    left = {path.stem for path in (out / "figures").iterdir()}
    assert left == {*(figure.name for figure in fewer), "mine", "figures"}
    assert (out / "notes.txt").read_text() == "mine"


def test_a_folder_that_has_the_name_of_a_figure_of_before_stays(unfigured, tmp_path):
    folder = runs.written(tmp_path / "box" / "run", runs.small())
    mine = tmp_path / "out" / "figures" / "map-0.svg"
    mine.mkdir(parents=True)
    (mine.parent / "figures.json").write_text('["map-0.svg"]')
    files.make([folder], tmp_path / "out")
    assert mine.is_dir()


@pytest.mark.parametrize("listed", ['["../../keep.txt", 3, "/etc/passwd"]', "{", "3"])
def test_a_list_of_figures_that_somebody_wrote_takes_nothing_else_away(unfigured, tmp_path, listed):
    folder = runs.written(tmp_path / "box" / "run", runs.small())
    (tmp_path / "out" / "figures").mkdir(parents=True)
    (tmp_path / "keep.txt").write_text("mine")
    (tmp_path / "out" / "figures" / "figures.json").write_text(listed)
    files.make([folder], tmp_path / "out")
    assert (tmp_path / "keep.txt").exists()


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_where_nothing_can_be_written_is_a_sentence(unfigured, tmp_path, where):
    folder = runs.written(tmp_path / "box" / "run", runs.small())
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"can't write the report to .*--out"):
        files.make([folder], tmp_path / where)


def test_a_folder_whose_files_names_would_be_too_long_is_a_sentence(unfigured, tmp_path):
    folder = runs.written(tmp_path / "box" / "run", runs.small())
    longest = os.pathconf(tmp_path, "PC_PATH_MAX") - len("/figures") - 3
    out = tmp_path
    while (room := longest - len(str(out))) > 1:
        out /= "d" * min(200, room - 1)
    with pytest.raises(StoreError, match=r"can't write the report to .* too long; .*--out"):
        files.make([folder], out)
    assert (out / "figures").is_dir()  # there was room for the folder, and none for what is in it


def test_what_no_run_ever_wrote_is_a_sentence_with_the_run_and_the_error(monkeypatch, tmp_path):
    def fail(*_):
        raise KeyError("colour")

    folder = runs.written(tmp_path / "box" / "run", runs.small())
    monkeypatch.setattr(build, "draw_all", fail)
    with pytest.raises(StoreError, match=r"made of .*/box/run: .*\(KeyError: 'colour'\)"):
        files.make([folder], tmp_path / "out")


def test_a_disk_that_fills_leaves_the_file_of_before(unfigured, monkeypatch, tmp_path):
    folder = runs.written(tmp_path / "box" / "run", runs.small())
    files.make([folder], tmp_path / "out")
    before = read(tmp_path / "out")
    write = os.write

    def full(descriptor, content):
        write(descriptor, content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "write", full)
    with pytest.raises(StoreError, match="No space left"):
        files.make([folder], tmp_path / "out")
    assert read(tmp_path / "out") == before


def seconds(function):
    """What the processor spends on it: others' work counts not."""
    start = time.process_time()
    made = function()
    return made, time.process_time() - start


def plain_figure():
    """What matplotlib itself takes for one: this host is fast or slow as it likes."""
    with sheet(4.6, 3.4) as figure:
        axes = figure.add_axes((0.1, 0.1, 0.6, 0.8))
        for n in range(20):
            axes.plot(range(1, 9), [n + m for m in range(8)], marker="o")
            axes.text(8, n, f"variant {n}")
        for kind in ("svg", "png"):
            figure.savefig(io.BytesIO(), format=kind)


@pytest.mark.slow
def test_a_run_of_the_whole_table_is_small_and_quick(tmp_path):
    plain_figure()  # and what is imported for it
    slow = min(seconds(plain_figure)[1] for _ in range(3)) / PLAIN_S
    lengths = [128 << n for n in range(8)]
    folder = runs.written(tmp_path / "box" / "run", runs.many(45, lengths, ["forward", "train"]))
    made, spent = seconds(lambda: files.make([folder], tmp_path / "out"))
    assert spent <= SECONDS * max(1.0, slow)
    assert made.index.stat().st_size <= PAGE_BYTES
    assert len((made.index.parent / "summary.md").read_text()) <= 60_000


@pytest.mark.slow
def test_twenty_thousand_records_of_five_hundred_variants_are_one_report(tmp_path):
    lengths = [128 << n for n in range(10)]
    phases = ["forward", "train", "backward", "decode"]
    folder = runs.written(tmp_path / "box" / "run", runs.many(500, lengths, phases))
    made, spent = seconds(lambda: files.make([folder], tmp_path / "out"))
    assert spent <= 60  # half of it where this was written
    assert sum(len(run.records) for run in made.contents.runs) == 20_000
    assert (made.index.parent / "data.csv").read_text().count("\n") == 20_001
    assert len((made.index.parent / "summary.md").read_text()) <= 60_000
    assert not any("could not" in s for some in made.contents.absent.values() for s in some)


ODD = {
    "one length": lambda: [runs.timed("sdpa", 1e-3), runs.timed("matmul", 2e-3)],
    "one variant": lambda: [runs.timed("sdpa", n * 1e-5, runs.at(n)) for n in (64, 128, 256)],
    "one cell": lambda: [runs.timed("sdpa", 1e-3)],
    "nothing exact": lambda: [runs.timed("w", 1e-3, computes="its own operator")],
    "nothing timed": lambda: [runs.untimed(f"v{n}", "failed", f"it broke {n}") for n in range(9)],
    "no numbers": lambda: [
        runs.changed(runs.timed("sdpa", n * 1e-5, runs.at(n)), time__median_s=float("nan"),
                     memory=None) for n in (64, 128)],
    "some numbers": lambda: [
        runs.changed(runs.timed(v, n * 1e-5, runs.at(n)), error__forward__relative=None,
                     share_of_ceiling=None, cost=None, memory=None)
        for n in (64, 128, 256) for v in ("sdpa", "matmul")],
    "the same times": lambda: [runs.timed(f"v{n}", 1e-3, spread=0) for n in range(30)],
    "long names": lambda: [runs.timed("x" * 300 + str(n), 1e-3 * n, runs.at(m))
                           for n in (1, 2, 3) for m in (64, 128)],
    "no names": lambda: [runs.timed("", 1e-3), runs.timed(" ", 1e-3), runs.timed("\n", 1e-3)],
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
def test_an_odd_run_has_a_page_that_says_something_true(tmp_path, what):
    folder = runs.written(tmp_path / "box" / "run", ODD[what]())
    made = files.make([folder], tmp_path / "out")
    for sentences in made.contents.absent.values():
        assert not any("could not be drawn" in sentence for sentence in sentences), sentences
    (run,) = gather([folder])
    timed = sum(record.time is not None for record in run.records)
    assert timed + sum(each.cells for each in made.contents.missing) == len(run.records)
    said = "Nothing was measured" in made.contents.headlines[0]
    assert said == (timed == 0)
    assert "<h1" in made.index.read_text()
    assert json.loads((made.index.parent / "figures" / "figures.json").read_text()) == sorted(
        path.name for path in made.files if path.parent.name == "figures"
    )
