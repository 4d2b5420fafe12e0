"""Cells that are measured again: their lines move, and no death on the way loses one."""

import os
import subprocess
import sys
import tracemalloc
from itertools import combinations
from pathlib import Path

import pytest

import attnbench
from attnbench.core.disk import RECORDS, SPOILED
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import load, read_records

ROOT = Path(attnbench.__file__).parents[1]


def variants(folder):
    return [r.variant for r in read_records(folder.path)]


def filled(folder, made, names="abcd"):
    some = [made.record(name) for name in names]
    for each in some:
        folder.append(each)
    return {r.variant: r.key for r in some}


def test_lines_move_as_they_are_and_what_comes_then_goes_to_the_new_file(folder, made):
    keys = filled(folder, made)
    lines = (folder.path / RECORDS).read_bytes().splitlines(keepends=True)
    assert folder.supersede({keys["b"], keys["d"], "no cell of this run"}) == 2
    assert (folder.path / RECORDS).read_bytes() == lines[0] + lines[2]
    assert (folder.path / SPOILED).read_bytes() == lines[1] + lines[3]
    folder.append(made.record("b", note="again"))
    assert variants(folder) == ["a", "c", "b"]
    assert load([folder.path])["variant"].tolist() == ["a", "c", "b"]
    assert folder.supersede({keys["b"]}) == 1
    assert len((folder.path / SPOILED).read_bytes().splitlines()) == 3


def test_where_no_cell_is_meant_nothing_is_written(folder, made):
    filled(folder, made)
    before = (folder.path / RECORDS).stat()
    assert folder.supersede({"no cell of this run"}) == 0
    after = (folder.path / RECORDS).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not (folder.path / SPOILED).exists()


@pytest.mark.parametrize("taken", [t for n in range(1, 5) for t in combinations("abcd", n)])
def test_any_lines_are_taken_out_wherever_they_stand(folder, made, taken):
    keys = filled(folder, made)
    lines = dict(zip("abcd", (folder.path / RECORDS).read_bytes().splitlines(True), strict=True))
    assert folder.supersede({keys[name] for name in taken}) == len(taken)
    left = [lines[name] for name in "abcd" if name not in taken]
    assert (folder.path / RECORDS).read_bytes() == b"".join(left)
    assert (folder.path / SPOILED).read_bytes() == b"".join(lines[name] for name in taken)


def test_of_a_long_run_a_piece_at_a_time_is_held(folder, made):
    keys = filled(folder, made)
    file = folder.path / RECORDS
    with file.open("ab") as more:
        more.write((made.timed("z").line().encode() + b"\n") * 8000)
    size = file.stat().st_size
    assert size > 5_000_000
    tracemalloc.start()
    folder.supersede({keys["b"]})
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 3_000_000
    assert file.stat().st_size == size - (folder.path / SPOILED).stat().st_size


def test_the_run_stays_locked_and_is_free_once_closed(folder, made, refused):
    keys = filled(folder, made)
    folder.supersede({keys["a"]})
    refused(lambda: RunFolder.reopen(folder.path), "is writing to")
    folder.close()
    RunFolder.reopen(folder.path).close()


def test_who_opened_the_file_that_is_then_replaced_does_not_write_to_it(folder, made, monkeypatch):
    keys = filled(folder, made)
    from attnbench.core import run_folder

    real = run_folder.fcntl.flock

    def late(descriptor, how):
        monkeypatch.setattr(run_folder.fcntl, "flock", real)
        folder.supersede({keys["a"]})
        folder.close()
        real(descriptor, how)

    monkeypatch.setattr(run_folder.fcntl, "flock", late)
    again = RunFolder.reopen(folder.path)
    again.append(made.record("e"))
    again.close()
    assert variants(folder) == ["b", "c", "d", "e"]


def test_a_disk_that_is_full_leaves_the_records_as_they_were(folder, made, refused, monkeypatch):
    keys = filled(folder, made)
    for after in range(9):
        real, left = os.fsync, [after]

        def instead(descriptor, real=real, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(28, "No space left on device")
            real(descriptor)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", instead)
            try:
                refused(lambda: folder.supersede({keys["b"]}), "No space left", "--resume")
            except pytest.fail.Exception:
                break
        moved = after > 2
        assert sorted(variants(folder)) == (["a", "c", "d"] if moved else ["a", "b", "c", "d"])
        if moved:
            break
    folder.append(made.record("e"))
    assert variants(folder)[-1] == "e"


KILLED = """
import os, signal, sys
from pathlib import Path
from attnbench.core.record import Record
from impls.problem import Problem
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import read_records

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
    some = [Record(status="measured", variant=v, problem=Problem(q_len=8)) for v in "abcd"]
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
    assert lines(folder.path / "spoiled.jsonl") == [every[1], every[3]], after
    assert {p.name for p in folder.path.iterdir()} == {
        "run.json", "records.jsonl", "spoiled.jsonl"}, after
    if status == 0:
        break
    deaths += 1
print(deaths)
"""


def test_a_death_at_any_moment_loses_no_line_and_doubles_none(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert 10 <= int(done.stdout) < 99
