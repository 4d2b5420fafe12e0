"""No library of kernels is imported, whatever an earlier test of this worker left."""

import sys

import pytest

from attnbench.models.capture.recorder import KERNELS


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch):
    for name in KERNELS:
        monkeypatch.delitem(sys.modules, name, raising=False)
