"""What all tests share: hypothesis without a clock, since the machine may be busy; the threads
and the random numbers of torch."""

import os
import tempfile

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
DATA = tempfile.TemporaryDirectory(prefix="attnbench-tests-")
os.environ["XDG_DATA_HOME"] = DATA.name  # what was tuned on this machine is no test's

LONGEST = (
    "commits/test_own_repository.py",
    "faults/test_faults.py",
    "models/quality/test_small_lm.py",
    "faults/test_variants.py",
    "visit/test_visit.py",
    "selfcheck/test_judge.py",
    "models/transformers/test_all_models.py",
    "models/quality/test_caches.py",
    "models/test_lengths.py",
    "models/quality/test_pretrained_model.py",
    "test_installation.py",
    "sweep/test_cluster_nodes.py",
)
"""The files whose slow tests take longest, by the time that they take."""


def pytest_collection_modifyitems(items):
    """The longest files come first, so that two workers end at nearly the same time."""
    places = {f"tests/{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest.fixture(autouse=True)
def torch_as_at_the_start():
    """One thread and the same random numbers for each test, whatever the one before it left."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def shown(monkeypatch, capsys):
    """Calls a function of a view and returns the text that it printed, so many columns wide."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def show(function, *given, width=400):
        monkeypatch.setenv("COLUMNS", str(width))
        function(*given)
        return capsys.readouterr().out

    return show
