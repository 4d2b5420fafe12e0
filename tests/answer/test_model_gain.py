"""What a whole model gains, against steps that are added up by hand, and drawn from intervals."""

import math
import random

import pytest

from attnbench.answer.choose_calls import NoGain, SiteTimes, gain
from attnbench.core.stats import Interval

EXACT = Interval.exactly


def site(share=0.3, now=2.0, then=1.0, name="one", **more):
    """Figures without intervals, unless they are spans."""
    share, now, then = (
        x if isinstance(x, Interval) or x is None else EXACT(x) for x in (share, now, then)
    )
    given = {"site": name, "share": share, "uses": "matmul", "now_s": now, "takes": "sdpa"}
    return SiteTimes(**{**given, "then_s": then, **more})


def test_a_step_is_shorter_by_what_its_sites_save():
    """100 ms: 30 of attention at one place, 20 at another, 50 of the rest."""
    found = gain([site(0.3, 2.0, 1.0), site(0.2, 4.0, 1.0, "two")])
    factor, step = found.factor, 50 + 30 / 2 + 20 / 4
    assert [factor.value, factor.low, factor.high] == pytest.approx([step / 100] * 3)
    assert math.isclose(found.share.value, 0.5) and found.is_clear


def test_no_draw_within_the_intervals_leaves_the_factors_and_their_worst_corners_reach_it():
    chance = random.Random(5)

    def span(low, high):
        a, b, c = sorted(chance.uniform(low, high) for _ in range(3))
        return Interval(b, a, c)

    for _ in range(30):
        sites = [site(span(0.01, 0.2), span(1.0, 2.0), span(0.3, 2.5), str(n)) for n in range(4)]
        factor = gain(sites).factor
        for draw in range(100):

            def drawn(s, corner=draw % 2):
                return chance.choice((s.low, s.high)) if corner else chance.uniform(s.low, s.high)

            kept = [drawn(s.then_s) / drawn(s.now_s) for s in sites]
            step = 1 - sum(drawn(s.share) * (1 - x) for s, x in zip(sites, kept, strict=True))
            assert factor.low - 1e-12 <= step <= factor.high + 1e-12
    spans = Interval(0.3, 0.2, 0.4), Interval(2.0, 1.9, 2.1), Interval(1.0, 0.9, 1.1)
    factor = gain([site(*spans)]).factor
    assert math.isclose(factor.low, 1 - 0.4 * (1 - 0.9 / 2.1))
    assert math.isclose(factor.high, 1 - 0.2 * (1 - 1.1 / 1.9))


def test_what_a_call_takes_longer_in_the_program_is_paid_in_proportion_or_in_seconds():
    """Alone 2 and 1; in the program 3: then it takes 1.5, or 2, and nobody knows which."""
    factor = gain([site(0.4, 2.0, 1.0, inside_s=3.0)]).factor
    low, high = 0.6 + 0.4 * 1.5 / 3, 0.6 + 0.4 * 2.0 / 3
    assert [factor.low, factor.high, factor.value] == pytest.approx([low, high, (low + high) / 2])
    for inside in (None, 2.0, 1.5):  # no longer than alone, which a slower machine can make it
        assert math.isclose(gain([site(0.4, 2.0, 1.0, inside_s=inside)]).factor.value, 0.8)


WIDE = Interval(0.31, 0.29, 0.33), Interval(2.0, 1.95, 2.05), Interval(1.2, 1.15, 1.25)


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        (
            [site(*WIDE)],
            "attention is 31\u00a0% [29\u00a0%, 33\u00a0%] of a step; taking these, a step "
            "takes 0.88 [0.86, 0.90] of its time (1.14× faster; were attention free it "
            "would take 0.69)",
        ),
        ([site(0.034, then=0.0)], "is 3.4\u00a0% of a step; taking these, a step takes 0.97 ["),
        ([site(0.0)], "attention is 0\u00a0% of a step; no gain is shown: "),
        ([site(0.005)], "(less than a hundredth apart; were attention free it would take 0.99)"),
        ([site(), site(None)], "0.70); 1 of 2 sites stays as it is"),
        ([site(0.3, 1.0, 2.0)], "a step takes 1.30 [1.30, 1.30] of its time (1.30× slower"),
        ([site(then=None)], "attention is 30\u00a0% of a step; no site would take another variant"),
        ([site(None)], "what a step gains can't be said: no site's share"),
    ],
)
def test_the_sentence_says_the_share_the_step_and_the_bound(sites, said):
    assert said in gain(sites).sentence()


def test_sites_without_an_answer_stay_as_they_are_and_say_why():
    unanswered = site(0.1, 2.0, None, "two", takes="", why="nobody serves it")
    unweighed, same = site(None, name="three"), site(0.2, 2.0, 1.9, "four", takes="matmul")
    silent = site(0.1, 2.0, None, "five", takes="")
    found = gain([unanswered, unweighed, same, silent, site(0.3)])
    assert math.isclose(found.factor.value, 0.85) and math.isclose(found.share.value, 0.7)
    assert {each.site: each.unchanged() for each in found.sites} == {
        "one": "",
        "two": "nobody serves it",
        "three": "its share was not measured",
        "four": "it uses matmul already",
        "five": "there is no answer for it",
    }
    assert "4 of 5 sites stay as they are" in found.sentence()
    assert found.sites[0].site == "one"  # what saves most comes first


@pytest.mark.parametrize(
    "sites",
    [
        [site(1.2)],
        [site(math.nan)],
        [site(-0.1)],
        [site(Interval(0.3, 0.4, 0.5))],
        [site(0.6), site(0.6, name="two")],
    ],
)
def test_shares_that_can_not_be_are_refused(sites):
    with pytest.raises(NoGain, match="can't be parts of a step"):
        gain(sites)
    gain([site(0.1 + 1e-9, name=str(n)) for n in range(10)])
