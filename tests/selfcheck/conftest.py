"""Plants measured in this process."""

import time

import pytest
import torch

from attnbench.core.record import Record
from attnbench.features.selfcheck.selfcheck import BUDGET_S
from attnbench.meter.cell import Bench
from attnbench.meter.timer import Job
from attnbench.sweep.worker import _measured


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """What those plants leave changed that a test plants in this process."""
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)
    yield
    torch.autograd.set_detect_anomaly(False)


@pytest.fixture(scope="session")
def bench():
    return Bench()


@pytest.fixture
def measured(bench):
    """The record that a worker would send of a variant, and whether it should be replaced."""

    def measure(variant, problem):
        answer = _measured(bench, Job(variant, problem, budget_s=BUDGET_S))
        return Record.from_dict(answer["record"]), answer["spoiled"]

    return measure
