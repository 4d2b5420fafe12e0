"""Run folders written by hand."""

import itertools
import json

import pytest

from attnbench.core.run_folder import RunFolder
from tests.answer.run_folders import HEADER


@pytest.fixture
def run(tmp_path):
    """Writes a run folder: records, and what its header has otherwise (``machine.cores=8``)."""

    numbers = itertools.count()

    def written(*records, **changes):
        header = json.loads(json.dumps(HEADER))
        for path, value in changes.items():
            *rooms, last = path.split("__")
            place = header
            for room in rooms:
                place = place[room]
            place[last] = value
        folder = RunFolder.create(tmp_path / str(next(numbers)), "box", header)
        for record in records:
            folder.append(record)
        folder.close()
        return folder.path

    return written
