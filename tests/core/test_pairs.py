"""Pairs: who goes when, when it is enough, and what a machine that drifts can't do to a verdict."""

import json
import math
import random

import pytest

from attnbench.core import stats
from attnbench.core.stats import Comparison, Pairs, StopRule, Verdict, compare

FIRST = StopRule(0.01).first


class Machine:
    """Time passes as calls are made; ``slow`` says how much slower the machine is at a moment."""

    def __init__(self, slow=lambda t: 1.0, noise=0.0, seed=0):
        self.now, self.slow, self.noise = 0.0, slow, noise
        self.chance, self.log, self.moved = random.Random(seed), [], []

    def side(self, name, seconds):
        return Side(self, name, seconds)


class Side:
    def __init__(self, machine, name, seconds):
        self.machine, self.name, self.seconds, self.prepared = machine, name, seconds, 0

    def fresh(self):
        self.prepared += 1
        self.machine.moved.append(self.name)

    def sample(self):
        m = self.machine
        taken = self.seconds * m.slow(m.now) * math.exp(m.chance.gauss(0, m.noise))
        m.now += taken
        m.log.append(self.name)
        return taken


@pytest.fixture(autouse=True)
def time_stands_still(monkeypatch):
    monkeypatch.setattr("attnbench.core.stats.perf_counter", lambda: 0.0)


def paired(ratio, rule=None, seed=0, **machine):
    m = Machine(seed=seed, **machine)
    a, b = m.side("a", 1.0), m.side("b", ratio)
    return compare(a, b, rule or StopRule(0.01), random.Random(seed)), m, (a, b)


def test_a_clear_difference_is_decided_at_the_first_look():
    for ratio, verdict in ((1.5, Verdict.SLOWER), (0.5, Verdict.FASTER), (1.0, Verdict.EQUIVALENT)):
        stats, _, sides = paired(ratio, noise=0.001)
        assert stats.comparison.verdict is verdict
        assert stats.comparison.ratio == pytest.approx(ratio, rel=0.01)
        assert (stats.comparison.n, len(stats.a_s), len(stats.b_s)) == (FIRST,) * 3
        assert stats.stop == "decided"
        assert [s.prepared for s in sides] == [2, 2]


def test_the_ratio_is_of_the_second_to_the_first():
    stats, _, _ = paired(2.0)
    assert stats.comparison.ratio == pytest.approx(2.0)
    assert stats.a_s == [1.0] * FIRST
    assert stats.b_s == [2.0] * FIRST


def test_pairs_are_doubled_until_the_cap_and_every_twenty_lie_elsewhere():
    stats, _, sides = paired(1.01, StopRule(0.01, cap=160), noise=0.05)
    assert stats.comparison.verdict is Verdict.INCONCLUSIVE
    assert (stats.comparison.n, stats.stop) == (160, "cap")
    assert StopRule(0.01, cap=160).looks == [40, 80, 160]
    assert [s.prepared for s in sides] == [8, 8]


@pytest.mark.parametrize("cap", [40, 100, 2560])
def test_the_looks_end_at_the_cap_and_share_one_confidence(cap):
    rule = StopRule(0.01, cap=cap)
    assert rule.looks[0] == FIRST
    assert rule.looks[-1] == cap
    assert len(rule.looks) * (1 - rule.confidence) == pytest.approx(0.01)


def test_every_look_is_judged_at_its_share_of_the_confidence(monkeypatch):
    asked, judged = [], stats.paired

    def noted(ratios, margin, **more):
        asked.append((len(ratios), more))
        return judged(ratios, margin, **more)

    monkeypatch.setattr(stats, "paired", noted)
    rule = StopRule(0.01, cap=160)
    paired(1.01, rule, noise=0.05)
    assert asked[1:] == [(n, {"confidence": rule.confidence}) for n in (40, 80, 160)]


