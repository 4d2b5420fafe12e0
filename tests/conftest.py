"""What all tests share: hypothesis without a clock, since the machine may be busy; and the threads
of a worker, which the shell that calls the tests may not have asked for."""

import os

import pytest
from hypothesis import settings

from attnbench.measure.settings import environment

os.environ.update(environment(threads=1))  # what counts only before torch is imported
settings.register_profile("calm", deadline=None)
settings.load_profile("calm")


@pytest.fixture(autouse=True)
def one_thread():
    """For each test, whatever the one before it left."""
    import torch

    torch.set_num_threads(1)
