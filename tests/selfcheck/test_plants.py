"""Planted faults are caught and the same code without them is measured; planted slow-downs."""

import math
import os
import time
from dataclasses import replace

import pytest
import torch

from attnbench.core.job import Job
from attnbench.core.machine import this_machine, why_not
from attnbench.core.record import Record, Status
from attnbench.core.stats import Verdict
from attnbench.features.selfcheck.selfcheck import BUDGET_S, judge, judge_slow_down, run_slow_downs
from attnbench.gate.plant_code import SLICES, build_slices
from attnbench.gate.plants import PLANTS, SLICES_PROBLEM, SLOW_DOWNS, slices
from attnbench.meter.cell import Bench
from attnbench.sweep.compare import Compared
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.worker import _measured
from tests.times import in_pairs, pairs_answer

DEADLY = (
    "a child left running", "a child that answers", "a forged answer", "the process ended",
    "a hang", "a segmentation fault", "inputs written to through .data and put back",
)  # fmt: skip
"""What is planted in a process of its own alone."""
HERE = [p for p in PLANTS if why_not(p.row, this_machine()) is None]
TAME = [p for p in HERE if p.deed not in DEADLY and p.status is not Status.IMPLAUSIBLE]
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
        return Record.from_dict(answer["record"]), answer["spoiled"]

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


@pytest.mark.parametrize(
    "plant",
    [pytest.param(p, id=p.deed, marks=[pytest.mark.slow] * (p not in FIRST)) for p in HERE],
)
def test_the_same_code_without_the_deed_is_measured(measured, plant):
    honest = replace(plant.row, given={**plant.row.given, "deed": False})
    record, spoiled = measured(honest, plant.problem)
    assert (record.status, record.reason) == (Status.MEASURED, "")
    assert spoiled is ("standing thread" in plant.deed)  # a new worker for whom it would disturb
    if plant.shows is not None:
        assert not judge(plant, record).caught


def found(ratio, spread=0.0, margin=0.01, n=45):
    logs = [math.log(ratio) + spread * (i % 9 - 4) for i in range(n)]
    return Compared(problem=SLICES_PROBLEM, comparison=in_pairs(logs, margin))


WIDE = 0.1
"""A spread in which five per cent can't be seen."""
NARROW = 0.004
"""One in which two per cent can just be seen."""


def test_a_verdict_is_right_or_wrong_at_its_margin():
    for extra, ratio, spread, margin, right in (
        (0, 1.00, 0.0, 0.01, True),
        (0, 1.05, 0.0, 0.01, False),
        (0, 1.02, WIDE, 0.01, None),
        (1, 1.005, 0.0, 0.01, True),
        (1, 0.95, 0.0, 0.01, False),
        (2, 1.00, 0.0, 0.01, False),
        (2, 1.00, 0.0, 0.03, True),
        (5, 1.05, 0.0, 0.01, True),
        (5, 1.00, 0.0, 0.01, False),
        (5, 1.05, WIDE, 0.01, None),  # inconclusive, and so little could not have been seen
        (5, 1.0105, 0.0004, 0.01, False),  # inconclusive, though it could have been seen
        (2, 1.0165, NARROW, 0.01, None),  # from below the margin to above what was planted
        (2, 1.0115, NARROW, 0.01, False),  # from below the margin to less than what was planted
    ):
        outcome = judge_slow_down(extra, found(ratio, spread, margin))
        assert outcome.caught is right, outcome
        assert bool(outcome.wanted) is (right is False)


class Engine:
    def __init__(self, *ratios, spread=0.0):
        self.asked, self.ratios, self.spread = [], iter(ratios), spread

    def ask(self, question, limit_s):
        self.asked.append(question)
        margin, ratio = question["margin"] or 0.017, math.log(next(self.ratios, 1.0))
        logs = [ratio + self.spread * (i % 9 - 4) for i in range(40)]
        return pairs_answer(logs, margin)


def test_each_is_held_against_the_same_code_at_the_margin_of_the_first():
    engine = Engine()
    outcomes = list(run_slow_downs(engine, seed=1))
    more = [f"{n} % more work" for n in (1, 2, 5, 10)]
    assert [o.deed for o in outcomes] == ["no more work", *more]
    assert [o.caught for o in outcomes] == [True, True, False, False, False]
    assert [q["margin"] for q in engine.asked] == [None] + [0.017] * 7
    asked_in_all = [0, 1, *(n for n in (2, 5, 10) for _ in range(2))]  # who was wrong twice
    for extra, question in zip(asked_in_all, engine.asked, strict=True):
        reference, judged = (job["variant"] for job in question["compare"])
        assert reference["given"] == {}
        assert judged["given"] == ({"extra": extra} if extra else {})
    assert all(Verdict(o.status) is Verdict.EQUIVALENT for o in outcomes)


def test_what_was_wrong_by_chance_is_asked_again_and_says_so():
    engine = Engine(1.03, 1.0, 1.01, 1.02, 1.05, 1.10)  # the same code, at first slower
    outcomes = list(run_slow_downs(engine, seed=1))
    assert [o.caught for o in outcomes] == [True] * 5
    assert ["again" in o.said for o in outcomes] == [True] + [False] * 4
    assert len(engine.asked) == 6


def test_what_can_not_be_told_now_and_a_worker_that_died_are_not_asked_again():
    class Dead(Engine):
        def ask(self, question, limit_s):
            super().ask(question, limit_s)
            raise WorkerLost("it died", "", timed_out=False)

    for engine, caught in ((Engine(spread=WIDE), None), (Dead(), False)):
        outcomes = list(run_slow_downs(engine, seed=1))
        assert [o.caught for o in outcomes] == [caught] * 5
        assert len(engine.asked) == 5


@pytest.mark.parametrize("extra", [SLOW_DOWNS[0], SLOW_DOWNS[-1]])
def test_so_many_hundredths_more_products_and_the_same_output(extra, monkeypatch):
    counted = []
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: counted.append(1) or product(a, b))
    p = SLICES_PROBLEM
    q, k, v = (torch.randn(1, p.heads, p.q_len, p.head_dim) for _ in range(3))
    out = build_slices(SLICES_PROBLEM, extra)(q, k, v)
    assert len(counted) == 2 * (SLICES + extra)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(out, want, atol=1e-5)
    assert slices(extra).supports(SLICES_PROBLEM) is None