def test_no_look_begins_after_the_budget(monkeypatch):
    ticks = iter([0.0, 5.0, 31.0])
    monkeypatch.setattr("attnbench.core.stats.perf_counter", lambda: next(ticks))
    stats, _, _ = paired(1.01, StopRule(0.01, budget_s=30.0), noise=0.05)
    assert (stats.comparison.n, stats.stop) == (80, "budget")


def test_each_goes_first_as_often_as_the_other_in_an_order_nobody_knows():
    _, machine, _ = paired(1.0, noise=0.001)
    firsts = machine.log[::2]
    assert sorted(firsts) == ["a"] * 20 + ["b"] * 20
    assert all(
        {x, y} == {"a", "b"} for x, y in zip(machine.log[::2], machine.log[1::2], strict=True)
    )
    _, other, _ = paired(1.0, noise=0.001, seed=1)
    assert firsts != other.log[::2]


def test_nobody_can_know_the_order_beforehand():
    logs = []
    for _ in range(2):
        m = Machine()
        compare(m.side("a", 1.0), m.side("b", 1.0), StopRule(0.01))
        logs.append(m.log)
    assert logs[0] != logs[1]


def test_either_may_be_the_first_that_moves_elsewhere():
    _, machine, _ = paired(1.01, StopRule(0.01, cap=640), noise=0.05)
    assert set(machine.moved[::2]) == {"a", "b"}
    assert all(x != y for x, y in zip(machine.moved[::2], machine.moved[1::2], strict=True))


@pytest.mark.parametrize(
    "slow",
    [
        lambda t: 1.0 + 0.002 * t,  # ever slower: ten per cent over the first look
        lambda t: 1.0 if t < 15 else 1.3,  # a step in the middle
        lambda t: 1.0 + 0.2 * math.sin(t / 7),
    ],
    ids=["drift", "step", "swing"],
)
def test_a_machine_that_drifts_makes_no_difference(slow):
    found = [paired(1.0, slow=slow, noise=0.005, seed=seed)[0] for seed in range(100)]
    verdicts = [p.comparison.verdict for p in found]
    assert not {Verdict.FASTER, Verdict.SLOWER} & set(verdicts)
    assert verdicts.count(Verdict.EQUIVALENT) >= 90


@pytest.mark.parametrize(("ratio", "least"), [(1.03, 90), (1.05, 99)])
def test_a_true_slow_down_is_seen_through_noise_and_drift(ratio, least):
    slow = lambda t: 1.0 + 0.2 * math.sin(t / 7)  # noqa: E731
    found = [paired(ratio, slow=slow, noise=0.03, seed=seed)[0] for seed in range(100)]
    assert sum(p.comparison.verdict is Verdict.SLOWER for p in found) >= least


def test_pairs_come_back_as_they_were_sent():
    stats, _, _ = paired(1.1, noise=0.01)
    back = Pairs.from_dict(stats.to_dict())
    assert back == stats
    assert isinstance(back.comparison, Comparison)
    assert isinstance(back.comparison.verdict, Verdict)


def test_kept_samples_are_under_the_names_of_the_two():
    stats, _, _ = paired(2.0)
    stats.names = ("sdpa", "chunked")
    kept = json.loads(json.dumps(stats.to_dict()))
    assert kept["samples_s"] == {"sdpa": [1.0] * FIRST, "chunked": [2.0] * FIRST}
    assert Pairs.from_dict(kept) == stats
    stats.names = ("sdpa", "sdpa")
    again = Pairs.from_dict(json.loads(json.dumps(stats.to_dict())))
    assert (again.names, again.b_s) == (("sdpa", "sdpa again"), [2.0] * FIRST)


def test_samples_of_older_files_are_read():
    stats, _, _ = paired(2.0)
    old = {
        "seq": 64,
        "comparison": stats.comparison.to_dict(),
        "a_s": stats.a_s,
        "b_s": stats.b_s,
        "stop": stats.stop,
    }
    assert Pairs.from_dict(old) == stats
