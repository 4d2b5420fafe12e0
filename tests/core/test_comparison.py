"""Verdicts: against closed forms, and against worlds in which the truth is known."""

import itertools
import json
import math

import numpy as np
import pytest

from attnbench.core.stats import (
    LEAST_PAIRS,
    VERDICT_CONFIDENCE,
    Comparison,
    Verdict,
    bootstrap_medians,
    paired,
    unpaired,
)

FASTER, SLOWER = Verdict.FASTER, Verdict.SLOWER
EQUIVALENT, INCONCLUSIVE = Verdict.EQUIVALENT, Verdict.INCONCLUSIVE


def logs(*ratios):
    return [math.log(ratio) for ratio in ratios]


# ---- the four verdicts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "margin", "verdict"),
    [
        (0.5, 0.01, FASTER),
        (2.0, 0.01, SLOWER),
        (1.0, 0.01, EQUIVALENT),
        (0.98, 0.01, FASTER),
        (1.02, 0.01, SLOWER),
        (1.005, 0.01, EQUIVALENT),
        (1.02, 0.05, EQUIVALENT),
        (1 / 1.0101, 0.01, FASTER),
        (1 / 1.0099, 0.01, EQUIVALENT),
    ],
)
def test_pairs_that_all_say_the_same_leave_no_doubt(ratio, margin, verdict):
    for found in (
        paired(logs(*[ratio] * 30), margin),
        unpaired([2e-3] * 30, [ratio * 2e-3] * 30, margin),
    ):
        assert found.verdict is verdict
        assert (found.low, found.ratio, found.high) == pytest.approx((ratio, ratio, ratio))
        assert found.smallest_effect == pytest.approx(margin)
        assert (found.margin, found.n) == (margin, 30)


def test_an_interval_that_reaches_over_the_margin_is_inconclusive():
    for ratios in ([0.99, 1.03] * 20, [0.9, 1.1] * 20, [1.0] * 14 + [1.2] * 13):
        found = paired(logs(*ratios), 0.01)
        assert found.low < 1.01 < found.high
        assert found.verdict is INCONCLUSIVE


def test_a_difference_whose_interval_touches_the_margin_is_none():
    wide = paired(logs(*np.linspace(1.0, 1.03, 40)), 0.01)
    assert 1.0 < wide.low < 1.01 < wide.ratio
    assert wide.verdict is INCONCLUSIVE


def test_what_reaches_over_the_margin_on_the_faster_side_alone_is_not_equivalent():
    wide = paired(logs(*1 / np.linspace(1.0, 1.03, 40)), 0.01)
    assert wide.ratio < 1 / 1.01 < wide.high < 1.0
    assert wide.low < 1 / 1.01
    assert wide.verdict is INCONCLUSIVE


def test_neither_end_lies_within_the_fourth_of_twenty_from_outside():
    """Of 20 pairs the median lies between the 4th and the 17th 99 times in 100."""
    far = np.sinh((np.arange(20) - 9.5) / 3)
    found = paired(far, 0.01)
    assert found.low == pytest.approx(np.exp(far[3]))
    assert found.high == pytest.approx(np.exp(far[16]))


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_of_samples_the_interval_leaves_out_half_of_what_may_be_missed_on_each_side(confidence):
    chance = np.random.default_rng(5)
    a, b = np.exp(chance.normal(0, 0.1, 60)), np.exp(chance.normal(0.3, 0.1, 60))
    drawn = bootstrap_medians(np.log(b), seed=0) - bootstrap_medians(np.log(a), seed=1)
    found = unpaired(list(a), list(b), 0.01, confidence=confidence)
    missed = ((np.exp(drawn) < found.low).mean(), (np.exp(drawn) > found.high).mean())
    assert missed == pytest.approx([(1 - confidence) / 2] * 2, abs=1e-3)


@pytest.mark.parametrize("n", [1, 2, LEAST_PAIRS - 1, LEAST_PAIRS])
def test_too_few_pairs_decide_nothing_however_plain(n):
    decided = n >= LEAST_PAIRS
    assert (paired(logs(*[2.0] * n), 0.01).verdict is SLOWER) == decided
    assert (paired(logs(*[1.0] * n), 0.01).verdict is EQUIVALENT) == decided
    one_side = unpaired([1.0] * 500, [2.0] * n, 0.01)
    assert (one_side.verdict is SLOWER) == decided
    assert one_side.n == n


