import pytest

from tests.impls.external.stand_ins import Library


@pytest.fixture
def library(monkeypatch):
    """The stand-ins for libraries that need a GPU, for one test."""
    return Library(monkeypatch)
