"""Claims one after the other: budgets, what is left out, and Ctrl-C."""

import pytest

import impls
from attnbench.features.claims.claim import (
    ClaimFigure,
    ClaimFindings,
    ClaimOutcome,
    ClaimRequest,
    ClaimVerdict,
    Needs,
)
from attnbench.features.claims.reproduce import Reproduction
from tests.claims.made import BOX, claim, point

SOME = [claim(name=name) for name in ("one", "two", "three")]


def going(some=SOME, **more):
    return Reproduction(some, BOX, impls.table(), **more)


def holds(one, asked):
    return ClaimOutcome.of(one, ClaimFindings({"one": ClaimFigure(0.5)}))


def test_each_claim_gets_an_outcome_in_order():
    found = list(going().all(holds))
    assert [one.claim.name for one in found] == ["one", "two", "three"]
    assert {one.verdict for one in found} == {ClaimVerdict.REPRODUCED}


def test_what_this_machine_can_not_try_is_not_tried():
    tried = []
    some = [claim(name="far", needs=Needs(gpu="H200")), *SOME]
    running = going(some)
    found = list(running.all(lambda one, asked: tried.append(one.name) or holds(one, asked)))
    assert [one.verdict for one in found][:1] == [ClaimVerdict.NEEDS_OTHER_HARDWARE]
    assert tried == ["one", "two", "three"]


def test_ctrl_c_keeps_what_was_found_and_stops_the_rest():
    def stopped(one, asked):
        if one.name == "two":
            raise KeyboardInterrupt
        return holds(one, asked)

    running = going()
    found = list(running.all(stopped))
    assert [one.verdict for one in found] == [
        ClaimVerdict.REPRODUCED,
        ClaimVerdict.NOT_RUN,
        ClaimVerdict.NOT_RUN,
    ]
    assert running.stopped
    assert found[1].reason == "it was stopped"
    assert found[2].remedy == "attnbench reproduce three"


def test_who_gives_up_between_claims_loses_none_of_them():
    running = going()
    going_on = running.all(holds)
    next(going_on)
    running.give_up()
    assert [one.claim.name for one in running.found] == ["one", "two", "three"]
    assert [one.verdict for one in running.found] == [
        ClaimVerdict.REPRODUCED,
        ClaimVerdict.NOT_RUN,
        ClaimVerdict.NOT_RUN,
    ]


@pytest.mark.parametrize(("budget", "seconds"), [(None, [60, 120]), (30.0, [10, 20])])
def test_a_budget_is_shared_by_what_is_timed(budget, seconds):
    some = [
        claim(name="short", timed=True, minutes=1.0),
        claim(name="long", timed=True, minutes=2.0),
        claim(name="exact", minutes=0.5),
        claim(name="far", needs=Needs(gpu="H200"), timed=True, minutes=9.0),
    ]
    running = going(some, budget_s=budget)
    assert [running.asked(one).seconds for one in some[:2]] == pytest.approx(seconds)
    assert running.minutes == pytest.approx(sum(seconds) / 60 + 0.5)


def test_a_function_is_told_the_cells_of_its_points():
    one = claim(point("a", cell={"variant": "sdpa"}), point("b"))
    assert going([one], seed=3, threads=2).asked(one) == ClaimRequest(
        {"a": {"variant": "sdpa"}}, 3, 2, pytest.approx(6.0), None
    )
