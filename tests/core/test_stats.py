"""Verdicts, intervals and quantiles against closed forms, brute force, NumPy and made-up worlds."""

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from msgspec import structs

from attnbench.core import stats
from attnbench.core.record import least_time
from attnbench.core.stats import Comparison, StopRule, Verdict, paired, unpaired
from impls.cost import Cost

FASTER, SLOWER = Verdict.FASTER, Verdict.SLOWER
EQUIVALENT, INCONCLUSIVE = Verdict.EQUIVALENT, Verdict.INCONCLUSIVE
FIRST = StopRule(0.01).first


def logs(*ratios):
    return [math.log(ratio) for ratio in ratios]


@pytest.mark.parametrize(
    ("ratio", "margin", "verdict"),
    [
        (1.0, 0.01, EQUIVALENT),
        (1.02, 0.01, SLOWER),
        (1.02, 0.05, EQUIVALENT),
        (1 / 1.0101, 0.01, FASTER),
        (1 / 1.0099, 0.01, EQUIVALENT),
    ],
)
def test_pairs_that_all_say_the_same_leave_no_doubt(ratio, margin, verdict):
    samples = unpaired([2e-3] * 30, [ratio * 2e-3] * 30, margin)
    pairs = paired(logs(*[ratio] * 30), margin)
    assert (pairs.paired, samples.paired) == (True, False)
    for found in (pairs, samples):
        assert found.verdict is verdict
        assert (found.low, found.ratio, found.high) == pytest.approx((ratio, ratio, ratio))
        assert found.smallest_effect == pytest.approx(margin)
        assert (found.margin, found.n) == (margin, 30)


DRAWS = {
    "normal": lambda rng, n: rng.normal(0, 0.01, n),
    "exponential": lambda rng, n: rng.exponential(0.01, n) - 0.01 * math.log(2),
    "heavy tails": lambda rng, n: 0.01 * rng.standard_t(1.5, n),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_the_interval_misses_the_true_median_no_more_than_it_says(draw):
    rng, missed = np.random.default_rng(7), [0, 0]
    for _ in range(400):
        a, b = (DRAWS[draw](rng, n) for n in (20, 35))
        pairs, samples = paired(list(b), 0.01), unpaired(list(np.exp(a)), list(np.exp(b)), 0.05)
        for way, found in enumerate((pairs, samples)):
            missed[way] += not found.low <= 1 <= found.high
    assert max(missed) <= 4 + 3 * math.sqrt(4)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("beyond", "n", "p"),
    [(20, 20, 2 / 2**20), (18, 20, 2 * (1 + 20 + 190) / 2**20), (4, 5, 2 * 6 / 32), (30, 60, 1)],
)
def test_p_of_pairs_is_the_sign_tests_of_what_is_beyond_the_margin(beyond, n, p, sign):
    found = paired([sign * math.log(1.2)] * beyond + [0.0] * (n - beyond), 0.01)
    assert found.p == pytest.approx(p)
    within = [sign * math.log(1.009)] * 30
    assert (paired(within, 0.01).p, paired(within, 0.005).p) == (1.0, pytest.approx(2 / 2**30))


def test_p_of_samples_is_that_of_how_many_spreads_they_lie_beyond_the_margin():
    spread, n = 0.1, 400
    # the median of n normal numbers scatters by sqrt(pi / 2 n) of their own spread
    scatter = spread * math.sqrt(math.pi / 2 / n) * math.sqrt(2)
    a = np.exp([spread * NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)])
    for away in (0.5, 1.0, 2.0):
        found = unpaired(list(a), list(a * 1.05 * math.exp(away * scatter)), 0.05)
        assert found.p == pytest.approx(math.erfc(away / math.sqrt(2)), rel=0.25)
    assert unpaired(list(a), list(a), 0.05).p == 1.0


@pytest.mark.parametrize(
    ("judged", "left"),
    [
        # alpha 0.01 over 4, 3, 2, 1: 0.0025, 0.0033, 0.005, 0.01
        ([0.004, 0.0001, 0.0032, 0.02], [FASTER, FASTER, FASTER, INCONCLUSIVE]),
        # 0.0034 is above 0.0033, so 0.004 falls too, though it is below its own 0.005
        ([0.004, 0.0001, 0.0034, 0.02], [INCONCLUSIVE, FASTER, INCONCLUSIVE, INCONCLUSIVE]),
        # what is equal stays equal and counts as one of many
        ([0.004, None, None], [INCONCLUSIVE, EQUIVALENT, EQUIVALENT]),
        ([0.004, None], [FASTER, EQUIVALENT]),
        ([0.5], [FASTER]),
        ([], []),
    ],
)
def test_of_many_only_those_stand_that_survive_the_correction(judged, left):
    before = [
        Comparison(FASTER if p else EQUIVALENT, 0.9, 0.8, 0.95, 0.01, 0.02, 40, p or 1.0, True)
        for p in judged
    ]
    after = [structs.replace(old, verdict=new) for old, new in zip(before, left, strict=True)]
    assert stats.holm([None, *before]) == [None, *after]


class Machine:
    """Time passes as calls are made; ``slow`` says how much slower the machine is at a moment."""

    def __init__(self, slow=lambda t: 1.0, noise=0.0, seed=0):
        self.now, self.slow, self.noise = 0.0, slow, noise
        self.chance, self.log, self.moved = random.Random(seed), [], []


class Side:
    def __init__(self, machine, name, seconds):
        self.machine, self.name, self.seconds = machine, name, seconds

    def fresh(self):
        self.machine.moved.append(self.name)

    def sample(self):
        m = self.machine
        taken = self.seconds * m.slow(m.now) * math.exp(m.chance.gauss(0, m.noise))
        m.now += taken
        m.log.append(self.name)
        return taken


