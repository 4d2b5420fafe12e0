"""How probable a difference is by chance, for one cell and among many."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest

from attnbench.core.stats import Comparison, Verdict, holm, paired, unpaired

FASTER, SLOWER = Verdict.FASTER, Verdict.SLOWER
EQUIVALENT, INCONCLUSIVE = Verdict.EQUIVALENT, Verdict.INCONCLUSIVE


# ---- how probable --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beyond", "n", "p"),
    [
        (20, 20, 2 / 2**20),
        (19, 20, 2 * 21 / 2**20),
        (18, 20, 2 * (1 + 20 + 190) / 2**20),
        (5, 5, 2 / 32),
        (4, 5, 2 * 6 / 32),
        (3, 5, 1.0),
        (30, 60, 1.0),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_p_of_pairs_is_the_sign_tests(beyond, n, p, sign):
    ratios = [sign * math.log(1.2)] * beyond + [0.0] * (n - beyond)
    assert paired(ratios, 0.01).p == pytest.approx(p)


def test_p_counts_what_is_beyond_the_margin_and_nothing_else():
    near = [math.log(1.009)] * 30
    assert paired(near, 0.01).p == 1.0
    assert paired(near, 0.005).p == pytest.approx(2 / 2**30)


def test_p_of_a_thousand_pairs_is_a_number():
    p = paired([0.5] * 2560, 0.01).p
    assert 0 <= p < 1e-300


def test_p_of_samples_is_that_of_how_many_spreads_they_lie_beyond_the_margin():
    spread, n = 0.1, 400
    # the median of n normal numbers scatters by sqrt(pi / 2 n) of their own spread
    scatter = spread * math.sqrt(math.pi / 2 / n) * math.sqrt(2)
    a = np.exp([spread * NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)])
    for away in (0.5, 1.0, 2.0):
        found = unpaired(list(a), list(a * 1.05 * math.exp(away * scatter)), 0.05)
        assert found.p == pytest.approx(math.erfc(away / math.sqrt(2)), rel=0.25)
    assert unpaired(list(a), list(a), 0.05).p == 1.0


# ---- many cells ----------------------------------------------------------------------------------


def judged(p, verdict=FASTER):
    return Comparison(verdict, 0.9, 0.8, 0.95, 0.01, 0.02, 40, p)


def test_of_many_only_those_stand_that_survive_the_correction():
    # alpha 0.01 over 4, 3, 2, 1: 0.0025, 0.0033, 0.005, 0.01
    kept = holm([judged(0.004), judged(0.0001), judged(0.0032), judged(0.02)])
    assert [c.verdict for c in kept] == [FASTER, FASTER, FASTER, INCONCLUSIVE]


def test_after_the_first_that_falls_all_fall():
    # 0.0034 is above 0.0033, so 0.004 falls too, though it is below its own 0.005
    kept = holm([judged(0.004), judged(0.0001), judged(0.0034), judged(0.02)])
    assert [c.verdict for c in kept] == [INCONCLUSIVE, FASTER, INCONCLUSIVE, INCONCLUSIVE]


def test_what_is_equal_stays_equal_and_counts_as_one_of_many():
    kept = holm([judged(0.004), judged(1.0, EQUIVALENT), judged(1.0, EQUIVALENT)])
    assert [c.verdict for c in kept] == [INCONCLUSIVE, EQUIVALENT, EQUIVALENT]
    assert holm([judged(0.004), judged(1.0, EQUIVALENT)])[0].verdict is FASTER


def test_one_alone_needs_no_correction():
    assert holm([judged(0.5)])[0].verdict is FASTER
    assert holm([]) == []


def test_a_hundred_cells_against_themselves_give_no_verdict_in_most_worlds():
    rng = np.random.default_rng(29)
    worlds = 0
    for _ in range(20):
        found = [paired(rng.normal(0.01, 0.004, 40), 0.01, seed=c) for c in range(30)]
        worlds += any(c.verdict in (FASTER, SLOWER) for c in holm(found))
    assert worlds <= 1


def test_nothing_but_the_verdict_changes():
    before = [judged(0.5), judged(0.6)]
    for old, new in zip(before, holm(before), strict=True):
        assert {**old.to_dict(), "verdict": INCONCLUSIVE} == new.to_dict()


def test_what_is_no_number_is_sent_as_nothing():
    endless = Comparison(INCONCLUSIVE, 0.9, 0.0, math.inf, 0.01, math.nan, 40, 1.0)
    sent = json.loads(json.dumps(endless.to_dict(), allow_nan=False))
    assert (sent["high"], sent["smallest_effect"], sent["low"]) == (None, None, 0.0)
