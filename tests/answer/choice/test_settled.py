"""Pairs settle what medians leave open: who wins, who can't be told from it, who comes next."""

import math
from pathlib import Path

import pytest

from attnbench.answer.choose import Choice, Excluded, Wants, Why, make_choice, settle
from attnbench.answer.ranking import Candidate
from attnbench.core.stats import paired
from attnbench.sweep.compare import ContestResult
from impls.loading import load_file

made = load_file(Path(__file__).with_name("seen.py"))


def start(**seconds) -> Choice:
    found = [
        Candidate(n, "softmax", s, s * 0.99, s * 1.01, measured=True) for n, s in seconds.items()
    ]
    return make_choice(made.problem(), Wants(), found, margin=0.05)


def pairs(judged, against, ratio, spread=0.002, margin=0.01):
    """A hundred pairs whose ratios lie evenly about one."""
    logs = [math.log(ratio) + spread * (i - 49.5) / 50 for i in range(100)]
    return ContestResult(judged, against, paired(logs, margin))


def test_a_tie_of_medians_that_pairs_tell_apart_is_none():
    found = settle(start(a=1.0, b=1.03, c=2.0), [pairs("b", "a", 1.03)])
    assert (found.winner.variant, found.equal, found.next.variant) == ("a", (), "b")
    assert found.lead.factor == pytest.approx(1.03, abs=0.001)
    assert [c.variant for c in found.ranking.slower] == ["b", "c"]


def test_the_one_that_pairs_say_is_faster_is_the_winner_whatever_the_medians_said():
    found = settle(start(a=1.0, b=1.03, c=2.0), [pairs("b", "a", 0.95)])
    assert (found.winner.variant, found.next.variant) == ("b", "a")
    assert found.lead.factor == pytest.approx(1 / 0.95, rel=1e-3)
    assert found.lead.low <= found.lead.factor <= found.lead.high


def test_what_pairs_can_t_tell_apart_stays_equal():
    found = settle(start(a=1.0, b=1.03, c=2.0), [pairs("b", "a", 1.002)])
    assert (found.winner.variant, [c.variant for c in found.equal]) == ("a", ["b"])
    assert found.next.variant == "c"
    assert found.lead.factor == pytest.approx(2.0)


def test_of_several_that_are_faster_the_fastest_wins_and_those_near_it_are_equal():
    taken = [pairs("b", "a", 0.900), pairs("c", "a", 0.901)]
    found = settle(start(a=1.0, b=1.03, c=1.04), taken)
    assert found.winner.variant == "b"
    assert [c.variant for c in found.equal] == ["c"]
    assert found.next.variant == "a"


def test_who_was_equal_and_was_held_against_nobody_stays_equal():
    choice = start(a=1.0, b=1.01, c=1.02, d=1.03, e=2.0)
    found = settle(choice, [pairs("b", "a", 1.001), pairs("c", "a", 1.002)])
    assert [c.variant for c in found.equal] == ["b", "c", "d"]
    assert found.next.variant == "e"


def test_the_lead_of_two_that_were_held_against_a_third_is_by_pairs():
    choice = start(a=1.0, b=1.03, c=1.01)
    found = settle(choice, [pairs("b", "a", 0.8), pairs("c", "a", 0.9)])
    assert (found.winner.variant, found.next.variant) == ("b", "c")
    assert found.lead.factor == pytest.approx(0.9 / 0.8, rel=1e-3)
    assert found.lead.low > 1


def test_pairs_of_somebody_who_was_not_ranked_change_nothing():
    choice = start(a=1.0, b=1.03)
    assert settle(choice, [pairs("x", "a", 0.5)]) is choice
    assert settle(choice, [pairs("b", "x", 0.5)]) is choice


def test_without_pairs_it_stays_as_it_is():
    choice = start(a=1.0, b=1.03)
    assert settle(choice, []) is choice


def test_the_pairs_are_kept_as_plain_values():
    found = settle(start(a=1.0, b=1.03), [pairs("b", "a", 1.03)])
    (said,) = found.to_dict()["pairs"]
    assert (said["judged"], said["against"], said["verdict"]) == ("b", "a", "SLOWER")


def test_among_those_that_pairs_leave_tied_torchs_own_is_the_winner():
    choice = start(matmul=1.0, sdpa=1.03, einsum=2.0)
    assert choice.winner.variant == "sdpa"
    tied = settle(choice, [pairs("sdpa", "matmul", 1.004)])
    assert (tied.winner.variant, [c.variant for c in tied.equal]) == ("sdpa", ["matmul"])
    told = settle(choice, [pairs("sdpa", "matmul", 1.03)])
    assert (told.winner.variant, told.equal, told.next.variant) == ("matmul", (), "sdpa")
    assert told.lead.factor == pytest.approx(1.03)


@pytest.mark.parametrize(("about_s", "answered"), [(0.9, False), (1.005, False), (1.02, True)])
def test_a_rival_of_uncertain_time_is_faster_for_all_that_is_known(about_s, answered):
    """The best takes 0.99 to 1.01 s."""
    best = Candidate("a", "softmax", 1.0, 0.99, 1.01, measured=True)
    rival = Excluded("b", Why.UNKNOWN, "its time is not known", about_s=about_s, at_best_s=0.5)
    choice = make_choice(made.problem(), Wants(), [best, rival], margin=0.05)
    assert (choice.winner is not None) == answered
    assert choice.unknown == [rival]
