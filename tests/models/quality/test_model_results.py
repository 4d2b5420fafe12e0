"""Medians, correlations, ranks and levels of what a variant costs the trained model."""

import math

import numpy as np
import pandas as pd
import pytest

from attnbench.features.quality import model_results as results
from tests.models.quality.made_up import flat, original, row


@pytest.mark.parametrize("ties", [False, True])
def test_ranks_and_their_correlation_are_those_of_pandas(ties):
    chance = np.random.default_rng(1)
    for _ in range(10):
        a, b = chance.normal(size=(2, 20)).round(0 if ties else 9)
        assert results.rank_values(a).tolist() == pd.Series(a).rank().tolist()
        want = pd.DataFrame({"a": a, "b": b}).corr(method="spearman").loc["a", "b"]
        assert results.rank_correlation(a, b) == pytest.approx(want)
    a = [0.1, 0.5, 0.2, 0.9]
    assert results.rank_correlation(a, np.exp(a)) == pytest.approx(1.0)
    assert results.rank_correlation(a, [-x for x in a]) == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1, 2], [1, 2]),
        ([1, 1, 1, 1], [1, 2, 3, 4]),
        ([1, 2, None, 3], [1, None, 2, 3]),
    ],
)
def test_of_too_few_pairs_or_equal_values_there_is_no_correlation(a, b):
    assert results.estimate_correlation(a, b) is None


def test_the_interval_of_a_median_holds_the_truth_as_often_as_it_claims():
    chance, held = np.random.default_rng(2), 0
    for _ in range(400):
        found = results.estimate_median(chance.lognormal(size=16).tolist())
        held += found["low"] <= 1.0 <= found["high"]  # the median of this distribution
        assert found["low"] <= found["value"] <= found["high"]
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400) <= held / 400
    assert results.estimate_median([None]) is None


def test_the_interval_of_a_correlation_holds_the_truth_nearly_as_often_as_it_claims():
    chance, held, rho = np.random.default_rng(3), 0, 0.7
    truth = 6 / math.pi * math.asin(rho / 2)  # of two normal variables
    for n in range(150):
        a, noise = chance.normal(size=(2, 48))
        b = rho * a + math.sqrt(1 - rho**2) * noise
        found = results.estimate_correlation(a.tolist(), b.tolist(), 200, n)
        held += found["low"] <= truth <= found["high"]
    assert held / 150 >= 0.88  # a percentile bootstrap of 48 pairs falls a little short


def test_summaries_are_of_long_and_of_short_texts():
    assert results.long_texts(original()) == list(range(4, 14))
    assert results.long_texts(original(tokens=(20,) * 12 + (300,) * 2)) == list(range(14))
    cosines = [0.9, 0.7, 0.8, None, *[0.5] * 5, *[0.6] * 5]
    learnt = {"before": flat(0.5), "after": flat(0.7), "losses": [1], "texts": [3, 4, 5]}
    found = results.summarize(row("x", cosines, distilled=learnt), original())
    short, long = found["cosine"]["short"], found["cosine"]["long"]
    assert (short["value"], short["n"]) == (0.8, 3)
    assert (long["value"], long["worst"]) == (0.55, 0.5)
    assert found["spearman"] is None  # two pairs
    assert found["order"] == 1.0
    assert found["distilled"]["change"]["n"] == 2
    assert found["distilled"]["change"]["value"] == pytest.approx(0.2)


def test_order_is_the_share_of_couples_in_their_right_order():
    pairs = [{"kind": kind} for kind in ("paraphrase", "paraphrase", "unrelated", "related")]
    assert results.order_kept([0.9, 0.2, 0.5, 0.0], pairs) == 0.5
    assert results.order_kept([0.9, 0.2, None, 0.0], pairs) is None


