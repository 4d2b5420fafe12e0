"""The calls of a side, fresh each time, and the floor under what can be told of two sides."""

import itertools
import math

import pytest

from attnbench.core.stats import LEAST_MARGIN, Pairs, StopRule, Verdict, paired
from attnbench.gate.findings import Wrong
from attnbench.meter import pairs
from attnbench.meter.cell import NotReady
from attnbench.meter.pairs import ReadyCalls, compare_ready, floor_of
from attnbench.meter.timed import Job

LIES_LATER = """
def build(problem):
    inner, calls = right(problem), []
    def attend(q, k, v):
        calls.append(1)
        return inner(q, k, v) * (1 if len(calls) < 40 else 1.5)
    return attend
"""
INVERTED = "def build(problem):\n    return lambda q, k, v: v * 0\n"


def ready(cells, code="build = right"):
    return cells.bench.ready(Job(cells.variant(code), cells.problem()))


def test_each_fresh_side_lies_elsewhere(cells):
    calls = ReadyCalls(ready(cells))
    places = set()
    for _ in range(3):
        calls.fresh()
        places.add(calls._timed.call.leaves[0].data_ptr())
    assert len(places) == 3


def test_what_a_side_returned_is_checked_before_its_tensors_go(cells):
    calls = ReadyCalls(ready(cells, LIES_LATER))
    with pytest.raises(Wrong, match="planted: while it was timed"):
        for _ in range(20):
            calls.fresh()
            for _ in range(5):
                calls.sample()


def test_what_is_not_ready_says_why(cells):
    with pytest.raises(NotReady) as stopped:
        ready(cells, INVERTED)
    assert stopped.value.record.status == "wrong"


def scripted_pairs(logs, confidence=0.99):
    return Pairs(
        paired(logs, 0.01, confidence=confidence), [0.002] * len(logs), [0.002] * len(logs)
    )


def test_the_floor_is_how_far_intervals_lie_off_nothing(cells, monkeypatch):
    shift = iter([0.0] * 18 + [0.03, -0.05])
    made = lambda *_: scripted_pairs([next(shift)] * 40)  # noqa: E731 - all pairs alike: no noise
    monkeypatch.setattr(pairs, "compare_ready", made)
    monkeypatch.setattr(pairs, "perf_counter", lambda: 0.0)
    found = floor_of(None)
    assert found.trials == 20
    assert math.log1p(found.floor) == pytest.approx(0.031, abs=1e-6)  # between 19th and 20th
    assert found.call_s == 0.002


def test_a_floor_rests_on_eight_comparisons_at_least_that_decide_at_the_least_margin(monkeypatch):
    rules, now = [], itertools.count(0.0, 100.0)  # each takes longer than all of them may
    made = lambda a, b, rule: rules.append(rule) or scripted_pairs([0.0] * 40)  # noqa: E731
    monkeypatch.setattr(pairs, "compare_ready", made)
    monkeypatch.setattr(pairs, "perf_counter", lambda: next(now))
    assert floor_of(None, 4.0).trials == 8
    assert rules == [StopRule(LEAST_MARGIN, cap=640, budget_s=0.5)] * 8


def test_what_is_always_off_to_the_faster_side_is_as_far_apart_and_has_the_middle_of_its_times(
    monkeypatch,
):
    off = Pairs(paired([-0.03] * 40, 0.01), [9.0, 0.002, 0.002, 0.002], [0.002] * 4)
    monkeypatch.setattr(pairs, "compare_ready", lambda *_: off)
    monkeypatch.setattr(pairs, "perf_counter", lambda: 0.0)
    found = floor_of(None)
    assert (found.apart, found.floor) == pytest.approx((math.expm1(0.03),) * 2)
    assert found.call_s == 0.002


def test_noise_that_the_interval_knows_of_is_no_floor(monkeypatch):
    logs = [0.05 * (i % 9 - 4) + 0.01 for i in range(45)]
    monkeypatch.setattr(pairs, "compare_ready", lambda *_: scripted_pairs(logs))
    monkeypatch.setattr(pairs, "perf_counter", lambda: 0.0)
    found = floor_of(None)
    assert found.floor == 0.0
    assert found.apart == pytest.approx(math.expm1(0.01), rel=0.01)


def test_a_verdict_on_the_same_code_is_never_a_difference(cells):
    one = ready(cells)
    told = [compare_ready(one, one, StopRule(0.10, cap=80)).comparison.verdict for _ in range(10)]
    assert not {Verdict.FASTER, Verdict.SLOWER} & set(told)
