"""Who holds which tokens, and what can't be dealt out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import impls
from impls.loading import load_function
from impls.parallel import shares
from impls.problem import Problem
from impls.spec import InvalidRow, Unsupported

WORLDS, SIZES = st.integers(2, 6), st.integers(1, 9)


def problem(length, **more):
    return Problem(q_len=length, kv_len=length, **more)


@given(WORLDS, SIZES)
def test_every_token_has_one_rank_and_every_rank_as_many(world, size):
    for deal, length in ((shares.ring, 2 * world * size), (shares.ulysses, world * size)):
        dealt = deal(problem(length, heads=world, kv_heads=world), world)
        assert sorted(place for one in dealt for place in one) == list(range(length))
        assert {len(one) for one in dealt} == {length // world}


@pytest.mark.parametrize(
    ("deal", "world", "more", "says"),
    [
        (shares.ring, 2, {}, "takes lengths that 4 divides"),
        (shares.ulysses, 2, {}, "needs q_len that 2 divides, not 129"),
        (shares.ulysses, 3, {"heads": 4, "kv_heads": 4}, "needs heads that 3 divides, not 4"),
        (shares.ulysses, 3, {"heads": 6, "kv_heads": 2}, "needs kv_heads that 3 divides, not 2"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused_in_a_sentence(deal, world, more, says):
    with pytest.raises(Unsupported, match=says):
        deal(problem(129, **more), world)


# ---- the rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["world=0", "world=999", "block=0"])
def test_an_option_out_of_range_is_refused_by_its_value(option):
    row = impls.table().find(f"ring?{option}" + "&world=2" * ("world" not in option))
    refusal = row.supports(problem(128))
    if refusal is None:
        with pytest.raises(Unsupported) as caught:
            load_function(row.build)(problem(128), None, row.chosen["block"])
        refusal = str(caught.value)
    assert option.partition("=")[2] in refusal


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("ring?world=2", {"kv_len": 256}, "needs q_len equal to kv_len"),
        ("ring?world=2", {"phase": "decode", "q_len": 1}, "not decode"),
        ("ring?world=3", {}, "lengths that 6 divides"),
        ("ring", {}, "ring runs over several processes: ask for --world 2"),
    ],
)
def test_what_a_row_cannot_take_is_said_before_a_process_is_started(name, changes, says):
    assert says in impls.table().find(name).supports(problem(128).with_(**changes))
    with pytest.raises(InvalidRow, match="runs over several"):
        impls.table().find("mha?core=ring")
