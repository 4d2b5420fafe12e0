"""The results folder: what is written stays, and what can't be read says so in a sentence."""

import errno
import fcntl
import json
import os
from types import SimpleNamespace

import pytest

from attnbench.core import disk
from attnbench.core.disk import HEADER, RECORDS, StoreError
from attnbench.core.evidence import check_writable
from attnbench.core.record import SCHEMA, DamagedRun, Status
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import NEWEST, StoredRecords, named_run, read_header, read_records
from tests.core.records import record, refused, timed


@pytest.fixture
def folder(tmp_path):
    """A run, open for appending."""
    new = RunFolder.create(tmp_path / "results", "box", {"seed": 3, "machine": {"name": "box"}})
    yield new
    new.close()


def variants(path):
    return [r.variant for r in read_records(path)]


def filled(folder, names="ab"):
    for name in names:
        folder.append(record(name))


def test_what_was_appended_comes_back_in_its_order_also_after_it_was_reopened(folder, tmp_path):
    assert folder.path.parent == tmp_path / "results" / "box"
    header = read_header(folder.path)
    assert header["run"] == folder.name == folder.path.name
    assert (header["schema"], header["seed"]) == (SCHEMA, 3)
    assert variants(folder.path) == []
    written = [record("b"), record("a", status=Status.WRONG, reason="row 1"), timed("c")]
    for each in written:
        folder.append(each)
    assert read_records(folder.path) == folder.stored.records == written
    folder.close()
    again = RunFolder.reopen(folder.path)
    assert (again.header, again.stored.records) == (folder.header, written)
    again.append(record("d"))
    assert record("d").key in again and record("e").key not in again
    again.close()
    assert variants(folder.path) == ["b", "a", "c", "d"]


def test_the_newest_run_is_the_one_that_began_last_whatever_it_is_called(tmp_path):
    for name, started in (("backup", "2026-01-01"), ("20260101", "2026-01-01"), ("1", "2026-02")):
        (tmp_path / "box" / name).mkdir(parents=True)
        (tmp_path / "box" / name / HEADER).write_text(json.dumps({"started": started}))
    assert [named_run(name, tmp_path).name for name in NEWEST] == ["1", "backup"]


def test_each_record_is_on_disk_when_append_returns(folder, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (real(number), synced.append(number)))
    folder.append(record())
    assert synced == [folder._descriptor]


def left_behind(folder, tail):
    """A run of two records whose file ends in something else."""
    filled(folder)
    folder.close()
    with (folder.path / RECORDS).open("ab") as more:
        more.write(tail)
    return folder.path


