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
TIME = timed(1.0)


@pytest.fixture
def ended(monkeypatch):
    """What becomes of a cell, its context gone or not, what it left readable or not."""

    def measured(status, gone, readable=True):
        well = status is Status.MEASURED
        made = Record(
            status=status,
            variant="v",
            problem=PROBLEM.to_dict(),
            time=TIME if well else None,
            reason="" if well else "own",
        )
        monkeypatch.setattr(cell, "poisoned", lambda device: gone)
        bench = SimpleNamespace(shared=None, measure=lambda job, before: made)
        if not readable:
            monkeypatch.setattr(watch, "said", lambda before: 1 / 0)
        return worker._measured(bench, SimpleNamespace(problem=PROBLEM, variant=None))

    return measured


@pytest.mark.parametrize("readable", [True, False])
def test_what_was_measured_and_left_no_gpu_is_failed(ended, readable):
    told = ended(Status.MEASURED, gone=True, readable=readable)
    assert told["spoiled"] is True
    assert told["record"]["status"] == "failed"
    assert "no call to the GPU works any more" in told["record"]["reason"]
    assert told["record"].get("time") is None


def test_what_had_failed_already_keeps_its_reason(ended):
    told = ended(Status.FAILED, gone=True)
    assert (told["record"]["status"], told["record"]["reason"]) == ("failed", "own")
    assert told["spoiled"] is True


def test_where_the_gpu_is_as_it_was_the_record_stands(ended):
    told = ended(Status.MEASURED, gone=False)
    assert (told["record"]["status"], told["spoiled"]) == ("measured", False)
    assert ended(Status.MEASURED, gone=False, readable=False)["record"]["status"] == "wrong"
