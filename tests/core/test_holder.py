"""Who is writing to a run: by the system's table of locks, as far as it tells."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import attnbench
from attnbench.core import run_folder
from attnbench.core.disk import RECORDS
from attnbench.core.run_folder import RunFolder

ROOT = Path(attnbench.__file__).parents[1]
REOPEN = """
import sys
from pathlib import Path
from attnbench.core.disk import StoreError
from attnbench.core.run_folder import RunFolder
try:
    RunFolder.reopen(Path(sys.argv[1])).close()
except StoreError as error:
    print(error)
else:
    print("opened")
"""


def reopened_elsewhere(path):
    done = subprocess.run(
        [sys.executable, "-c", REOPEN, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_a_second_process_is_told_who_is_writing(folder):
    said = reopened_elsewhere(folder.path)
    found = re.fullmatch(
        r"process (\d+) \((.+)\), since (\S+) is writing to (.+); wait until that one ends, or "
        r"start a run of your own",
        said,
    )
    assert found, said
    assert int(found[1]) == os.getpid()
    assert "python" in found[2]
    assert found[2].split() == Path("/proc/self/cmdline").read_text().replace("\0", " ").split()
    age = datetime.now(UTC) - datetime.fromisoformat(found[3])
    assert timedelta(seconds=-2) < age < timedelta(hours=2)
    assert found[4] == str(folder.path)


def test_the_run_is_free_once_it_is_closed(folder):
    folder.close()
    assert reopened_elsewhere(folder.path) == "opened"


def test_a_refused_second_writer_leaves_no_file_open(folder, refused):
    before = len(list(Path("/proc/self/fd").iterdir()))
    refused(lambda: RunFolder.reopen(folder.path), "is writing to")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A system that tells what it is told to."""
    monkeypatch.setattr(run_folder, "PROC", tmp_path / "proc")
    (tmp_path / "proc" / "7").mkdir(parents=True)
    file = tmp_path / "file"
    file.touch()
    about = file.stat()
    name = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"

    def told(kind="FLOCK", pid=7, command=None, name=name):
        (tmp_path / "proc" / "locks").write_text(
            f"1: POSIX  ADVISORY  WRITE 3 {name} 0 EOF\n"
            f"2: {kind}  ADVISORY  WRITE {pid} {name} 0 EOF\n"
            f"2: -> {kind}  ADVISORY  WRITE 9 {name} 0 EOF\n"
        )
        if command is not None:
            (tmp_path / "proc" / "7" / "cmdline").write_bytes(command)
        return run_folder.holder(file)

    return told


def test_a_command_is_told_without_what_could_harm_a_terminal(table):
    assert table(command=b"python\0-c\0\x1b[2J\n") == "process 7 (python -c ?[2J)"


def test_a_long_command_is_cut(table):
    assert len(table(command=b"x" * 9000)) < 600


def test_a_process_that_can_not_be_looked_at_is_told_by_number(table):
    assert table() == "process 7"


@pytest.mark.parametrize(
    "how",
    [{"pid": 0}, {"pid": 8}, {"kind": "LEASE"}, {"name": "00:00:1"}, {"name": "damaged"}],
    ids=str,
)
def test_where_it_can_not_be_known_it_is_another_process(table, how):
    assert table(**how) == "another process"


def test_without_a_table_it_is_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "PROC", tmp_path / "no")
    (tmp_path / RECORDS).touch()
    assert run_folder.holder(tmp_path / RECORDS) == "another process"
