"""The results folder: what is written stays, and what can't be read says so in a sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attnbench
from attnbench.core import disk
from attnbench.core.record import SCHEMA, Record, Status, Time
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import each_run, load, read_header, read_records
from impls.loading import load_file
from impls.problem import Problem
from tests.times import figures

ROOT = Path(attnbench.__file__).parents[1]
refused = load_file(Path(__file__).with_name("records.py")).refused


def record(variant="a", length=8, **more):
    problem = Problem(q_len=length, kv_len=length).to_dict()
    return Record(**{"status": Status.MEASURED, "variant": variant, "problem": problem, **more})


def timed(variant="a", length=8, median=0.25):
    time = Time(clock="host", stop="budget", **figures([median]))
    return record(variant, length, time=time)


# ---- writing and reading -------------------------------------------------------------------------


def test_a_new_run_lies_under_the_machine_and_has_a_header(folder, tmp_path):
    assert folder.path.parent == tmp_path / "results" / "box"
    header = read_header(folder.path)
    assert header["run"] == folder.name == folder.path.name
    assert (header["schema"], header["seed"]) == (SCHEMA, 3)
    assert list(read_records(folder.path)) == []


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    made = [RunFolder.create(tmp_path, "box", {}) for _ in range(5)]
    assert len({m.path for m in made}) == 5
    for each in made:
        each.close()


def test_records_come_back_in_the_order_in_which_they_were_appended(folder):
    written = [record("b"), record("a", status=Status.WRONG, reason="row 1"), timed("c")]
    for each in written:
        folder.append(each)
    assert list(read_records(folder.path)) == written


def test_each_record_is_on_disk_when_append_returns(folder, monkeypatch):
    seen = []
    real = os.fsync

    def watched(descriptor):
        real(descriptor)
        seen.append((Path(f"/proc/self/fd/{descriptor}").readlink(), len(lines())))

    def lines():
        return (folder.path / disk.RECORDS).read_text().splitlines()

    monkeypatch.setattr(os, "fsync", watched)
    for number in range(1, 4):
        folder.append(record(f"v{number}"))
        assert len(lines()) == number
    assert seen == [(folder.path / disk.RECORDS, n) for n in (1, 2, 3)]


def test_two_runs_joined_by_cat_read_as_one(tmp_path):
    texts, names = [], []
    for variant in "ab":
        part = RunFolder.create(tmp_path / "parts", "box", {})
        part.append(record(variant, run=part.name))
        part.close()
        names.append(part.name)
        texts.append((part.path / disk.RECORDS).read_text())
    joined = tmp_path / "joined"
    joined.mkdir()
    (joined / disk.RECORDS).write_text("".join(texts))
    got = list(read_records(joined))
    assert [(r.variant, r.run) for r in got] == list(zip("ab", names, strict=True))


def test_a_run_that_was_reopened_goes_on_where_it_was(folder):
    folder.append(record("a"))
    folder.close()
    again = RunFolder.reopen(folder.path)
    again.append(record("b"))
    again.close()
    assert [r.variant for r in read_records(folder.path)] == ["a", "b"]
    assert again.header == folder.header
    assert not (folder.path / "torn.txt").exists()


# ---- torn and damaged ----------------------------------------------------------------------------


def test_a_last_line_cut_off_anywhere_is_left_out(folder):
    folder.append(record("whole"))
    folder.append(record("torn"))
    file = folder.path / disk.RECORDS
    data = file.read_bytes()
    first = data.index(b"\n") + 1
    for cut in range(first, len(data)):
        file.write_bytes(data[:cut])
        assert [r.variant for r in read_records(folder.path)] == ["whole"], cut


def test_reopening_sets_a_torn_line_aside_and_keeps_the_others(folder):
    folder.append(record("a"))
    folder.append(record("b"))
    folder.close()
    file = folder.path / disk.RECORDS
    data = file.read_bytes()
    torn = record("c").line()[:40]
    file.write_bytes(data + torn.encode())
    again = RunFolder.reopen(folder.path)
    assert file.read_bytes() == data
    assert (folder.path / "torn.txt").read_text() == torn + "\n"
    again.append(record("c"))
    again.close()
    assert [r.variant for r in read_records(folder.path)] == ["a", "b", "c"]


def test_a_torn_first_line_leaves_an_empty_run(folder):
    folder.close()
    (folder.path / disk.RECORDS).write_text('{"status":"mea')
    again = RunFolder.reopen(folder.path)
    again.close()
    assert (folder.path / disk.RECORDS).read_bytes() == b""


@pytest.mark.parametrize(
    "line",
    [b"[]\n", b"7\n", b"null\n", b"{}\n"],
)
def test_a_line_that_is_no_record_is_named_by_file_and_number(folder, line):
    folder.append(record("a"))
    file = folder.path / disk.RECORDS
    with file.open("ab") as more:
        more.write(line)
    refused(lambda: list(read_records(folder.path)), str(file), "line 2")


def test_a_torn_last_line_that_is_no_text_is_left_out_too(folder):
    folder.append(record("a"))
    with (folder.path / disk.RECORDS).open("ab") as more:
        more.write(b"\xff\xfe\x00")
    assert [r.variant for r in read_records(folder.path)] == ["a"]


# ---- one writer at a time ------------------------------------------------------------------------


def test_a_run_that_is_being_written_can_be_read(folder):
    folder.append(timed("a"))
    assert load([folder.path])["variant"].tolist() == ["a"]


# ---- where nothing can be written ----------------------------------------------------------------


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    refused(lambda: RunFolder.create(tmp_path / "out", "box", {}), str(tmp_path / "out"), "--out")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_folder_where_nobody_can_write_is_refused():
    refused(lambda: RunFolder.create(Path("/proc/attnbench"), "box", {}), "/proc", "--out")


FULL = """
import resource, signal, sys
from pathlib import Path
from attnbench.core.disk import StoreError
from attnbench.core.record import Record
from attnbench.core.run_folder import RunFolder
from impls.problem import Problem
problem = Problem(q_len=8)
folder = RunFolder.create(Path(sys.argv[1]), "box", {})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # a disk with room for little more
try:
    for number in range(99):
        folder.append(Record(status="measured", variant=f"v{number}", problem=problem))