@pytest.fixture(autouse=True)
def time_stands_still(monkeypatch):
    monkeypatch.setattr(stats, "perf_counter", lambda: 0.0)


def taken(ratio, rule=None, seed=0, chance=None, **machine):
    m = Machine(seed=seed, **machine)
    chance = chance or random.Random(seed)
    return stats.compare(Side(m, "a", 1.0), Side(m, "b", ratio), rule or StopRule(0.01), chance), m


@pytest.mark.parametrize(("ratio", "verdict"), [(1.5, SLOWER), (0.5, FASTER), (1.0, EQUIVALENT)])
def test_a_clear_difference_is_decided_at_the_first_look(ratio, verdict):
    found, machine = taken(ratio, noise=0.001)
    assert found.verdict is verdict
    assert found.ratio == pytest.approx(ratio, rel=0.01)
    assert (found.n, len(found.a_s), len(found.b_s)) == (FIRST,) * 3
    assert found.stop == "decided"
    assert sorted(machine.moved) == ["a", "a", "b", "b"]
    found, _ = taken(ratio)
    assert (found.a_s, found.b_s) == ([1.0] * FIRST, [ratio] * FIRST)
    assert found.medians == (1.0, ratio)


def test_pairs_are_doubled_until_the_cap_and_each_look_is_judged_at_its_share(monkeypatch):
    asked, judged = [], stats.paired

    def noted(ratios, margin, **more):
        asked.append((len(ratios), more))
        return judged(ratios, margin, **more)

    monkeypatch.setattr(stats, "paired", noted)
    assert StopRule(0.01).looks == [40, 80, 160, 320, 640, 1280, 2560]
    rule = StopRule(0.01, cap=160)
    found, machine = taken(1.01, rule, noise=0.05)
    assert found.verdict is INCONCLUSIVE
    assert (found.n, found.stop) == (160, "cap")
    assert asked == [(n, {"confidence": rule.confidence}) for n in (40, 80, 160)]
    assert sorted(machine.moved) == ["a"] * 8 + ["b"] * 8, "every twenty lie elsewhere"


def test_no_look_begins_after_the_budget(monkeypatch):
    ticks = iter([0.0, 5.0, 31.0])
    monkeypatch.setattr(stats, "perf_counter", lambda: next(ticks))
    found, _ = taken(1.01, StopRule(0.01, budget_s=30.0), noise=0.05)
    assert (found.n, found.stop) == (80, "budget")


def test_each_goes_first_as_often_as_the_other_in_an_order_nobody_knows():
    (_, one), (_, other) = (taken(1.0, noise=0.001, chance=random.SystemRandom()) for _ in "ab")
    firsts, seconds = one.log[::2], one.log[1::2]
    assert sorted(firsts) == ["a"] * 20 + ["b"] * 20
    assert all({x, y} == {"a", "b"} for x, y in zip(firsts, seconds, strict=True))
    assert one.log != other.log
    _, long = taken(1.01, StopRule(0.01, cap=640), noise=0.05)
    assert set(long.moved[::2]) == {"a", "b"}, "either may be the first that moves elsewhere"


WALK = np.cumsum(np.random.default_rng(19).normal(0, 0.01, 4000))
"""The logarithm of a machine's speed that wanders."""


@pytest.mark.parametrize(
    ("slow", "equal", "cap"),
    [
        pytest.param(lambda t: 1.0 if t < 15 else 1.3, 90, 2560, id="a step in the middle"),
        pytest.param(lambda t: math.exp(WALK[int(t) % len(WALK)]), 90, 2560, id="a walk"),
        pytest.param(lambda t: 1 + 0.02 * t, 0, 320, id="a climb"),  # 2 % from one to the next
    ],
)
def test_a_machine_that_drifts_makes_no_difference_and_hides_none(slow, equal, cap):
    rule, some = StopRule(0.01, cap=cap), range(100)
    same = [taken(1.0, rule, slow=slow, noise=0.005, seed=seed)[0].verdict for seed in some]
    assert not {FASTER, SLOWER} & set(same)
    assert same.count(EQUIVALENT) >= equal
    slower = [taken(1.05, slow=slow, noise=0.03, seed=seed)[0].verdict for seed in range(30)]
    assert slower.count(SLOWER) >= 29


@pytest.mark.parametrize(("n", "low", "high"), [(20, 6, 15), (50, 18, 33)])
def test_the_ranks_are_the_textbooks(n, low, high):
    assert stats.median_interval(np.random.default_rng(0).permutation(n) + 1.0) == (low, high)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 33])
def test_the_summary_is_numpys(n):
    samples = list(np.random.default_rng(n).lognormal(size=n))
    got = stats.summary(samples)
    assert got.median == pytest.approx(np.median(samples))
    assert (got.q25, got.q75) == pytest.approx(tuple(np.percentile(samples, [25, 75])))
    assert got.least == min(samples)
    assert (got.low, got.high) == stats.median_interval(samples)
    assert got.low <= got.median <= got.high


GIVEN = {"flops": {"float32": 1e9}, "copy": {"1000": 8e9, "100000": 4e9, "10000000": 1e9}}


@pytest.mark.parametrize(
    ("flops", "nbytes", "seconds"),
    [
        (10**9, 500, 1.0),
        (10, 10**7, 0.01),
        (0, 1000, 1000 / 8e9),  # the fastest copy that is as large
        (0, 1001, 1001 / 4e9),
        (0, 10**12, 1000.0),
    ],
)
def test_the_least_time_is_bound_by_the_product_or_by_the_copy(flops, nbytes, seconds):
    assert least_time(Cost(flops, nbytes), "float32", GIVEN) == pytest.approx(seconds)
    assert least_time(Cost(1, 1), "bfloat16", GIVEN) is None  # its product was not measured
