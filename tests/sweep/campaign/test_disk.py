"""A disk that fills up while a run is measured."""

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
    """A small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "attnbench-test", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_run_with_a_sentence_and_it_goes_on_once_there_is_room(disk):
    done = campaign.finished(*WORDS, "--out", disk)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "No space left" in last and "what was measured before is kept" in last
    subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
    before = campaign.lines(path := campaign.only_run(disk))
    assert 0 < len(before) < CELLS
    done = campaign.finished("--resume", path)
    assert done.returncode in (0, 1), done.stderr
    assert set(before) <= {*campaign.lines(path), *campaign.lines(path, "spoiled.jsonl")}
    cells = Counter(r.key for r in read_records(path))
    assert len(cells) == CELLS and set(cells.values()) == {1}
