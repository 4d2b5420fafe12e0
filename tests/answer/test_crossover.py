"""What is said of where one overtakes the other: worked out by hand, from made-up looks."""

import json
import math
import re

import pytest

from attnbench.core.record import Status
from attnbench.core.stats import paired
from attnbench.features.crossover.answer import BUDGET, CrossoverAnswer
from attnbench.features.crossover.search import CrossoverSearch, LengthRatio


def look(length, ratio, margin=0.01, spread=0.0):
    """The other's time over one's."""
    logs = [math.log(ratio) + spread * (i % 9 - 4) for i in range(40)]
    return LengthRatio(length, paired(logs, margin), a_s=0.001, b_s=0.001 * ratio)


def answer(*looks, rungs=None, ended="", what="tokens", asked=None):
    lengths = [each.length for each in looks]
    search = CrossoverSearch(rungs or lengths or [64, 128])
    for each in looks:
        search.hear(each)
    asked = asked or (search.rungs[0], search.rungs[-1])
    return CrossoverAnswer("sdpa", "elu", what, asked, search, ended)


def said(*looks, **more):
    return answer(*looks, **more).sentence()


def test_a_crossover_without_ties():
    text = said(look(64, 1.5), look(1024, 1.2), look(1088, 0.9), look(4096, 0.2))
    assert text == (
        "from 64 to 1,024 tokens sdpa is faster; from 1,088 to 4,096 elu is faster. "
        "elu overtakes sdpa between 1,024 and 1,088 (160 pairs at 4 lengths)"
    )


def test_ties_between_are_said_with_the_margin_and_lie_within_the_bracket():
    found = answer(
        look(64, 1.5), look(1024, 1.2), look(1088, 1.004), look(1408, 0.999), look(1472, 0.9)
    )
    assert found.sentence() == (
        "from 64 to 1,024 tokens sdpa is faster; from 1,088 to 1,408 they can't be told apart at "
        "1 %; at 1,472 elu is faster. elu overtakes sdpa between 1,024 and 1,472. Where they tie, "
        "use sdpa: it is torch's own (200 pairs at 5 lengths)"
    )
    (one,) = found.crossovers()
    assert (one.low, one.high, one.ties, one.tight) == (1024, 1472, (1088, 1408), True)


@pytest.mark.parametrize(
    ("missing", "ended", "why"),
    [
        (1056, BUDGET, "the budget was spent"),
        (1056, "", "lengths between could not be compared"),
        (1440, BUDGET, "the budget was spent"),
    ],
)
def test_a_bracket_that_is_not_tight_says_why(missing, ended, why):
    looks = [look(1024, 1.2), look(1088, 1.0), look(1408, 1.0), look(1472, 0.9)]
    rungs = sorted([missing, *(each.length for each in looks)])
    assert f"between 1,024 and 1,472, and no tighter, for {why}" in said(
        *looks, rungs=rungs, ended=ended
    )


def test_a_length_among_ties_that_nobody_looked_at_leaves_it_tight():
    looks = [look(1024, 1.2), look(1088, 1.0), look(1408, 1.0), look(1472, 0.9)]
    assert "tighter" not in said(*looks, rungs=[1024, 1088, 1152, 1408, 1472])


def test_several_crossovers_are_said_one_after_the_other():
    text = said(look(64, 0.5), look(128, 2.0), look(256, 0.5))
    assert text.startswith(
        "at 64 tokens elu is faster; at 128 sdpa is faster; at 256 elu is faster. "
        "sdpa overtakes elu between 64 and 128. elu overtakes sdpa between 128 and 256 ("
    )


def test_ties_that_one_leads_on_both_sides_of_are_no_crossover():
    found = answer(look(64, 1.5), look(128, 1.0), look(256, 1.5))
    assert found.crossovers() == []
    assert "at 128 they can't be told apart at 1 %; at 256 sdpa is faster" in found.sentence()


def test_ties_before_a_leader_led_once_more_are_none_of_its_crossover():
    (one,) = answer(look(64, 1.5), look(128, 1.0), look(256, 1.5), look(512, 0.5)).crossovers()
    assert (one.low, one.high, one.ties) == (256, 512, None)


def test_who_leads_throughout_is_said_with_the_lead_at_both_ends():
    assert said(look(64, 1.25), look(1024, 2.0), what="keys").startswith(
        "sdpa is faster throughout, from 64 to 1,024 keys: it takes 0.8 [0.8, 0.8] at 64 and 0.5 "
        "[0.5, 0.5] at 1,024 of elu's time. "
    )
    assert "elu is faster throughout, from 64 to 1,024 tokens: it takes 0.5 [0.5, 0.5]" in said(
        look(64, 0.5), look(1024, 0.8)
    )
    assert said(look(64, 1.25)) == (
        "sdpa is faster at 64 tokens: it takes 0.8 [0.8, 0.8] at 64 of elu's time (40 pairs at 1 "
        "length)"
    )