def test_turning_the_pairs_around_turns_the_verdict_around():
    ratios = np.random.default_rng(0).normal(-0.1, 0.02, 41)
    there, back = paired(list(ratios), 0.01), paired(list(-ratios), 0.01)
    assert (there.verdict, back.verdict) == (FASTER, SLOWER)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.low == pytest.approx(1 / there.high, rel=0.005)


def test_unlike_pairs_samples_are_not_held_to_their_order():
    rng = np.random.default_rng(0)
    a = rng.lognormal(0, 0.02, 60)
    b = 1.5 * rng.permutation(a)
    found = unpaired(list(a), list(b), 0.05)
    assert found.verdict is SLOWER
    assert found.ratio == pytest.approx(1.5)
    assert not found.paired
    assert paired(logs(1.0), 0.01).paired


def test_half_the_width_beyond_the_margin_is_the_least_that_could_have_been_seen():
    found = paired(list(np.random.default_rng(3).normal(0, 0.05, 50)), 0.02)
    half = math.log(found.high / found.low) / 2
    assert found.smallest_effect == pytest.approx(1.02 * math.exp(half) - 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_of_a_difference_only_the_side_towards_nothing_could_have_hidden_it(sign):
    skewed = sign * (0.1 + np.random.default_rng(3).exponential(0.05, 60))
    found = paired(list(skewed), 0.01)
    near, far = found.ratio / found.low, found.high / found.ratio
    if sign < 0:
        near, far = far, near
    assert found.verdict is (SLOWER if sign > 0 else FASTER)
    assert near < far * 0.995
    assert found.smallest_effect == pytest.approx(1.01 * near - 1)


def test_more_confidence_makes_the_interval_no_narrower():
    ratios = list(np.random.default_rng(5).normal(0, 0.05, 64))
    some, more = (paired(ratios, 0.01, confidence=c) for c in (0.9, 0.999))
    assert more.low < some.low < some.high < more.high


# ---- the interval, in worlds of a known truth ----------------------------------------------------

DRAWS = {
    "normal": lambda rng, n: rng.normal(0, 0.01, n),
    "exponential": lambda rng, n: rng.exponential(0.01, n) - 0.01 * math.log(2),
    "heavy tails": lambda rng, n: 0.01 * rng.standard_t(1.5, n),
}


@pytest.mark.parametrize(("n", "worlds"), [(20, 1000), (21, 1000), (160, 300)])
@pytest.mark.parametrize("draw", DRAWS)
def test_it_misses_the_true_median_no_more_than_it_says(draw, n, worlds):
    rng = np.random.default_rng(n)
    missed = 0
    for seed in range(worlds):
        found = paired(DRAWS[draw](rng, n), 0.01, seed=seed)
        missed += not found.low <= 1 <= found.high
    expected = worlds * (1 - VERDICT_CONFIDENCE)
    assert missed <= expected + 3 * math.sqrt(expected)


@pytest.mark.parametrize("draw", DRAWS)
def test_unpaired_it_misses_no_more_either(draw):
    rng, worlds = np.random.default_rng(7), 400
    missed = 0
    for seed in range(worlds):
        a, b = (np.exp(DRAWS[draw](rng, n)) for n in (20, 35))
        found = unpaired(list(a), list(b), 0.05, seed=seed)
        missed += not found.low <= 1 <= found.high
    assert missed <= 4 + 3 * 2


def drifting(rng, n, share=0.95, spread=0.03):
    """The logarithm of a machine's speed from call to call: an AR(1) walk."""
    x = np.empty(n)
    x[0] = rng.normal(0, spread)
    for i in range(1, n):
        x[i] = share * x[i - 1] + rng.normal(0, spread * math.sqrt(1 - share**2))
    return x


def in_pairs(rng, machine, effect=0.0, own=0.01):
    """log(b/a) of calls next to each other on that machine, in random order."""
    calls = machine + rng.normal(0, own, len(machine))
    first_a = rng.random(len(calls) // 2) < 0.5
    return np.where(first_a, 1, -1) * (calls[1::2] - calls[::2]) + effect


@pytest.mark.parametrize("machine", ["still", "drifting", "a step", "a slope"])
def test_the_same_against_itself_is_no_different_whatever_the_machine_does(machine):
    rng, n = np.random.default_rng(11), 160
    differ = equal = 0
    for seed in range(150):
        speed = {
            "still": np.zeros(n),
            "drifting": drifting(rng, n),
            "a slope": np.linspace(0, 0.05, n),
            "a step": np.where(np.arange(n) < rng.integers(n), 0, 0.05),
        }[machine]
        verdict = paired(in_pairs(rng, speed), 0.01, seed=seed).verdict
        differ += verdict in (FASTER, SLOWER)
        equal += verdict is EQUIVALENT
    assert differ <= 2
    assert equal > 100


def test_two_hundredths_are_found_under_a_drift_that_is_larger():
    rng = np.random.default_rng(13)
    verdicts = [
        paired(in_pairs(rng, drifting(rng, 320), effect), 0.01, seed=seed).verdict
        for effect in (-0.03, 0.03)
        for seed in range(40)
    ]
    assert verdicts == [FASTER] * 40 + [SLOWER] * 40


def test_unpaired_a_machine_that_stands_still_gives_no_false_verdict():
    rng = np.random.default_rng(17)
    for seed in range(150):
        a, b = (list(np.exp(rng.normal(0, 0.03, 40))) for _ in "ab")
        assert unpaired(a, b, 0.05, seed=seed).verdict not in (FASTER, SLOWER)


def test_unpaired_a_drift_passes_for_a_difference_as_nothing_takes_it_out():
    """Why verdicts of two runs have a wide margin and a label."""
    rng = np.random.default_rng(19)
    false = 0
    for seed in range(100):
        speed = np.exp(drifting(rng, 80, share=0.98, spread=0.05))
        false += unpaired(list(speed[:40]), list(speed[40:]), 0.01, seed=seed).verdict in (
            FASTER,
            SLOWER,
        )
    assert false > 20


# ---- the bootstrap -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_medians_have_the_law_of_all_resamples(n):
    values = np.random.default_rng(n).random(n)
    every = [np.median(pick) for pick in itertools.product(values, repeat=n)]
    drawn = bootstrap_medians(values, draws=40_000, seed=1)
    found, counts = np.unique(drawn.round(12), return_counts=True)
    wanted, shares = np.unique(np.round(every, 12), return_counts=True)
    assert set(found) <= set(wanted)
    seen = dict(zip(found, counts / len(drawn), strict=True))
    for value, share in zip(wanted, shares / len(every), strict=True):
        assert seen.get(value, 0.0) == pytest.approx(share, abs=0.012)


@pytest.mark.parametrize("n", [20, 21, 99])
def test_the_medians_scatter_as_those_of_drawn_resamples(n):
    rng = np.random.default_rng(n)
    values = rng.lognormal(0, 1, n)
    brute = np.median(values[rng.integers(0, n, (40_000, n))], axis=1)
    ours = bootstrap_medians(values, draws=40_000, seed=2)
    for q in (0.01, 0.1, 0.5, 0.9, 0.99):
        near = np.quantile(brute, [max(0, q - 0.012), min(1, q + 0.012)])
        assert near[0] <= np.quantile(ours, q) <= near[1]


def test_the_same_seed_draws_the_same_and_order_does_not_matter():
    values = [3.0, 1.0, 2.0, 5.0]
    assert (bootstrap_medians(values, seed=4) == bootstrap_medians(sorted(values), seed=4)).all()
    assert (bootstrap_medians(values, seed=4) != bootstrap_medians(values, seed=5)).any()


# ---- in words ------------------------------------------------------------------------------------


def test_a_sentence_says_who_how_much_and_what_could_have_been_seen():
    found = paired(logs(*[0.5] * 40), 0.01)
    assert found.sentence("old", "new") == (
        "new is FASTER than old: 0.500 of its time [0.500, 0.500] "
        "(40 pairs; margin 1.0%; 1.0% would have been seen)"
    )
    few = unpaired([1.0] * 7, [2.0] * 7, 0.05).sentence("a", "b")
    assert few.startswith("INCONCLUSIVE for b against a: 2.000 of its time")
    assert "unpaired, 7 samples, too few to decide (it takes 20)" in few


def test_it_travels():
    found = paired(logs(*[0.5] * 40), 0.01)
    sent = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert Comparison.from_dict(sent) == found
