"""The gain of a whole model, against steps that are added up by hand, and drawn from intervals."""

import math
import random

import pytest

from attnbench.answer.choose_calls import SiteGain, gain, site_gain
from attnbench.answer.engines import EngineCall, for_whole_model
from attnbench.answer.mends import Priced
from attnbench.answer.paste import CallDetails
from attnbench.answer.ranking import Candidate, rank
from attnbench.core.call import CallForm, TensorForm
from attnbench.core.stats import Interval
from impls.errors import CantBeDone
from impls.problem import Problem

EXACT = Interval.exactly
X = TensorForm((1, 4, 256, 64), (65536, 16384, 64, 1), "float32")


def span(x):
    return x if isinstance(x, Interval) or x is None else EXACT(x)


def site(share=0.3, ratio=0.5, name="one", **more):
    """Figures without intervals, unless they are spans."""
    return SiteGain(name, span(share), "matmul", ratio=span(ratio), **more)


def test_no_draw_within_the_intervals_leaves_the_factors_and_their_worst_corners_reach_it():
    chance = random.Random(5)

    def drawn_span(low, high):
        a, b, c = sorted(chance.uniform(low, high) for _ in range(3))
        return Interval(b, a, c)

    for _ in range(30):
        sites = [site(drawn_span(0.01, 0.2), drawn_span(0.2, 1.5), str(n)) for n in range(4)]
        factor = gain(sites).factor
        for _ in range(100):
            shares, ratios = (
                [chance.uniform(x.low, x.high) for x in some]
                for some in zip(*((s.share, s.ratio) for s in sites), strict=True)
            )
            step = 1 - sum(s * (1 - r) for s, r in zip(shares, ratios, strict=True))
            assert factor.low - 1e-12 <= step <= factor.high + 1e-12
    factor = gain([site(Interval(0.3, 0.2, 0.4), Interval(0.5, 0.4, 0.6))]).factor
    assert (factor.low, factor.high) == pytest.approx((1 - 0.4 * 0.6, 1 - 0.2 * 0.4))


@pytest.mark.parametrize(
    ("inside_s", "low", "high"),
    [
        (None, 0.5, 0.5),
        (1.0, 0.5, 0.5),  # no longer than alone, which a slower machine can make it
        (3.0, 1.0 / 3, 2.0 / 3),  # 1 of 3 s if what was longer is gone, 2 of 3 if it is paid again
    ],
)
def test_what_a_call_takes_longer_in_the_program_is_paid_again_or_not(inside_s, low, high):
    priced = Priced(("no_grad",), ("words",), 2.0, 1.0, EXACT(0.5))
    ratio = site_gain("one", EXACT(0.4), CallForm("sdpa", X, X, X), priced, inside_s).ratio
    assert (ratio.value, ratio.low) == pytest.approx((0.5, low * 0.97))
    assert high <= ratio.high <= high + 0.03 * 0.5


def test_heads_that_the_program_repeats_before_the_call_are_saved_besides():
    form = CallForm("sdpa", X, X, X, repeated=2)
    priced = Priced(("enable_gqa",), ("words",), 3.0, 1.0, EXACT(1 / 3))
    assert site_gain("one", EXACT(0.4), form, priced, inside_s=2.0).besides == 1.5


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        (
            [site(Interval(0.31, 0.29, 0.33), Interval(0.6, 0.55, 0.65))],
            "attention is 31\u00a0% [29\u00a0%, 33\u00a0%] of a step; with the changes "
            "below, the whole takes 0.88 [0.85, 0.90] of its time (1.14× faster; with attention "
            "free, 0.69)",
        ),
        ([site(0.0)], "attention is 0\u00a0% of a step; no gain is shown: "),
        ([site(0.005)], "(less than a hundredth apart; with attention free, 0.99)"),
        ([site(), site(None)], "0.70); 1 of 2 sites stays as it is"),
        ([site(0.3, 2.0)], "the whole takes 1.30 [1.30, 1.30] of its time (1.30× slower"),
        ([site(ratio=None)], "attention is 30\u00a0% of a step; there is nothing to change"),
        ([site(None)], "the gain of a step is not known: no site's share"),
    ],
)
def test_the_sentence_says_the_share_the_step_and_the_bound(sites, words):
    said = gain(sites).sentence()
    assert words in said and ("as it is" in said) == ("as it is" in words)
    assert "as they are" not in said


@pytest.mark.parametrize(
    "shares", [[1.2], [math.nan], [-0.1], [Interval(0.3, 0.4, 0.5)], [0.6, 0.6]]
)
def test_shares_that_can_not_be_are_refused(shares):
    with pytest.raises(CantBeDone, match="can't be parts of a step"):
        gain([site(share) for share in shares])


# ---- one implementation for a whole model --------------------------------------------------------

FASTER = {"sdpa": 2.0, "chunked": 1.0}
BESIDE = Problem(sinks=True)


def call(seconds, *, uses="sdpa", site="here", setup_s=0.0, **more):
    """``seconds``: by variant, each known to 2 %."""
    some = [
        Candidate(name, "softmax", s, s * 0.98, s * 1.02, True, setup_s=setup_s)
        for name, s in seconds.items()
    ]
    ranking, more = rank(some, 0.05) if some else None, {"problem": Problem(), **more}
    return EngineCall(site, ranking=ranking, uses=uses, **more)


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ([call(FASTER, calls=30), call({**FASTER, "bmm": 0.5})], "attnbench:chunked"),
        # some places use it already
        ([call({"sdpa": 1.0}), call({"sdpa": 1.0, "flex": 3.0}, uses="flex")], "sdpa"),
        # the fastest, but no layer hands it its gates
        ([call({**FASTER, "gla": 0.5})], "attnbench:chunked"),
        # transformers' own sdpa leaves sinks out
        ([call(FASTER | {"sdpa": 0.4}, uses="chunked", problem=BESIDE)], "attnbench:sdpa"),
        # eager, which transformers calls itself: nothing of attnbench's is beside it
        ([call({"matmul": 10e-6, "sdpa": 10.6e-6})], "eager"),
    ],
)
def test_one_that_gains_on_all_of_the_model_s_calls_is_set_for_the_whole_model(calls, line):
    assert for_whole_model(calls).lines[-1] == f'model.set_attn_implementation("{line}")'


@pytest.mark.parametrize(
    ("second", "why"),
    [
        # the places that would have stayed as they are lose more than the others gain
        (call({"sdpa": 1.0, "chunked": 9.0}, calls=9), "they would take 7.4"),
        # what the variant sets up for each new length costs more than the calls gain
        (call(FASTER, calls=9, setups=9, setup_s=3.0), "for each new mask or length"),
        # it may gain or lose, for all that is known
        (call({"sdpa": 1.0, "chunked": 1.09}, calls=10), "with chunked for all 2 sites"),
        # so short that the way into a layer is all they take
        (call({"sdpa": 20e-6, "chunked": 10e-6}, calls=10**6), "what attnbench does at each call"),
        (call({"sdpa": 1.0}), "no other variant serves all 2 sites"),
        (call(FASTER, details=CallDetails(returns="weights")), "no other variant serves"),
        (call({}), "how long the calls of here take now is not known"),
        (call(FASTER, uses="flex"), "how long the calls of here take now is not known"),
    ],
)
def test_else_there_is_no_line_for_the_whole_model_but_a_reason(second, why, monkeypatch):
    monkeypatch.setattr("attnbench.answer.engines.pace", lambda: 1.0)
    result = for_whole_model([call(FASTER), second])
    assert result.lines == [] and why in result.why
