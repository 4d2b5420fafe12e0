"""The stand-ins of stand_ins.py, for one test each."""

from pathlib import Path

import pytest

from impls.loading import load_file


@pytest.fixture
def library(monkeypatch):
    return load_file(Path(__file__).with_name("stand_ins.py")).Library(monkeypatch)
