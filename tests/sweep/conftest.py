"""A run's folder that a sweep writes to."""

import pytest

from attnbench.core.run_folder import RunFolder
from tests.sweep.build import HEADER


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path, "box", HEADER)
    yield made
    made.close()
