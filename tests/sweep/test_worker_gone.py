"""A cell that takes the GPU's context with it, by a context that is made up."""

from types import SimpleNamespace

import pytest

from attnbench.core.record import Record, Status
from attnbench.gate import watch
from attnbench.meter import cell
from attnbench.sweep import worker
from impls.problem import Problem
from tests.sweep.build import timed

PROBLEM = Problem(q_len=8, kv_len=8)


@pytest.mark.parametrize(
    ("status", "gone", "readable", "ends", "reason"),
    [
        (Status.MEASURED, True, True, "failed", "no call to the GPU works any more"),
        (Status.MEASURED, True, False, "failed", "no call to the GPU works any more"),
        (Status.FAILED, True, True, "failed", "own"),  # what had failed already keeps its reason
        (Status.MEASURED, False, True, "measured", ""),
        (Status.MEASURED, False, False, "wrong", "what it left could not be looked at"),
    ],
)
def test_what_becomes_of_a_cell_whose_context_is_gone_or_that_left_what_nobody_can_read(
    monkeypatch, status, gone, readable, ends, reason
):
    well = status is Status.MEASURED
    more = {"time": timed(1.0)} if well else {"reason": "own"}
    made = Record(status=status, variant="v", problem=PROBLEM.to_dict(), **more)
    monkeypatch.setattr(cell, "poisoned", lambda device: gone)
    if not readable:
        monkeypatch.setattr(watch, "said", lambda before: 1 / 0)
    bench = SimpleNamespace(shared=None, measure=lambda job, before: made)
    told = worker._measured(bench, SimpleNamespace(problem=PROBLEM, variant=None))
    assert told["spoiled"] is (gone or not readable)
    assert told["record"]["status"] == ends and reason in told["record"].get("reason", "")
    assert (told["record"].get("time") is None) == (ends != "measured")
