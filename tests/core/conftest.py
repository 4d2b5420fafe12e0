"""A run folder."""

import pytest

from attnbench.core.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    """A run, open for appending."""
    new = RunFolder.create(tmp_path / "results", "box", {"seed": 3, "machine": {"name": "box"}})
    yield new
    new.close()
