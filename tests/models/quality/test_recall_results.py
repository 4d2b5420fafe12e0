"""What accuracies over seeds show: intervals against the book, and no claim beyond an interval."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.features.quality.recall_view import (
    STEPS,
    TARGET,
    SettingResults,
    conclude_setting,
    recall_results,
    seed_interval,
)
from tests.models.quality.made_up import SETTING, trainings


def test_the_interval_is_students_as_the_book_has_it():
    found = seed_interval([1.0, 2.0, 3.0])
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    samples = np.random.default_rng(3).normal(0.9, 0.02, (4000, 3))
    held = [found.low <= 0.9 <= found.high for found in map(seed_interval, samples.tolist())]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
    share = seed_interval([1.0, 1.0, 0.1], 0.0, 1.0)
    assert (share.low, share.high) == (0.0, 1.0)
    assert share.half == pytest.approx(0.7)  # the farther end


def conclude(*rows):
    found = recall_results(rows, "sdpa")
    return list(conclude_setting(SettingResults("", SETTING, rows, found, "sdpa", None)))


SHARES = st.sampled_from([0.0, 0.5, 0.97, 0.985, 0.9895, 0.99, 0.9901, 0.995, 1.0])
TRAININGS = st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=4)
NAMES = ("sdpa", "linear.elu", "gla")


@given(st.tuples(TRAININGS, TRAININGS, TRAININGS))
@settings(max_examples=40)
def test_a_sentence_claims_no_more_than_the_intervals_and_leaves_no_variant_out(shares):
    rows = [r for name, each in zip(NAMES, shares, strict=True) for r in trainings(name, *each)]
    seen = {each.variant: each for each in recall_results(rows, "sdpa")}
    for line in conclude(*rows):
        if "(by chance" not in line:
            continue
        pairs = int(re.search(r"with (\d+) pairs", line)[1])
        claimed = {}
        for part in line.split("%): ", 1)[1].split("; "):
            verb, names = part.split(": ", 1)
            claimed |= dict.fromkeys(re.findall(r"([a-z.]+) \(", names), verb)
        assert sorted(claimed) == sorted(NAMES)
        for name, verb in claimed.items():
            at = seen[name].accuracy[STEPS][pairs]
            reaches, short = at.n > 1 and at.low >= TARGET, at.n > 1 and at.high < TARGET
            assert (verb == "99 % reached by") == reaches, line
            assert (verb == "not by") == short, line
            assert (verb == "can't be told of") == (not reaches and not short), line
