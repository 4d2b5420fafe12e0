"""A finished run for all faults, and folders for each."""

import subprocess

import pytest

from tests.faults import campaign


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A run of two cells, which no fault changes: each has a copy."""
    folder = tmp_path_factory.mktemp("tiny")
    words = [campaign.COMMAND, "run", "einsum", "matmul", *campaign.TINY, "--out", "results"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    (path,) = folder.glob("results/*/*/run.json")
    return path.parent


@pytest.fixture
def bring_about(tiny_run, tmp_path):
    """Runs one fault in folders of its own and asserts what must hold of every one."""
    return lambda fault: campaign.run(fault, campaign.Place(tmp_path / "fault", tiny_run))
