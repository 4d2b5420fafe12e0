"""What accuracies over seeds show: intervals against the book, and no claim beyond an interval."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.features.quality import recall_results as results
from attnbench.features.quality.recall_results import (
    TARGET,
    SettingResults,
    TargetStanding,
    TrainingBudget,
    recall_results,
    seed_interval,
)
from tests.models.quality.made_up import SETTING, training, trainings, untrained


def test_the_interval_is_students_as_the_book_has_it():
    found = seed_interval([1.0, 2.0, 3.0])
    assert (found.mean, found.n) == (2.0, 3)
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    assert seed_interval([]) is None


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_it_holds_the_mean_in_nineteen_of_twenty_worlds(seeds):
    samples = np.random.default_rng(seeds).normal(0.9, 0.02, (4000, seeds))
    held = [found.low <= 0.9 <= found.high for found in map(seed_interval, samples.tolist())]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_a_share_is_between_nought_and_one():
    found = results.share_interval([1.0, 1.0, 0.1])
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.half == pytest.approx(0.7)  # the farther end


@pytest.mark.parametrize(
    ("shares", "standing"),
    [
        ([0.995, 0.996, 0.997], TargetStanding.REACHES),
        ([0.99, 0.99], TargetStanding.REACHES),
        ([0.5, 0.52, 0.49], TargetStanding.SHORT),
        ([0.999, 0.999, 0.95], TargetStanding.OPEN),
        ([0.98, 1.0, 0.985], TargetStanding.OPEN),
        ([1.0], TargetStanding.OPEN),
        ([0.1], TargetStanding.OPEN),
    ],
)
def test_all_of_the_interval_has_to_be_at_the_target(shares, standing):
    assert seed_interval(shares).standing is standing


def test_each_budget_has_its_own_checkpoint():
    time_only = training(time={4: 0.7, 8: 0.6})
    both = training(steps={4: 0.9, 8: 0.8}, time={4: 0.7, 8: 0.6})
    steps, time = TrainingBudget.STEPS, TrainingBudget.TIME
    assert results.checkpoint_of(both, steps)["accuracy"]["4"] == 0.9
    assert results.checkpoint_of(both, time)["accuracy"]["4"] == 0.7
    assert results.checkpoint_of(time_only, steps) is None


def test_the_baseline_stands_first_and_then_what_recalls_most():
    rows = [trainings("gla", (1.0, 0.2)), trainings("elu", (0.5, 0.7)), trainings("sdpa", (0, 0))]
    found = recall_results([row for some in rows for row in some], "sdpa")
    assert [each.variant for each in found] == ["sdpa", "elu", "gla"]


def test_a_steps_time_is_compared_with_the_baselines_of_the_same_seed():
    own = [training("sdpa", seed, step_s=s) for seed, s in enumerate((0.01, 0.02, 0.04))]
    other = [training("elu", seed, step_s=s) for seed, s in enumerate((0.02, 0.04, 0.08))]
    assert recall_results([*own, *other], "sdpa")[1].ratio[:3] == pytest.approx((2.0, 2.0, 2.0))
    assert recall_results([*own, other[0]], "sdpa")[1].ratio.n == 1


def conclude(*rows, seconds=None):
    found = recall_results(rows, "sdpa")
    return results.conclude_setting(SettingResults("", SETTING, rows, found, "sdpa", seconds))


SHARES = st.sampled_from([0.0, 0.5, 0.97, 0.985, 0.9895, 0.99, 0.9901, 0.995, 1.0])
TRAININGS = st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=4)
NAMES = ("sdpa", "linear.elu", "gla")


def claims(line):
    """Of a sentence about one number of pairs: that number, and each variant with its verb."""
    pairs = re.search(r"with (\d+) pairs \(by chance", line)
    if pairs is None:
        return
    for part in line.split("%): ", 1)[1].split("; "):
        verb, names = part.split(": ", 1)
        for name in re.findall(r"([a-z.]+) \(", names):
            yield int(pairs[1]), name, verb


@given(st.tuples(TRAININGS, TRAININGS, TRAININGS))
def test_a_sentence_claims_no_more_than_the_intervals_and_leaves_no_variant_out(shares):
    rows = [r for name, each in zip(NAMES, shares, strict=True) for r in trainings(name, *each)]
    found = recall_results(rows, "sdpa")
    seen = {each.variant: each.accuracy[TrainingBudget.STEPS] for each in found}
    for line in conclude(*rows):
        claimed = list(claims(line))
        assert not claimed or sorted(name for _, name, _ in claimed) == sorted(NAMES)
        for pairs, name, verb in claimed:
            at = seen[name][pairs]
            reaches, short = at.n > 1 and at.low >= TARGET, at.n > 1 and at.high < TARGET
            assert verb.startswith("reach") == reaches, line
            assert verb.startswith("fall") == short, line
            assert (verb == "can't be told") == (not reaches and not short), line
    for each in found:
        budget = TrainingBudget.STEPS
        reached = results.pairs_at(each, budget, TargetStanding.REACHES)
        perhaps = results.pairs_at(each, budget, TargetStanding.OPEN)
        for pairs, at in each.accuracy[budget].items():
            assert (pairs in reached) == (at.n > 1 and at.low >= TARGET)
            assert (pairs in [*reached, *perhaps]) == (at.n == 1 or at.high >= TARGET)


OWN = trainings("sdpa", *[(1.0, 1.0)] * 3)


@pytest.mark.parametrize(
    ("more", "place", "text"),
    [
        (
            trainings("gla", (1.0, 0.5), (1.0, 1.0)) + trainings("mean_v", (0.1, 0.1), (0.1, 0.2)),
            1,
            "recalled to 99 %: sdpa 4, 8; gla 4, perhaps 8; mean_v none",
        ),
        (
            trainings("gla", *[(1.0, 1.0)] * 2, state=64)
            + trainings("mean_v", *[(0.1, 0.1)] * 2, state=1),
            -1,
            "gla keeps least: 64 numbers a head; sdpa keeps 640 numbers a head after 40 tokens",
        ),
        (
            trainings("mean_v", *[(0.1, 0.1)] * 2, state=1),
            -1,
            "only sdpa is known to reach 99 % with 8 pairs; it keeps 640 numbers",
        ),
        (
            trainings("gla", *[(1.0, 1.0)] * 2, state=9000),
            -1,
            "nobody reaches 99 % with 8 pairs and keeps less than sdpa",
        ),
    ],
)
def test_capacity_and_state_are_concluded(more, place, text):
    assert text in conclude(*OWN, *more)[place]


def test_where_nothing_can_be_concluded_that_is_said():
    poor = [trainings(name, *[(0.5, 0.5)] * 2) for name in ("sdpa", "gla")]
    first = conclude(*poor[0], *poor[1])[0]
    assert "sdpa itself is not known to reach 99 %" in first and "gla" not in first
    (line,) = conclude(*trainings("sdpa", (1.0, 1.0)))
    assert "one seed gives no interval: nothing is concluded" in line
    (line,) = conclude(*trainings("gla", (1.0, 1.0)))
    assert "the baseline sdpa was not trained to its end" in line


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((0.50, 0.52, 0.51), "gla 9.0 ± 2.5 points fewer; of the others no difference is known"),
        ((0.61, 0.59, 0.60), "of nobody a difference is known"),  # one seed gains and one loses
        ((0.70, 0.71, 0.69), "gla 10.0 ± 2.5 points more; of the others no difference is known"),
        ((0.10, 0.90, 0.40), "of nobody a difference is known"),
        ((), "of nobody a difference is known"),
    ],
)
def test_what_the_same_time_changes_is_told_seed_by_seed(times, text):
    more = [training("gla", n, {4: 1.0, 8: 0.6}, {4: 1.0, 8: x}) for n, x in enumerate(times)]
    (line,) = (x for x in conclude(*OWN, *more, seconds=0.9) if "gives other than" in x)
    assert line.split("steps: ")[1] == text


def test_a_variant_without_a_training_has_no_standing():
    found = recall_results([*OWN, untrained("gla", "gla needs a wheel")], "sdpa")[1]
    assert found.standing(TrainingBudget.STEPS, 4) is TargetStanding.OPEN
