"""What accuracies over seeds say: intervals against the book, and no claim beyond an interval."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.features.quality.recall_verdicts import (
    TARGET,
    TargetStanding,
    TrainingBudget,
    conclusions,
    interval,
    looked_at,
    recalled,
    share,
    with_pairs,
)
from impls.loading import load_file

made_up = load_file(Path(__file__).with_name("made_up_recall.py"))
row, rows, SETTING = made_up.row, made_up.rows, made_up.SETTING


def test_the_interval_is_students_as_the_book_has_it():
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.n) == (2.0, 3)
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_it_holds_the_mean_in_nineteen_of_twenty_worlds(seeds):
    samples = np.random.default_rng(seeds).normal(0.9, 0.02, (4000, seeds))
    held = [found.low <= 0.9 <= found.high for found in map(interval, samples.tolist())]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_a_share_is_nowhere_below_nought_or_above_one():
    found = share([1.0, 1.0, 0.1])
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.half == pytest.approx(0.7)  # the farther end
    assert share([0.5, 0.6]) == interval([0.5, 0.6])._replace(low=pytest.approx(0.0), high=1.0)


def test_the_baseline_stands_first_and_then_who_recalls_most():
    some = [*rows("gla", (1.0, 0.2)), *rows("linear.elu", (0.5, 0.7)), *rows("sdpa", (0.1, 0.1))]
    assert [each.variant for each in recalled(some, "sdpa")] == ["sdpa", "linear.elu", "gla"]


def test_one_seed_tells_nothing():
    assert interval([]) is None
    assert interval([1.0]).standing() is TargetStanding.OPEN
    assert interval([0.1]).standing() is TargetStanding.OPEN


@pytest.mark.parametrize(
    ("shares", "standing"),
    [
        ([0.995, 0.996, 0.997], TargetStanding.REACHES),
        ([0.99, 0.99], TargetStanding.REACHES),
        ([0.5, 0.52, 0.49], TargetStanding.SHORT),
        ([0.999, 0.999, 0.95], TargetStanding.OPEN),
        ([0.98, 1.0, 0.985], TargetStanding.OPEN),
    ],
)
def test_who_reaches_the_target_has_all_of_the_interval_there(shares, standing):
    assert interval(shares).standing() is standing


def test_each_budget_has_its_own_checkpoint():
    one = row(steps={4: 0.9, 8: 0.8}, time={4: 0.7, 8: 0.6})
    assert looked_at(one, TrainingBudget.STEPS)["accuracy"]["4"] == 0.9
    assert looked_at(one, TrainingBudget.TIME)["accuracy"]["4"] == 0.7
    assert looked_at(row(time={4: 0.7, 8: 0.6}), TrainingBudget.STEPS) is None


def test_a_steps_time_is_held_against_the_baselines_of_the_same_seed():
    own = [row("sdpa", seed, step_s=s) for seed, s in enumerate((0.01, 0.02, 0.04))]
    other = [row("linear.elu", seed, step_s=s) for seed, s in enumerate((0.02, 0.04, 0.08))]
    found = recalled([*own, *other], "sdpa")[1]
    assert found.ratio[:3] == pytest.approx((2.0, 2.0, 2.0))
    assert recalled([*own, other[0]], "sdpa")[1].ratio.n == 1


def test_trainings_that_are_not_there_say_why():
    missing = made_up.refused("gla", "gla needs a wheel", "pip install wheel")
    found = recalled([*rows("sdpa", (1, 1), (1, 1)), missing], "sdpa")[1]
    assert found.amiss == ("gla needs a wheel; pip install wheel",)
    assert found.standing(TrainingBudget.STEPS, 4) is TargetStanding.OPEN


SHARES = st.sampled_from([0.0, 0.5, 0.97, 0.985, 0.9895, 0.99, 0.9901, 0.995, 1.0])
TRAININGS = st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=4)
NAMES = ("sdpa", "linear.elu", "gla")


def claims(line):
    """Of a sentence about one number of pairs: that number, and who is said to stand where."""
    pairs = re.search(r"with (\d+) pairs \(by chance", line)
    if pairs is None:
        return
    for part in line.split("%): ", 1)[1].split("; "):
        verb, names = part.split(": ", 1)
        for name in re.findall(r"([a-z.]+) \(", names):
            yield int(pairs[1]), name, verb


@given(st.tuples(TRAININGS, TRAININGS, TRAININGS))
def test_a_sentence_says_no_more_than_the_intervals_and_leaves_nobody_out(trainings):
    some = [r for name, each in zip(NAMES, trainings, strict=True) for r in rows(name, *each)]
    found = recalled(some, "sdpa")
    seen = {each.variant: each.accuracy[TrainingBudget.STEPS] for each in found}
    for line in conclusions(found, "sdpa", SETTING, None):
        claimed = list(claims(line))
        assert not claimed or sorted(name for _, name, _ in claimed) == sorted(NAMES)
        for pairs, name, verb in claimed:
            at = seen[name][pairs]
            reaches, short = at.n > 1 and at.low >= TARGET, at.n > 1 and at.high < TARGET
            assert verb.startswith("reach") == reaches, line
            assert verb.startswith("fall") == short, line
            assert (verb == "can't be told") == (not reaches and not short), line


@given(TRAININGS)
def test_pairs_that_are_said_to_be_recalled_have_their_interval_above(training):
    (each,) = recalled(rows("sdpa", *training), "sdpa")
    sure, perhaps = with_pairs(each, TrainingBudget.STEPS, SETTING.pairs)
    for pairs, at in each.accuracy[TrainingBudget.STEPS].items():
        assert (pairs in sure) == (at.n > 1 and at.low >= TARGET)
        assert (pairs in sure or pairs in perhaps) == (at.n == 1 or at.high >= TARGET)


def test_the_numbers_of_pairs_that_each_recalls_are_listed():
    own = rows("sdpa", (1.0, 1.0), (1.0, 1.0))
    some = rows("gla", (1.0, 0.5), (1.0, 1.0)) + rows("mean_v", (0.1, 0.1), (0.1, 0.2))
    line = conclusions(recalled([*own, *some], "sdpa"), "sdpa", SETTING, None)[1]
    assert line.endswith("recalled to 99 %: sdpa 4, 8; gla 4, perhaps 8; mean_v none")


def test_where_the_baseline_itself_fails_nothing_is_said_of_others():
    found = recalled(
        [*rows("sdpa", (0.5, 0.5), (0.5, 0.5)), *rows("gla", (0.1, 0.1), (0.1, 0.1))], "sdpa"
    )
    first = conclusions(found, "sdpa", SETTING, None)[0]
    assert "sdpa itself is not known to reach 99 %" in first and "gla" not in first


def of_time(*some):
    own = rows("sdpa", *[(1.0, 1.0)] * 3)
    found = recalled([*own, *some], "sdpa")
    (line,) = (x for x in conclusions(found, "sdpa", SETTING, 0.9) if "gives other than" in x)
    return line.split("steps: ")[1]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((0.50, 0.52, 0.51), "gla 9.0 ± 2.5 points fewer; of the others no difference is known"),
        ((0.61, 0.59, 0.60), "of nobody a difference is known"),  # one seed gains and one loses
        ((0.70, 0.71, 0.69), "gla 10.0 ± 2.5 points more; of the others no difference is known"),
        ((0.10, 0.90, 0.40), "of nobody a difference is known"),
    ],
)
def test_what_the_same_time_changes_is_told_seed_by_seed_and_only_beyond_the_interval(times, said):
    given = [
        row("gla", seed, {4: 1.0, 8: 0.6}, {4: 1.0, 8: time}) for seed, time in enumerate(times)
    ]
    assert of_time(*given) == said
    assert of_time() == "of nobody a difference is known"


def test_who_keeps_least_of_those_that_reach_it_is_named():
    own = rows("sdpa", (1.0, 1.0), (1.0, 1.0))
    small = rows("gla", (1.0, 1.0), (1.0, 1.0), state=64)
    poor = rows("mean_v", (0.1, 0.1), (0.1, 0.1), state=1)
    line = conclusions(recalled([*own, *small, *poor], "sdpa"), "sdpa", SETTING, None)[-1]
    assert "gla keeps least: 64 numbers a head; sdpa keeps 640 numbers a head after 40" in line
    line = conclusions(recalled([*own, *poor], "sdpa"), "sdpa", SETTING, None)[-1]
    assert line.startswith("only sdpa is known to reach 99 % with 8 pairs; it keeps 640 numbers")
    large = rows("gla", (1.0, 1.0), (1.0, 1.0), state=9000)
    line = conclusions(recalled([*own, *large], "sdpa"), "sdpa", SETTING, None)[-1]
    assert line.startswith("nobody reaches 99 % with 8 pairs and keeps less than sdpa")


def test_one_seed_concludes_nothing():
    found = recalled(rows("sdpa", (1.0, 1.0)), "sdpa")
    (line,) = conclusions(found, "sdpa", SETTING, None)
    assert "nothing is concluded" in line
