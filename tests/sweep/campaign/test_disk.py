"""A disk that is full, too small or read-only, a clock that goes back, a folder that is taken."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from attnbench.core.store import read_records
from impls.loading import load_file

starting = load_file(Path(__file__).with_name("starting.py"))
sweeping = starting.sweeping
VARIANTS = ["einsum", "matmul", "bmm", "baddbmm", "inplace", "sdpa.math"]
WORDS = [*VARIANTS, "--seq", "16,24,32,40", *starting.SMALL]
CELLS = 4 * len(VARIANTS)
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""
ELSEWHEN = """
import datetime, time
real, ago = datetime.datetime, datetime.timedelta(days={days})
class Back(real):
    @classmethod
    def now(cls, tz=None):
        return {moment}
datetime.datetime = Back
"""


@pytest.fixture
def word():
    """Carried by all that a test starts; at its end nobody carries it any more."""
    with sweeping.marked() as word:
        yield word
        starting.until_gone(word)


@pytest.fixture
def disk(tmp_path):
    """A small file system, and a function that changes it."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "attnbench-test", folder],
            capture_output=True,
            text=True,
            check=False,
        )

    if shutil.which("mount") is None or (made := mount("size=40k")).returncode:
        pytest.skip(f"no file system may be mounted here: {made.stderr.strip()}")

    def change(options):
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)

    yield folder, change
    subprocess.run(["umount", "-l", folder], check=True)


def the_run(out):
    (path,) = out.glob("*/2*")
    return path


def refused(done, *words):
    """It ended with one sentence that has the words."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("attnbench: ")
    for each in words:
        assert each in last


def goes_on(word, path):
    """Resumed, it ends with every cell once, and what was there is there."""
    before = starting.lines(path)
    assert 0 < len(before) < CELLS
    done = starting.finished(word, "--resume", path)
    assert done.returncode in (0, 1), done.stderr
    assert f"{len(before)} done before" in done.stderr
    after = starting.lines(path) + starting.lines(path, "spoiled.jsonl")
    assert set(before) <= set(after)
    cells = Counter(r.key for r in read_records(path))
    assert len(cells) == CELLS
    assert set(cells.values()) == {1}


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_run_with_a_sentence_and_it_goes_on_once_there_is_room(
    word, disk
):
    folder, change = disk
    done = starting.finished(word, *WORDS, "--out", folder)
    refused(done, "No space left", "what was measured before is kept", "make room", "--resume")
    change("size=20m")
    goes_on(word, the_run(folder))


@pytest.mark.slow
def test_a_file_that_may_not_grow_ends_the_run_with_a_sentence_and_it_goes_on_later(word, tmp_path):
    limited = [sys.executable, "-c", LIMITED, "24000"]
    done = starting.finished(word, *WORDS, "--out", tmp_path, before=limited)
    refused(done, "File too large", "what was measured before is kept", "--resume")
    goes_on(word, the_run(tmp_path))


def test_a_disk_that_is_full_from_the_start_is_told_before_anything_is_started(word, disk):
    folder, _ = disk
    with (folder / "everything").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)
    done = starting.finished(word, *WORDS, "--out", folder)
    refused(done, "No space left")
    assert "records go to" not in done.stderr


def test_a_disk_that_is_read_only_is_told_before_anything_is_started(word, disk):
    folder, change = disk
    change("ro")
    done = starting.finished(word, *WORDS, "--out", folder)
    refused(done, "Read-only file system", "--out")
    assert "records go to" not in done.stderr


@pytest.fixture
def begun(word, tmp_path):
    """A run that was killed once it had some records."""
    out = tmp_path / "results"
    with starting.started(word, *WORDS, "--out", out) as run:
        sweeping.processes.until(lambda: _records(out) >= 2 or run.poll() is not None, 120)
    starting.until_gone(word)
    return the_run(out)


def _records(out):
    return sum(len(starting.lines(path)) for path in out.glob("*/2*"))


def clock(folder, moment, days=0):
    """The path on which every Python started finds another time of day."""
    folder.mkdir()
    text = ELSEWHEN.format(days=days, moment=moment)
    (folder / "sitecustomize.py").write_text(text)
    return os.pathsep.join([str(folder), str(starting.ROOT)])


@pytest.mark.slow
def test_a_clock_that_was_set_back_changes_nothing_for_a_run_that_goes_on(
    word, begun, tmp_path, monkeypatch
):
    path = clock(tmp_path / "back", "real.now(tz) - ago", days=400)
    monkeypatch.setenv("PYTHONPATH", path)
    before = len(starting.lines(begun))
    goes_on(word, begun)
    last = list(read_records(begun))[-1]
    assert before
    assert last.started < time.strftime("%Y-%m-%d")  # its clock did go back


@pytest.mark.slow
def test_two_runs_of_the_same_second_have_a_folder_each(word, tmp_path):
    frozen = clock(tmp_path / "frozen", "real(2020, 2, 29, 12, tzinfo=tz)")
    out, words = tmp_path / "results", ["einsum", "--seq", "16", *starting.SMALL]
    for _ in range(2):
        done = starting.finished(word, *words, "--out", out, PYTHONPATH=frozen)
        assert done.returncode == 0, done.stderr
    runs = sorted(out.glob("*/2*"))
    assert [path.name for path in runs] == ["20200229-120000", "20200229-120000-1"]
    assert [len(starting.lines(path)) for path in runs] == [1, 1]


@pytest.mark.slow
def test_who_comes_second_to_a_run_is_told_who_has_it(word, tmp_path):
    out = tmp_path / "results"
    with starting.started(word, *WORDS, "--out", out) as run:
        sweeping.processes.until(lambda: _records(out) >= 1 or run.poll() is not None, 120)
        run.send_signal(signal.SIGSTOP)  # it has it, for as long as this takes
        path = the_run(out)
        before = starting.lines(path)
        done = starting.finished(word, "--resume", path)
        refused(done, f"process {run.pid}", "attnbench run", "since")
        assert starting.lines(path) == before
