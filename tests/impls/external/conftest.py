"""The stand-ins of stand_ins.py, for one test each."""

import pytest

from tests.impls.external.stand_ins import Library


@pytest.fixture
def library(monkeypatch):
    return Library(monkeypatch)