@pytest.mark.parametrize(
    "tail",
    [
        b"{nonsense\n", b"\n", b"[]\n", b"7\n", b"{}\n",
        b"[" * 99_999 + b"\n", b'{"sta\n' + record("c").line().encode() + b"\n",
        timed("odd", median=0.125).line().replace("0.125", "null", 1).encode() + b"\n",
        timed("odd", median=0.125).line().replace("0.125", "1e999", 1).encode() + b"\n",
        b'{"problem":' + b"[" * 99_999 + b"\n",
    ],
    ids=range(10),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::attnbench.core.record.DamagedRun")
def test_what_can_not_be_read_is_left_out_and_measured_again(folder, tail):
    path = left_behind(folder, tail)
    whole = ["a", "b", *"c" * (b'"c"' in tail)]
    assert variants(path) == whole
    again = RunFolder.reopen(path)
    again.append(record("d"))
    again.close()
    assert variants(path) == [*whole, "d"]
    (sentence,) = StoredRecords.read(path).faults()
    assert sentence.startswith(f"line 3 of {path / RECORDS} can't be read, left out; attnbench run")
    assert f"--resume {path}" in sentence


@pytest.mark.parametrize(
    ("tail", "more"),
    [(record("c").line().encode(), "c"), (b'{"status":"mea', ""), (b"\0" * 4096, "")],
    ids=range(3),
)
def test_a_last_line_that_a_death_cut_off_goes_or_lacked_its_end_alone(folder, tail, more):
    path = left_behind(folder, tail)
    assert variants(path) == ["a", "b"]
    again = RunFolder.reopen(path)
    again.append(record("d"))
    again.close()
    assert variants(path) == ["a", "b", *more, "d"]


def test_a_record_of_a_newer_form_is_refused_and_one_of_an_older_form_is_read(folder):
    old = {**json.loads(record("old").line()), "schema": 1}
    del old["ranks"], old["node"]
    path = left_behind(folder, json.dumps(old).encode() + b"\n")
    assert variants(path) == ["a", "b", "old"]
    (path / RECORDS).write_text('{"schema": 99}\n')
    for does in (lambda: variants(path), lambda: RunFolder.reopen(path)):
        refused(does, f"{path / RECORDS}, line 1", "update attnbench")
    RunFolder.reopen(left_behind(RunFolder.create(path, "b", {}), b"")).close()


def test_the_later_record_of_a_measurement_counts_and_another_runs_does_not(folder):
    path = left_behind(folder, b"")
    lines = [record("a", note="again").line(), record("c", run="another").line()]
    with (path / RECORDS).open("a") as more:
        more.write("\n".join(lines) + "\n")
    with pytest.warns(DamagedRun, match="line 4 of .* is of another run"):
        assert [(r.variant, r.note) for r in read_records(path)] == [("b", ""), ("a", "again")]
    stored = StoredRecords.read(path)
    assert (stored.lines, stored.again, stored.count) == ([2, 3], 1, 4)


def test_a_folder_that_takes_no_run_is_refused(tmp_path, monkeypatch):
    (tmp_path / "out").write_text("mine")
    refused(lambda: RunFolder.create(tmp_path / "out", "box", {}), str(tmp_path / "out"), "--out")
    assert (tmp_path / "out").read_text() == "mine"
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    sentence = f"{tmp_path / 'gone'} is no folder; give another with --out"
    refused(lambda: RunFolder.create(tmp_path / "gone", "box", {}), sentence)
    monkeypatch.setattr(disk.os, "access", lambda path, how: False)
    with pytest.raises(StoreError, match=r"under .*/box: permission denied; give another .*--out"):
        check_writable(tmp_path, SimpleNamespace(name="box"))


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_is_full_leaves_all_as_it_was(folder, monkeypatch, call):
    filled(folder)
    before, real = {f.name: f.read_bytes() for f in folder.path.iterdir()}, getattr(os, call)

    def fails(*given):
        if call == "write":
            real(given[0], given[1][: len(given[1]) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for does, words in ((lambda: folder.append(record("e")), "--resume"), (folder.save_header, "")):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, fails)
            refused(does, "No space left", str(folder.path), words)
        assert {file.name: file.read_bytes() for file in folder.path.iterdir()} == before
    folder.append(record("c"))
    assert variants(folder.path) == ["a", "b", "c"]


def test_a_write_that_takes_only_part_goes_on_with_the_rest(folder, monkeypatch):
    real = os.write
    monkeypatch.setattr(disk.os, "write", lambda to, data: real(to, data[:7]))
    folder.append(record("a"))
    assert variants(folder.path) == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["it is not a run"]),
        *((t, ["damaged"]) for t in (b"", b'{"run": "x", "sch', b"[]", b"{}", b"\xff")),
        (json.dumps({"schema": SCHEMA + 1}).encode(), [f"schema {SCHEMA + 1}", "update attnbench"]),
    ],
    ids=str,
)
def test_a_header_that_is_none_is_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / HEADER).write_bytes(text)
    before = list(tmp_path.iterdir())
    refused(lambda: RunFolder.reopen(tmp_path), str(tmp_path), *words)
    assert list(tmp_path.iterdir()) == before
    refused(lambda: read_header(tmp_path / "no"), "there is no run folder", str(tmp_path / "no"))


def test_two_do_not_write_to_one_run(folder):
    refused(lambda: RunFolder.reopen(folder.path), "another process is writing to")
    folder.close()
    with (folder.path / RECORDS).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused(lambda: RunFolder.reopen(folder.path), "another process is writing to")
    RunFolder.reopen(folder.path).close()


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_records_that_were_taken_away_end_the_run(folder, tmp_path, how):
    filled(folder)
    old = folder.path
    if how == "moved":
        old.rename(tmp_path / "moved")
    else:
        text = (old / RECORDS).read_text()
        (old / RECORDS).unlink()
        if how == "replaced":
            (old / RECORDS).write_text(text)
    refused(lambda: folder.append(record("c")), str(old), "moved or deleted", "--resume")
    if how == "moved":
        folder.close()
        RunFolder.reopen(tmp_path / "moved").close()
        assert variants(tmp_path / "moved") == ["a", "b"]
