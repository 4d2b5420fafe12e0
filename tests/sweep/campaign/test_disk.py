"""A disk that is full, too small or read-only, and a run that somebody else has."""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from attnbench.core.store import read_records
from impls.loading import load_file

campaign = load_file(Path(__file__).with_name("campaign.py"))
VARIANTS = ["einsum", "matmul", "bmm", "baddbmm", "inplace", "sdpa.math"]
WORDS = [*VARIANTS, "--seq", "16,24,32,40", *campaign.SMALL]
CELLS = 4 * len(VARIANTS)


@pytest.fixture
def disk(tmp_path):
    """A small file system, and a function that changes it."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        words = ["mount", "-t", "tmpfs", "-o", options, "attnbench-test", folder]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    if shutil.which("mount") is None or (made := mount("size=40k")).returncode:
        pytest.skip(f"no file system may be mounted here: {made.stderr.strip()}")

    def change(options):
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)

    yield folder, change
    subprocess.run(["umount", "-l", folder], check=True)


def refused(done, *words):
    """It ended with one sentence that has the words."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("attnbench: ") and all(word in last for word in words), last


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_run_with_a_sentence_and_it_goes_on_once_there_is_room(disk):
    folder, change = disk
    done = campaign.finished(*WORDS, "--out", folder)
    refused(done, "No space left", "what was measured before is kept", "make room", "--resume")
    change("size=20m")
    before = campaign.lines(path := campaign.only_run(folder))
    assert 0 < len(before) < CELLS
    done = campaign.finished("--resume", path)
    assert done.returncode in (0, 1), done.stderr
    assert set(before) <= {*campaign.lines(path), *campaign.lines(path, "spoiled.jsonl")}
    cells = Counter(r.key for r in read_records(path))
    assert len(cells) == CELLS and set(cells.values()) == {1}


def test_a_disk_that_can_not_be_written_is_told_before_anything_is_started(disk):
    folder, change = disk
    with (folder / "everything").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)
    full = campaign.finished(*WORDS, "--out", folder)
    refused(full, "No space left")
    change("ro")
    fixed = campaign.finished(*WORDS, "--out", folder)
    refused(fixed, "Read-only file system", "--out")
    assert "records go to" not in full.stderr + fixed.stderr
