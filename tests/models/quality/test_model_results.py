"""What figures of quality show: medians, correlations, ranks, levels, and intervals over seeds."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.features.quality import model_results as results
from attnbench.features.quality import recall_view as view
from tests.models.quality.made_up import SETTING, flat, original, row, trainings


def test_intervals_hold_the_truth_as_often_as_they_claim():
    chance, held = np.random.default_rng(2), 0
    for _ in range(400):
        found = results.estimate_median(chance.lognormal(size=16).tolist())
        held += found["low"] <= 1.0 <= found["high"]  # the median of this distribution
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400) <= held / 400


def test_summaries_are_of_long_texts():
    few_long = original(tokens=(20,) * 12 + (300,) * 2)
    assert results.long_texts(few_long) == list(range(14))
    cosines = [0.9, 0.7, 0.8, None, *[0.5] * 5, *[0.6] * 5]
    found = results.summarize(row("x", cosines), original())
    long = found["cosine"]["long"]
    assert (long["value"], long["worst"]) == (0.55, 0.5)


SPREAD, SWING = flat(0.9, 0.03), np.array([0.01, -0.01] * 7)


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        # a lead that is smaller than the spread of texts, but the same on each
        ({"far": [x - 0.001 for x in SPREAD], "near": SPREAD}, {"near": 1, "far": 2}),
        # leads that change sides
        ({"a": 0.9 + SWING, "b": 0.9 - SWING, "c": flat(0.5)}, {"a": 1, "b": 1, "c": 3}),
    ],
)
def test_a_clear_difference_text_by_text_is_a_rank(rows, ranks):
    found = results.with_ranks([row(*each) for each in rows.items()], original())
    assert {r["variant"]: r["rank"] for r in found} == ranks


UNDECIDED = row("unsure", flat(1.0), ratio=0.95)
UNDECIDED["steps"][0]["comparison"]["verdict"] = "INCONCLUSIVE"  # by Holm's correction
THREE = [row(name, flat(1.0), ratio=x) for name, x in (("a", 0.9), ("b", 0.901), ("c", 1.2))]


@pytest.mark.parametrize(
    ("rows", "gains", "tied", "doubtful", "keep"),
    [
        ([row("wavering", [0.98, 1.0] * 7, ratio=0.5)], [], [], ["wavering"], []),
        (THREE, [True], ["b"], [], ["a", "b", "c"]),
        ([row("slow", flat(1.0), ratio=1.05)], [False], [], [], ["slow"]),
        ([UNDECIDED], [False], [], [], ["unsure"]),
    ],
)
def test_a_level_counts_only_what_is_beyond_doubt(rows, gains, tied, doubtful, keep):
    points = results.points([results.summarize(each, original()) for each in rows], 256)
    (level,) = results.levels_of(points, (0.99,))
    assert [p.faster for p in level.keep][:1] == gains
    assert [p.variant for p in level.tied] == tied
    assert [p.variant for p in level.doubtful] == doubtful
    assert [p.variant for p in level.keep] == keep


def test_one_lucky_verdict_among_many_does_not_survive():
    lucky = row("lucky", flat(1.0), ratio=1.0)
    lucky["steps"][0]["comparison"] |= {"verdict": "FASTER", "p": 0.004}
    others = [row(f"v{n}", flat(1.0), ratio=1.0) for n in range(9)]
    for rows, verdict in (([lucky, *others], "INCONCLUSIVE"), ([lucky], "FASTER")):
        found = results.with_verdicts(rows)[0]
        assert found["steps"][0]["comparison"]["verdict"] == verdict


def test_the_interval_is_students_as_the_book_has_it():
    found = view.seed_interval([1.0, 2.0, 3.0])
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    samples = np.random.default_rng(3).normal(0.9, 0.02, (4000, 3))
    held = [found.low <= 0.9 <= found.high for found in map(view.seed_interval, samples.tolist())]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
    share = view.seed_interval([1.0, 1.0, 0.1], 0.0, 1.0)
    assert (share.low, share.high) == (0.0, 1.0)
    assert share.half == pytest.approx(0.7)  # the farther end


SHARES = st.sampled_from([0.0, 0.5, 0.97, 0.985, 0.9895, 0.99, 0.9901, 0.995, 1.0])
TRAININGS = st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=4)
NAMES = ("sdpa", "linear.elu", "gla")


@given(st.tuples(TRAININGS, TRAININGS, TRAININGS))
@settings(max_examples=40)
def test_a_sentence_claims_no_more_than_the_intervals_and_leaves_no_variant_out(shares):
    rows = [r for name, each in zip(NAMES, shares, strict=True) for r in trainings(name, *each)]
    found = view.recall_results(rows, "sdpa")
    seen = {each.variant: each for each in found}
    setting = view.SettingResults("", SETTING, found, "sdpa", 0.9)
    for line in view.conclude_setting(setting):
        if "(by chance" not in line:
            continue
        pairs = int(re.search(r"with (\d+) pairs", line)[1])
        claimed = {}
        for part in line.split("%): ", 1)[1].split("; "):
            verb, names = part.split(": ", 1)
            claimed |= dict.fromkeys(re.findall(r"([a-z.]+) \(", names), verb)
        assert sorted(claimed) == sorted(NAMES)
        for name, verb in claimed.items():
            at = seen[name].accuracy[view.STEPS][pairs]
            reaches, short = at.n > 1 and at.low >= view.TARGET, at.n > 1 and at.high < view.TARGET
            assert (verb == "99 % reached by") == reaches, line
            assert (verb == "not by") == short, line
            assert (verb == "can't be told of") == (not reaches and not short), line
