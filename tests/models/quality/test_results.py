"""Results of any task: standings, levels, the sentences, the table and the picture of them."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.features.quality import model, real, recall, task, view
from attnbench.features.quality.task import Judgement, QualityFigure, Result, ResultGroup
from attnbench.features.quality.verb import show
from tests.models.quality.made_up import (
    evidence,
    flat,
    original,
    real_row,
    recall_evidence,
    row,
    step,
    trainings,
)
from tests.report.page.runs import PATTERN

SHARES = st.sampled_from([0.0, 0.5, 0.97, 0.985, 0.9895, 0.99, 0.9901, 0.995, 1.0])
TRAININGS = st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=4)
NAMES = ("sdpa", "linear.elu", "gla")


@given(st.tuples(TRAININGS, TRAININGS, TRAININGS))
@settings(max_examples=40)
def test_a_sentence_claims_no_more_than_the_intervals_and_leaves_no_variant_out(shares):
    rows = [r for name, each in zip(NAMES, shares, strict=True) for r in trainings(name, *each)]
    kept = recall_evidence(seeds=0)
    for group in recall.results(type(kept)("recall", kept.made, rows)):
        lines = (re.split(r": 0\.99 (?=kept|not|can)", line) for line in view.conclude(group))
        (line,) = (parts[1] for parts in lines if len(parts) == 2)
        claimed = {}
        for part in line.split("; "):
            words, names = part.split(": ", 1)
            claimed |= dict.fromkeys(re.findall(r"([a-z.]+) \(", names), words)
        assert sorted(claimed) == sorted(NAMES)
        for result in group.results:
            score = result.scores[group.score]
            ends = score.low is not None
            keeps, lacks = ends and score.low >= 0.99, ends and score.high < 0.99
            words = "kept by" if keeps else "not by" if lacks else "can't be told of"
            assert claimed[result.variant] == words, line


def test_the_interval_over_seeds_is_students_as_the_book_has_it():
    found = task.mean_figure([1.0, 2.0, 3.0])
    assert found.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    samples = np.random.default_rng(3).normal(0.9, 0.02, (4000, 3)).tolist()
    held = [found.low <= 0.9 <= found.high for found in map(task.mean_figure, samples)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
    share = task.mean_figure([1.0, 1.0, 0.1], 0.0, 1.0)
    assert (share.low, share.high, str(share)) == (0.0, 1.0, "0.700 ± 0.700")
    assert task.mean_figure([0.5]).judge(0.1) is Judgement.OPEN, "one seed shows nothing"


def test_the_cosine_is_of_long_texts_and_its_interval_holds_the_median():
    assert model.long_texts(original(tokens=(20,) * 12 + (300,) * 2)) == list(range(14))
    kept = evidence(row("x", [0.9, 0.7, 0.8, None, *[0.5] * 5, *[0.6] * 5], ratio=1))
    (group,) = model.results(kept)
    scores = group.judged()[0].scores
    assert (scores["cosine"].value, scores["worst text"].value) == (pytest.approx(0.55), 0.5)
    chance = np.random.default_rng(2)
    found = (model.median_of(chance.lognormal(size=16).tolist())["cosine"] for _ in range(400))
    held = sum(each.low <= 1.0 <= each.high for each in found)  # the median of this distribution
    assert held / 400 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)


def test_one_lucky_verdict_among_many_does_not_survive():
    lucky = row("lucky", flat(1.0), ratio=1.0)
    lucky["steps"][0]["comparison"] |= {"verdict": "FASTER", "p": 0.004}
    others = [row(f"v{n}", flat(1.0), ratio=1.0) for n in range(9)]
    for rows, faster in (([lucky, *others], False), ([lucky], True)):
        (group,) = model.results(evidence(*rows))
        assert {r.variant: r.faster for r in group.results}["lucky"] is faster


def test_what_keeps_a_level_is_whole_above_it_and_the_fastest_comes_first():
    scores = {"a": (0.98, 1.0), "b": (0.992, 0.998), "c": (0.99, 1.0), "d": (0.5, 0.6)}
    steps = {"a": 0.5, "b": 1.2, "c": 0.9, "d": 0.1}
    results = [
        Result(n, "softmax", "f", {"s": QualityFigure(low, low, high)}, QualityFigure(steps[n]))
        for n, (low, high) in scores.items()
    ]
    group = ResultGroup("", "s", 0.99, "x", results)
    assert [result.variant for result in group.keepers(0.99)] == ["c", "b"]


def test_a_fault_is_told_below_the_table_and_is_no_point_of_the_picture(shown):
    found = evidence(
        row("einsum", flat(1.0), "softmax", 1.1),
        row("broken", flat(0.3), "softmax", status="wrong", reason="it is off the original's"),
        row("topk[x]", flat(0.98, 0.001), PATTERN, 0.9),
        row("cosine", flat(0.6), "its own operator", 0.95, amiss=["crashed: it died"]),
        row("retention", [], "its own operator", status="refused", reason="it takes causal"),
        row("x", flat(0.4), steps=[{"seq": 256, "why": "not that"}, step(1, 128)]),
    )
    text = shown(show, found, groups := model.results(found))
    for words in ("! broken: wrong: it is off", "! cosine: crashed: it died"):
        assert words in text
    said = view.conclusions(groups)
    assert "broken" not in {result.variant for group in groups for result in group.results}
    assert any("other that keeps it is einsum, in 1.100 [" in line for line in said)
    assert any("faster than the original, the best is topk[x] (" in line for line in said)
    drawn = view.draw(found, groups)
    assert drawn.description == "Beaten by none both ways: x, topk[x], einsum"
    assert ">einsum<" in drawn.svg and ">broken<" not in drawn.svg
    assert view.draw(found, real.results(evidence(real_row("x", "normal", 0.5)))) is None