@pytest.mark.parametrize("ratio", [1.25, 0.8])
def test_whoever_leads_its_interval_goes_from_less_to_more(ratio):
    text = said(look(64, ratio, spread=0.02))
    taken, low, high = map(float, re.search(r"takes (\S+) \[(\S+), (\S+)\] at 64", text).groups())
    assert 0.7 < low < taken < high < 0.9


@pytest.mark.parametrize(
    ("ratios", "where"),
    [
        ((1.1, 1.2, 1.3, 1.4), "below 64 (--seq 4,64)"),
        ((1.4, 1.3, 1.2, 1.1), "above 512 (--seq 512,8192)"),
        ((0.5, 0.6, 0.7, 0.8), "above 512 (--seq 512,8192)"),
        ((1.1, 1.3, 1.3, 1.1), "above 512 (--seq 512,8192) or below 64 (--seq 4,64)"),
        ((1.0, 1.3, 1.4, 1.5), "below 64 (--seq 4,64)"),
        ((1.4, 1.3, 1.3, 1.4), None),
        ((1.0, 1.0, 1.0, 1.0), ""),
    ],
)
def test_without_one_it_is_said_on_which_side_one_may_lie(ratios, where):
    looks = [look(64 << k, ratio, spread=1e-4) for k, ratio in enumerate(ratios)]
    text = said(*looks)
    if where:
        assert f"The lead shrinks that way: a crossover may lie {where} (" in text
    elif where is None:
        assert "The lead shrinks towards neither end: no crossover is in sight (" in text
    else:
        assert "lead" not in text and "can't be told apart at 1 %, from 64 to 512 tokens" in text


def test_a_lead_that_only_scatters_points_nowhere():
    looks = [look(64 << k, r, spread=0.05) for k, r in enumerate((1.52, 1.5, 1.5, 1.49))]
    assert "towards neither end" in said(*looks)


def test_where_longer_ones_can_not_be_compared_none_is_proposed():
    looks = [look(64, 1.4), look(128, 1.2)]
    failed = LengthRatio(256, None, Status.OUT_OF_MEMORY, "sdpa: it needs 9 GiB")
    found = answer(*looks, failed, asked=(64, 4096))
    assert "above 128, where they were not compared" in found.sentence()
    assert (
        "from 256 on they can't be compared: out of memory: sdpa: it needs 9 GiB" in found.notes()
    )
    assert found.to_dict()["looks"][2]["status"] == "out_of_memory"


def test_a_length_between_that_failed_is_said_to_be_one():
    failed = LengthRatio(96, None, Status.WRONG, "elu: row 3 moved")
    found = answer(look(64, 1.4), failed, look(128, 1.2))
    assert "at 96 they can't be compared: wrong: elu: row 3 moved" in found.notes()


def test_a_margin_that_differs_by_length_is_said_as_a_range():
    assert "can't be told apart at 1 to 2.5 %" in said(look(64, 1.0), look(128, 1.0, margin=0.025))


def test_what_was_not_looked_at_is_said():
    found = answer(look(64, 1.4), look(128, 1.3), rungs=[64, 128, 256], ended=BUDGET)
    assert "the budget was spent before 256 was looked at" in found.notes()
    found.search.cut = 256
    assert "the budget was spent while 256 was looked at" in found.notes()
    assert "before" not in " ".join(found.notes())
    torn = LengthRatio(128, paired([0.3, -0.3] * 20, 0.01))
    assert "at 128 the pairs did not decide" in answer(look(64, 1.4), torn).notes()


def test_where_nothing_was_compared_it_is_said():
    failed = LengthRatio(64, None, Status.OUT_OF_MEMORY, "sdpa: too much")
    found = answer(failed, rungs=[64, 128])
    assert found.sentence() == "sdpa and elu were compared at no length"
    assert found.notes() == ["from 64 on they can't be compared: out of memory: sdpa: too much"]


def test_it_can_be_sent_as_plain_values():
    sent = json.loads(json.dumps(answer(look(64, 1.5), look(128, 1.0), look(256, 0.5)).to_dict()))
    assert sent["crossovers"] == [
        {
            "before": "sdpa",
            "after": "elu",
            "low": 64,
            "high": 256,
            "ties": [128, 128],
            "tight": True,
        }
    ]
    assert [each["leader"] for each in sent["stretches"]] == ["sdpa", "", "elu"]
    assert [each["leader"] for each in sent["looks"]] == ["sdpa", "", "elu"]
    assert sent["looks"][0]["comparison"]["ratio"] == pytest.approx(1.5)
    assert sent["looks"][0]["median_s"] == pytest.approx({"sdpa": 0.001, "elu": 0.0015})
    assert (sent["range"], sent["ended"]) == ([64, 256], "found")