except StoreError as error:
    print(error)
finally:
    folder.close()
print("closed")
"""


def test_a_full_disk_is_a_sentence_and_keeps_what_was_measured(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    sentence, closed = done.stdout.splitlines()
    assert "--resume" in sentence
    assert closed == "closed"
    (path,) = (tmp_path / "box").iterdir()
    kept = [r.variant for r in read_records(path)]
    assert kept
    assert kept == [f"v{n}" for n in range(len(kept))]


# ---- headers that are none -----------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    refused(lambda: read_header(tmp_path / "no"), "there is no run folder", str(tmp_path / "no"))


def test_a_folder_without_a_header_is_no_run(tmp_path):
    refused(lambda: RunFolder.reopen(tmp_path), disk.HEADER, "start a new one")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [b"", b'{"run": "x", "sch', b"[]", b"{}", b"null", b"3", b"\xff\xfe"],
)
def test_a_damaged_header_is_refused(tmp_path, text):
    (tmp_path / disk.HEADER).write_bytes(text)
    refused(lambda: RunFolder.reopen(tmp_path), "damaged", disk.HEADER)


def test_a_header_of_a_newer_schema_is_refused(tmp_path):
    (tmp_path / disk.HEADER).write_text(json.dumps({"schema": SCHEMA + 1}))
    refused(lambda: read_header(tmp_path), f"schema {SCHEMA + 1}", "update attnbench")


def test_a_header_is_replaced_whole(folder):
    folder.header["ceilings"] = {"flops": 1.0}
    folder.save_header()
    assert read_header(folder.path)["ceilings"] == {"flops": 1.0}
    assert {p.name for p in folder.path.iterdir()} == {disk.HEADER, disk.RECORDS}


# ---- as a DataFrame ------------------------------------------------------------------------------


def test_a_run_that_is_given_twice_or_below_another_path_is_one_run(tmp_path):
    one, two = (RunFolder.create(tmp_path / "out", "box", {}) for _ in range(2))
    for folder in (one, two):
        folder.close()
    (tmp_path / "link").symlink_to(one.path)
    found = each_run([two.path, tmp_path / "link", tmp_path / "out", two.path / ".." / two.name])
    assert [path.resolve() for path in found] == [two.path, one.path]


def test_load_gives_a_row_a_record_with_dotted_columns(tmp_path):
    for box in ("box", "other"):
        run = RunFolder.create(tmp_path, box, {"machine": {"name": box}})
        run.append(timed("a", 8, 0.25))
        run.append(record("b", 16, status=Status.WRONG, reason="row 1"))
        run.close()
    frame = load([tmp_path])
    assert len(frame) == 4
    assert frame["machine"].tolist() == ["box", "box", "other", "other"]
    assert frame["variant"].tolist() == ["a", "b", "a", "b"]
    assert frame["problem.q_len"].tolist() == [8, 16, 8, 16]
    assert frame["time.median_s"].tolist()[::2] == [0.25, 0.25]
    assert frame["time.median_s"].isna().tolist() == [False, True, False, True]
    assert frame["status"].tolist()[:2] == ["measured", "wrong"]


def test_load_takes_one_run_by_its_path(folder):
    folder.append(timed("a"))
    assert load([str(folder.path)])["machine"].tolist() == ["box"]
    assert load([folder.path])["time.samples_s"].tolist() == [[0.25]]
