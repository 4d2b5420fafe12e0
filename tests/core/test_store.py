"""The results folder: what is written stays, and what can't be read says so in a sentence."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.core import disk
from attnbench.core.disk import HEADER, RECORDS, SPOILED, TORN, StoreError
from attnbench.core.evidence import check_writable
from attnbench.core.record import SCHEMA, DamagedRun, Status
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import NEWEST, named_run, read_header, read_records
from tests.calling import ROOT
from tests.core.records import record, refused, timed


@pytest.fixture
def folder(tmp_path):
    """A run, open for appending."""
    new = RunFolder.create(tmp_path / "results", "box", {"seed": 3, "machine": {"name": "box"}})
    yield new
    new.close()


def variants(path):
    return [r.variant for r in read_records(path)]


def filled(folder, names="abcd"):
    """The keys of the records that the run then has."""
    for name in names:
        folder.append(record(name))
    return {name: record(name).key for name in names}


def test_what_was_appended_comes_back_in_its_order_also_after_it_was_reopened(folder, tmp_path):
    assert folder.path.parent == tmp_path / "results" / "box"
    header = read_header(folder.path)
    assert header["run"] == folder.name == folder.path.name
    assert (header["schema"], header["seed"]) == (SCHEMA, 3)
    assert variants(folder.path) == []
    written = [record("b"), record("a", status=Status.WRONG, reason="row 1"), timed("c")]
    for each in written:
        folder.append(each)
    assert list(read_records(folder.path)) == written
    folder.close()
    again = RunFolder.reopen(folder.path)
    again.append(record("d"))
    again.close()
    assert variants(folder.path) == ["b", "a", "c", "d"]
    assert (again.header, again.set_aside) == (folder.header, "")
    assert not (folder.path / TORN).exists()


def test_the_newest_run_is_the_one_that_began_last_whatever_it_is_called(tmp_path):
    for name, started in (
        ("backup", "2026-01-01"),
        ("20260101", "2026-01-01"),
        ("1", "2026-02-02"),
    ):
        (tmp_path / "box" / name).mkdir(parents=True)
        (tmp_path / "box" / name / HEADER).write_text(json.dumps({"started": started}))
    assert [named_run(name, tmp_path).name for name in NEWEST] == ["1", "backup"]


def test_each_record_is_on_disk_when_append_returns_and_so_is_the_way_to_it(tmp_path, monkeypatch):
    seen, real = [], os.fsync

    def synced(descriptor):
        real(descriptor)
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", synced)
    run = RunFolder.create(tmp_path / "out", "box", {})
    assert {tmp_path, tmp_path / "out", tmp_path / "out" / "box", run.path} <= set(seen)
    assert seen[-1] == run.path, "the names of both files"
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda *of: (seen.append("replace"), replace(*of))[1])
    del seen[:]
    run.save_header()
    assert seen[0].name.startswith(f".{HEADER}.") and seen[0].name.endswith(".new")
    assert seen[1:] == ["replace", run.path]
    del seen[:]
    run.append(record())
    assert seen == [run.path / RECORDS]
    del seen[:]
    run.supersede({record().key})
    spoiled, draft, replaced, *rest = seen
    assert (spoiled, replaced) == (run.path / SPOILED, "replace")
    assert draft.name.endswith(".new") and set(rest) == {run.path}
    run.close()


def left_behind(folder, tail):
    """A run of two records whose file ends in something else."""
    filled(folder, "ab")
    folder.close()
    with (folder.path / RECORDS).open("ab") as more:
        more.write(tail)
    return folder.path / RECORDS


@pytest.mark.parametrize(
    "tail",
    [
        b'{"status":"mea', b"\0" * 4096, b'{"status":"mea' + b"\0" * 512, b"{nonsense\n", b"\n",
        b'{nonsense\n\0\0\n{"sta', b"[" * 99_999 + b"\n",
        b'{"sta\n' + record("c").line().encode() + b"\n",
    ],
    ids=range(8),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::attnbench.core.record.DamagedRun")
def test_what_can_not_be_read_is_left_out_and_set_aside(folder, tail):
    file = left_behind(folder, tail)
    whole = ["a", "b", "c"][: 2 + (b'"c"' in tail)]
    assert variants(folder.path) == whole
    again = RunFolder.reopen(folder.path)
    for word in (str(file), "line", TORN, "measured again"):
        assert word in again.set_aside
    torn = tail.partition(record("c").line().encode())[0]
    assert (folder.path / TORN).read_bytes().rstrip(b"\n") == torn.rstrip(b"\n")
    again.append(record("d"))
    again.close()
    assert variants(folder.path) == [*whole, "d"]


def test_a_line_that_lacked_its_end_alone_counts(folder):
    left_behind(folder, record("torn").line().encode())
    RunFolder.reopen(folder.path).close()
    assert variants(folder.path) == ["a", "b", "torn"]


@pytest.mark.parametrize("line", [b"[]\n", b"7", b"null\n", b"{}\n", b'{"schema": 99}\n'])
def test_json_that_is_no_record_is_named_by_file_and_number(folder, line):
    file = left_behind(folder, line)
    refused(lambda: RunFolder.reopen(folder.path), str(file), "line 3")
    if line.endswith(b"\n"):
        refused(lambda: variants(folder.path), str(file), "line 3", "--resume")


def test_damage_is_said_by_the_lines_that_have_it(folder):
    file = left_behind(folder, b"\0\0\n")
    with pytest.warns(DamagedRun, match=f"line 3 .*attnbench run --resume {folder.path}"):
        assert variants(folder.path) == ["a", "b"]
    more = [timed("c").line(), record("b", note="other").line(), record().line()]
    with file.open("a") as end:
        end.write("\n".join(more) + "\n")
    with pytest.warns(DamagedRun) as said:
        found = [(r.variant, r.status) for r in read_records(folder.path)]
    assert found == [(name, Status.MEASURED) for name in "abc"]
    text = " ".join(str(each.message) for each in said)
    for words in ("line 3 of", "lines 5, 6 of"):
        assert words in text
    again = RunFolder.reopen(folder.path)
    again.close()
    assert "lines 3, 5, 6 of" in again.set_aside
    assert len((folder.path / TORN).read_bytes().splitlines()) == 3


def test_a_folder_that_takes_no_run_is_refused(tmp_path, monkeypatch):
    (tmp_path / "out").write_text("mine")
    refused(lambda: RunFolder.create(tmp_path / "out", "box", {}), str(tmp_path / "out"), "--out")
    assert (tmp_path / "out").read_text() == "mine"
    refused(lambda: RunFolder.create(Path("/proc/attnbench"), "box", {}), "/proc", "--out")
    monkeypatch.setattr(disk.os, "access", lambda path, how: False)
    with pytest.raises(StoreError, match=r"under .*/box: permission denied; give another .*--out"):
        check_writable(tmp_path, SimpleNamespace(name="box"))


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_is_full_leaves_all_as_it_was(folder, monkeypatch, call):
    keys, real = filled(folder), getattr(os, call)
    before = {file.name: file.read_bytes() for file in folder.path.iterdir()}

    def fails(*given):
        if call == "write":
            real(given[0], given[1][: len(given[1]) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for does, words in (
        (lambda: folder.append(record("e")), "--resume"),
        (lambda: folder.supersede({keys["b"]}), "--resume"),
        (folder.save_header, "--out"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, fails)
            refused(does, "No space left", str(folder.path), words)
        (folder.path / SPOILED).unlink(missing_ok=True)
        assert {file.name: file.read_bytes() for file in folder.path.iterdir()} == before
    folder.append(record("c2"))
    assert variants(folder.path) == ["a", "b", "c", "d", "c2"]


def test_a_write_that_takes_only_part_goes_on_with_the_rest(folder, monkeypatch):
    real = os.write
    monkeypatch.setattr(disk.os, "write", lambda to, data: real(to, data[:7]))
    folder.append(record("a"))
    assert variants(folder.path) == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["it is not a run"]),
        *((t, ["damaged"]) for t in (b"", b'{"run": "x", "sch', b"[]", b"{}", b"null", b"\xff")),
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


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    refused(lambda: read_header(tmp_path / "no"), "there is no run folder", str(tmp_path / "no"))


@pytest.mark.parametrize("taken", ["a", "d", "bc", "ad", "abcd", ""])
def test_lines_move_as_they_are_wherever_they_stand(folder, taken):
    keys = filled(folder)
    file = folder.path / RECORDS
    lines, before = file.read_bytes().splitlines(keepends=True), file.stat().st_ino
    assert folder.supersede({*(keys[name] for name in taken), "no cell of this run"}) == len(taken)
    left = [line for name, line in zip("abcd", lines, strict=True) if name not in taken]
    assert file.read_bytes() == b"".join(left)
    assert (file.stat().st_ino == before) == (taken == "") != (folder.path / SPOILED).exists()
    assert not taken or len((folder.path / SPOILED).read_bytes().splitlines()) == len(taken)
    refused(lambda: RunFolder.reopen(folder.path), "is writing to")
    folder.append(record("a", 16, note="again"))
    assert variants(folder.path)[-1] == "a"
    folder.close()
    RunFolder.reopen(folder.path).close()


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_records_that_were_taken_away_end_the_run(folder, tmp_path, how):
    filled(folder, "ab")
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


KILLED = """
import os, signal, sys
from pathlib import Path
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import read_records
from tests.core.records import record

