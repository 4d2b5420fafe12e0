"""A cell's GPU is made the current one before anything is taken down of what variants share."""

import pytest

from attnbench.gate import watch
from attnbench.meter import clocks, probe
from attnbench.meter.timed import Job
from attnbench.sweep import worker
from impls import table


@pytest.fixture
def order(monkeypatch):
    """Which of the two came when."""
    seen, snapshot = [], watch.snapshot

    def taken():
        seen.append("taken down")
        return snapshot()

    monkeypatch.setattr(watch, "snapshot", taken)
    monkeypatch.setattr(clocks, "begin", seen.append)
    return seen


def job(cells):
    return Job(table().find("matmul"), cells.problem(q_len=64, kv_len=64), timed=False)


def test_of_a_cell(cells, order):
    answer = worker._measured(cells.bench, job(cells))
    assert answer["record"]["status"] == "measured"
    assert order[:2] == ["cpu", "taken down"]


def test_of_a_side_of_a_pair(cells, order):
    cells.bench.ready(job(cells))
    assert order[:2] == ["cpu", "taken down"]


def test_of_a_look(cells, order):
    assert probe.probe(job(cells), 30.0).reason == ""
    assert order[:2] == ["cpu", "taken down"]
