"""A variant that waits, in a table file of its own."""

import pytest

from attnbench.core.run_folder import RunFolder
from tests.sweep.build import HEADER

WAITS = """
import os, time
from pathlib import Path
from impls.spec import Variant

HERE = Path(__file__).parent

def build(problem):
    from impls.dense.einsum import build
    (HERE / "waits.pid").write_text(str(os.getpid()))
    end = time.monotonic() + 60
    while (HERE / "hold").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return build(problem)

ROWS = [Variant(name="h.waits", title="waits", family="h", computes="softmax", build=":build")]
"""


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """The table file; ``hold`` beside it makes ``h.waits`` wait."""
    file = tmp_path_factory.mktemp("waiting") / "waiting.py"
    file.write_text(WAITS)
    return file


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path, "box", HEADER)
    yield made
    made.close()
