"""A disk that is full, fails or may only be read: a sentence, and what was measured stays."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnbench
from attnbench.core import disk, run_folder
from attnbench.core.disk import HEADER, RECORDS, StoreError
from attnbench.core.evidence import check_writable
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import read_header, read_records

ROOT = Path(attnbench.__file__).parents[1]


def failing(monkeypatch, call, number=errno.ENOSPC, after=0):
    """Have a call of the system fail once it was made so often; half of what is written is."""
    real, left = getattr(os, call), [after]

    def instead(*given):
        if left[0]:
            left[0] -= 1
            return real(*given)
        if call == "write":
            real(given[0], given[1][: len(given[1]) // 2])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.os, call, instead)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_an_append_that_fails_leaves_nothing_of_its_line(folder, made, refused, monkeypatch, call):
    folder.append(made.record("a"))
    before = (folder.path / RECORDS).read_bytes()
    with monkeypatch.context() as patched:
        failing(patched, call)
        refused(lambda: folder.append(made.record("b")), "No space left", "--resume", RECORDS)
    assert (folder.path / RECORDS).read_bytes() == before
    folder.append(made.record("c"))
    assert [r.variant for r in read_records(folder.path)] == ["a", "c"]


def test_a_write_that_takes_only_part_goes_on_with_the_rest(folder, made, monkeypatch):
    real = os.write
    monkeypatch.setattr(disk.os, "write", lambda to, data: real(to, data[:7]))
    folder.append(made.record("a"))
    assert [r.variant for r in read_records(folder.path)] == ["a"]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_header_that_could_not_be_written_leaves_the_one_before(
    folder, refused, monkeypatch, call
):
    failing(monkeypatch, call)
    folder.header["seed"] = 4
    refused(folder.save_header, "No space left on device", str(folder.path))
    assert read_header(folder.path)["seed"] == 3
    assert {p.name for p in folder.path.iterdir()} == {HEADER, RECORDS}


def test_a_header_is_on_disk_before_it_takes_its_name_and_the_name_after(folder, monkeypatch):
    seen, sync, replace = [], os.fsync, Path.replace

    def synced(descriptor):
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def replaced(self, other):
        seen.append("replace")
        return replace(self, other)

    monkeypatch.setattr(disk.os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    folder.save_header()
    draft, *rest = seen
    assert draft.startswith(f".{HEADER}.") and draft.endswith(".new")
    assert rest == ["replace", folder.path.name]


def test_a_new_run_and_all_folders_above_it_that_are_new_are_synced(tmp_path, monkeypatch):
    seen, sync = [], os.fsync

    def synced(descriptor):
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(disk.os, "fsync", synced)
    run = RunFolder.create(tmp_path / "out", "box", {})
    run.close()
    assert {tmp_path, tmp_path / "out", tmp_path / "out" / "box", run.path} <= set(seen)
    assert seen[-1] == run.path  # the names of both files


def test_a_folder_that_can_not_be_synced_is_no_hindrance(tmp_path, monkeypatch):
    real = os.fsync

    def instead(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(disk.os, "fsync", instead)
    RunFolder.create(tmp_path, "box", {}).close()


def test_a_clock_that_was_set_back_gives_no_run_the_name_of_another(tmp_path, monkeypatch):
    from datetime import datetime as real

    moments = [real(2026, 1, 1, 0, 0, second) for second in (5, 6, 5, 5, 6)]

    class Clock:
        @staticmethod
        def now(zone):
            return moments.pop(0)

    monkeypatch.setattr(run_folder, "datetime", Clock)
    names = []
    for number in range(5):
        run = RunFolder.create(tmp_path, "box", {"number": number})
        names.append(run.name)
        run.close()
    assert names == [
        "20260101-000005",
        "20260101-000006",
        "20260101-000005-1",
        "20260101-000005-2",
        "20260101-000006-1",
    ]
    assert [read_header(tmp_path / "box" / name)["number"] for name in names] == list(range(5))


# ---- real file systems ---------------------------------------------------------------------------

MOUNTED = """
import sys
from pathlib import Path
from attnbench.core.disk import StoreError
from attnbench.core.record import Record
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import read_records
from impls.problem import Problem

def record(number):
    return Record(
        status="measured", variant=f"v{number}", problem=Problem(q_len=8), detail="x" * 3000
    )

place, kind = Path(sys.argv[1]), sys.argv[2]
try:
    if kind == "full":
        folder = RunFolder.create(place, "box", {})
        for number in range(99):
            folder.append(record(number))
    elif kind == "new":
        RunFolder.create(place, "box", {})
    else:
        RunFolder.reopen(next(place.glob("*/*")))
except StoreError as error:
    print(error)
if kind == "full":
    folder.close()
    data = (folder.path / "records.jsonl").read_bytes()
    print(data.endswith(b"\\n"), [r.variant for r in read_records(folder.path)][-1])
"""


def mounted(how, place, kind):
    """What is printed where a file system of that kind is mounted; skips where none may be."""
    place.mkdir(exist_ok=True)
    mount = f'mount {how} || exit 77; exec {sys.executable} -c "$MOUNTED" {place} {kind}'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "MOUNTED": MOUNTED},
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("file systems may not be mounted here")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_disk_that_runs_full_keeps_every_line_whole(tmp_path):
    place = tmp_path / "small"
    sentence, kept = mounted(f"-t tmpfs -o size=64k none {place}", place, "full")
    assert "No space left on device" in sentence
    assert "--resume" in sentence
    assert kept.startswith("True v")


def test_a_folder_that_may_not_be_written_to_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.os, "access", lambda path, how: False)
    with pytest.raises(StoreError, match=r"under .*/box: permission denied; give another .*--out"):
        check_writable(tmp_path, SimpleNamespace(name="box"))


@pytest.mark.parametrize("kind", ["new", "old"])
def test_a_file_system_that_may_only_be_read_is_named(tmp_path, kind):
    place = tmp_path / "there"
    RunFolder.create(place, "box", {}).close()
    (sentence,) = mounted(f"--bind -o ro {place} {place}", place, kind)
    assert "Read-only file system" in sentence
    assert "--out" in sentence
    assert str(place) in sentence
