"""Run folders, and the sentences with which they are refused."""

from pathlib import Path

import pytest

from attnbench.core.run_folder import RunFolder
from impls.loading import load_file


@pytest.fixture(scope="session")
def made():
    """The module that makes records."""
    return load_file(Path(__file__).with_name("records.py"))


@pytest.fixture
def folder(tmp_path):
    """A run, open for appending."""
    new = RunFolder.create(tmp_path / "results", "box", {"seed": 3, "machine": {"name": "box"}})
    yield new
    new.close()


@pytest.fixture
def refused(made):
    """The sentence with which a call is refused, holding these words."""
    return made.refused