SPREAD = flat(0.9, 0.03)


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        ([row("far", flat(0.8, 0.01)), row("near", flat(0.99, 0.001))], {"near": 1, "far": 2}),
        # a lead that is smaller than the spread of texts, but the same on each
        ([row("far", [x - 0.001 for x in SPREAD]), row("near", SPREAD)], {"near": 1, "far": 2}),
        # leads that change sides
        (
            [
                row("a", [0.9 + 0.01 * (-1) ** n for n in range(14)]),
                row("b", [0.9 - 0.01 * (-1) ** n for n in range(14)]),
                row("c", flat(0.5)),
            ],
            {"a": 1, "b": 1, "c": 3},
        ),
        ([row("refused one", [*flat(0.99)[:7], None, *flat(0.99)[8:]])], {"refused one": None}),
        ([row("sdpa", flat(1.0), "softmax")], {"sdpa": None}),
        ([row("elu", flat(0.9), "its own operator")], {"elu": None}),
        ([row("topk", flat(0.9), "softmax on its own pattern")], {"topk": 1}),
    ],
)
def test_a_clear_difference_text_by_text_is_a_rank(rows, ranks):
    assert {r["variant"]: r["rank"] for r in results.with_ranks(rows, original())} == ranks


def points(*rows):
    return results.points([results.summarize(each, original()) for each in rows], 256)


def test_at_each_level_the_fastest_of_those_that_keep_it_is_named():
    found = points(
        row("exact", flat(1.0), "softmax", 1.0),
        row("good", flat(0.992), ratio=0.9),
        row("rough", flat(0.96), ratio=0.7),
    )
    named = {level.cosine: level.fastest.variant for level in results.levels_of(found)}
    assert named == {0.999: "exact", 0.99: "good", 0.95: "rough", 0.9: "rough"}


UNDECIDED = row("unsure", flat(1.0), ratio=0.95)
UNDECIDED["steps"][0]["comparison"]["verdict"] = "INCONCLUSIVE"  # by Holm's correction


@pytest.mark.parametrize(
    ("rows", "fastest", "gains", "tied", "doubtful", "keep"),
    [
        ([row("wavering", [0.98, 1.0] * 7, ratio=0.5)], None, False, [], ["wavering"], 0),
        (
            [row(name, flat(1.0), ratio=x) for name, x in (("a", 0.9), ("b", 0.901), ("c", 1.2))],
            "a",
            True,
            ["b"],
            [],
            3,
        ),
        ([row("slow", flat(1.0), ratio=1.05)], "slow", False, [], [], 1),
        ([UNDECIDED], "unsure", False, [], [], 1),
    ],
)
def test_a_level_counts_only_what_is_beyond_doubt(rows, fastest, gains, tied, doubtful, keep):
    (level,) = results.levels_of(points(*rows), (0.99,))
    assert (level.fastest.variant if level.fastest else None, level.gains) == (fastest, gains)
    assert [p.variant for p in level.tied] == tied
    assert [p.variant for p in level.doubtful] == doubtful
    assert level.keep == keep


def test_the_frontier_leaves_out_what_is_slower_and_further_off():
    found = points(
        row("near", flat(0.999), ratio=1.0),
        row("fast", flat(0.9), ratio=0.8),
        row("neither", flat(0.89), ratio=0.9),
    )
    assert results.best(found) == ["fast", "near"]


def test_what_was_not_timed_or_is_wrong_is_no_point():
    refused = row("refused", flat(1.0), steps=[{"seq": 256, "why": "no"}])
    assert (
        points(row("a", flat(1.0)), row("b", flat(1.0), ratio=1.0, status="wrong"), refused) == []
    )


def test_one_lucky_verdict_among_many_does_not_survive():
    lucky = row("lucky", flat(1.0), ratio=1.0)
    lucky["steps"][0]["comparison"] |= {"verdict": "FASTER", "p": 0.004}
    others = [row(f"v{n}", flat(1.0), ratio=1.0) for n in range(9)]
    for rows, verdict in (([lucky, *others], "INCONCLUSIVE"), ([lucky], "FASTER")):
        found = results.with_verdicts(rows)[0]
        assert found["steps"][0]["comparison"]["verdict"] == verdict
