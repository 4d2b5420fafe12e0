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
