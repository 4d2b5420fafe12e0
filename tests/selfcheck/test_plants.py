"""Each planted fault is caught, by the right status and a reason that names the deed; and the same
code without the deed is measured."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from attnbench.core.machine import this_machine, why_not
from attnbench.core.record import Status
from attnbench.core.settings import Settings
from attnbench.features.selfcheck.selfcheck import judge, run_plants
from attnbench.gate.plants import PLANTS
from attnbench.sweep.engine import LocalEngine

DEADLY = (
    "a child left running", "a child that answers", "a forged answer", "the process ended",
    "a hang", "a segmentation fault", "inputs written to through .data and put back",
)  # fmt: skip
"""What is planted in a process of its own alone."""
HERE = [p for p in PLANTS if why_not(p.row, this_machine()) is None]
FIRST = list({p.kind: p for p in reversed(HERE) if p.deed not in DEADLY}.values())


@pytest.mark.parametrize("plant", FIRST, ids=lambda plant: plant.deed)
def test_a_planted_fault_is_caught_by_its_status_and_a_reason_that_names_it(measured, plant):
    """One of each kind: the self-check itself, which is a slow test, has them all."""
    record, _ = measured(plant.row, plant.problem)
    found = judge(plant, record)
    assert found.caught, (found.status, found.said, found.wanted)


@pytest.mark.parametrize(
    "plant",
    [pytest.param(p, id=p.deed, marks=[pytest.mark.slow] * (p not in FIRST)) for p in HERE],
)
def test_the_same_code_without_the_deed_is_measured(measured, plant):
    record, spoiled = measured(plant.honest, plant.problem)
    assert (record.status, record.reason) == (Status.MEASURED, "")
    assert spoiled is ("standing thread" in plant.deed)  # a new worker for whom it would disturb
    if plant.shows is not None:
        assert not judge(plant, record).caught


NOBODY = SimpleNamespace(cell=lambda record, done, total, left_s: None)


def test_a_fault_that_may_kill_its_process_is_caught_through_the_sweep():
    (hang,) = (p for p in PLANTS if p.deed == "a hang")
    plant = replace(hang, limit_s=1.0, said="still running after 1 s")
    with LocalEngine(Settings()) as engine:
        (found,) = run_plants(this_machine(), engine, 0, NOBODY, [plant])
    assert found.caught, (found.status, found.said, found.wanted)