CALLS = ["open", "write", "fsync", "ftruncate", "truncate", "close", "replace", "rename"]
where, deaths = Path(sys.argv[1]), 0

def lines(file):
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []

def dying(left):
    '''Die before the call of the system that comes after so many, or a third into a write.'''
    def wrapped(name, real):
        def call(*given, **more):
            if left[0] == 0:
                if name == "write":
                    real(given[0], given[1][: len(given[1]) // 3])
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return real(*given, **more)
        return call
    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))

for after in range(100):
    folder = RunFolder.create(where / str(after), "box", {})
    some = [record(v) for v in "abcd"]
    for each in some:
        folder.append(each)
    every = lines(folder.path / "records.jsonl")
    child = os.fork()
    if not child:
        dying([after])
        folder.supersede({some[1].key, some[3].key})
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    folder.close()
    records, spoiled = (lines(folder.path / f) for f in ("records.jsonl", "spoiled.jsonl"))
    whole = [x for x in spoiled if x.endswith(b"\\n")]
    assert set(records) | set(whole) == set(every), after
    assert len(set(records)) == len(records), after
    again = RunFolder.reopen(folder.path)
    assert not again.set_aside, after
    again.supersede({some[1].key, some[3].key})
    again.close()
    assert [r.variant for r in read_records(folder.path)] == ["a", "c"], after
    assert {every[1], every[3]} <= set(lines(folder.path / "spoiled.jsonl")), after
    if status == 0:
        break
    deaths += 1
print(deaths)
"""


def test_a_death_at_any_moment_loses_no_line_and_doubles_none(tmp_path):
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    assert 8 <= int(subprocess.check_output(words, cwd=ROOT, text=True, timeout=120)) < 99
