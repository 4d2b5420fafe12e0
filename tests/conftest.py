"""What all tests share: hypothesis without a clock, since the machine may be busy; and the threads
of a worker, which the shell that calls the tests may not have asked for."""

import os

import pytest

from attnbench.core.settings import environment

try:
    from hypothesis import settings
except ImportError:  # a GPU's machine may have pytest alone, which is all that tests/gpu needs
    pass
else:
    settings.register_profile("calm", deadline=None)
    settings.load_profile("calm")
os.environ.update(environment(threads=1))  # what counts only before torch is imported


@pytest.fixture(autouse=True)
def one_thread():
    """For each test, whatever the one before it left."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def shown(monkeypatch, capsys):
    """Calls a function of a view and returns the text that it printed, so many columns wide."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def show(function, *given, width=400):
        monkeypatch.setattr("attnbench.report.tables.PIPED", width)
        function(*given)
        return capsys.readouterr().out

    return show
