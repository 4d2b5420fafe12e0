"""Planted faults are caught and the same code without them is measured; planted slow-downs."""

import os
import time

import pytest
import torch

from attnbench.core.machine import this_machine, why_not
from attnbench.core.record import Status, read_record
from attnbench.core.wire import Job
from attnbench.features.selfcheck.selfcheck import BUDGET_S, judge
from attnbench.gate.plants import PLANTS
from attnbench.meter.cell import Bench
from attnbench.sweep.worker import _measured

DEADLY = (
    "a child left running", "a child that answers", "a forged answer", "the process ended",
    "a hang", "a segmentation fault", "inputs written to through .data and put back",
)  # fmt: skip
"""What is planted in a process of its own alone."""
HERE = [p for p in PLANTS if why_not(p.row, this_machine()) is None]
PRICED = [p for p in HERE if p.status is Status.IMPLAUSIBLE or p.shows]
TAME = [p for p in HERE if p.deed not in DEADLY and p not in PRICED]
FIRST = list({p.kind: p for p in reversed(TAME)}.values())
"""Of each kind the first that neither ends its process nor is told by its time."""
LEAVING = [p for p in HERE if p.kind in ("rewritten", "shared") and p not in FIRST]
"""What leaves a process changed, so that the next needs another one, which takes seconds."""


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
        return read_record(answer["record"]), answer["spoiled"]

    return measure


@pytest.mark.parametrize("plant", FIRST, ids=lambda plant: plant.deed)
def test_a_planted_fault_is_caught_by_its_status_and_a_reason_that_names_it(measured, plant):
    """The self-check itself, a slow test, has all but those that follow."""
    record, _ = measured(plant.row, plant.problem)
    found = judge(plant, record)
    assert found.caught, (found.status, found.said, found.wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("plant", LEAVING, ids=lambda plant: plant.deed)
def test_what_is_left_changed_is_caught_and_its_process_not_used_again(measured, plant):
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            record, spoiled = measured(plant.row, plant.problem)
            found = judge(plant, record)
            os.write(writing, repr((found.caught, spoiled, found.said)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.wait()
    put_back = "kernel" in plant.deed  # when the variant is dropped
    assert said.startswith(f"(True, {not put_back}, "), said
