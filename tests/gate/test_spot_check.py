"""A few rows of one call: what is right is never accused, and what is broken is seen."""

from contextlib import nullcontext

import pytest
import torch

from attnbench.gate import spot_check
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import Call, make
from impls import table
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

PROBLEM = Problem(heads=2, kv_heads=2, q_len=640, kv_len=640, mask=Mask.parse("causal"))


def called(name, problem, rows, seed=0):
    """What a variant makes of a problem, and what it should make of some rows."""
    row, inputs = table().find(name), make(problem, seed)
    attend = load_function(row.build)(problem, **row.chosen)
    define = None
    if row.definition:
        define = load_function(row.definition)(problem, **row.chosen)
    call, dout = Call(problem, attend, inputs), None
    out = call.forward()
    got = {"forward": out.detach()}
    if problem.gradients:
        dout = torch.zeros(problem.output_shape)
        some = torch.randn(1, problem.heads, len(rows), problem.v_head_dim)
        dout[:, :, rows] = some
        got |= dict(zip(call.names, call.backward(out, dout), strict=True))
    return got, spot_check.reference(problem, inputs, rows, dout, define, seed)


@pytest.mark.parametrize("name", ["sdpa.flash", "online", "cosformer", "hedgehog", "delta", "topk"])
def test_nothing_honest_is_accused_whichever_rows_are_drawn(name):
    problem = PROBLEM.with_(phase="train")
    for seed in range(3):
        torch.manual_seed(seed)
        got, wanted = called(name, problem, spot_check.secret_rows(problem, 16), seed)
        spot_check.check(problem, got, wanted)


@pytest.mark.parametrize("tensor", ["forward", "dq", "dk", "dv"])
def test_a_thousandth_is_seen_in_each(tensor):
    problem = PROBLEM.with_(phase="train")
    got, wanted = called("einsum", problem, spot_check.secret_rows(problem, 16))
    got[tensor] = got[tensor] * 1.001
    with pytest.raises(Wrong, match=f"error of {tensor}"):
        spot_check.check(problem, got, wanted)


@pytest.mark.parametrize(("times", "seen"), [(6.0, False), (40.0, True)])
def test_a_near_miss_in_a_few_rows_is_no_fault_and_a_far_one_is(times, seen):
    """In units of what the plain form is off by; over 256 rows the gate allows four and a half."""
    rows = spot_check.secret_rows(PROBLEM, 16)
    got, wanted = called("einsum", PROBLEM, rows)
    want = wanted.want["forward"]
    noise = torch.randn(want.shape, generator=torch.Generator().manual_seed(0))
    noise *= times * wanted.plain["forward"].relative * want.norm() / noise.norm()
    got["forward"][:, :, rows] = (want + noise).float()
    with pytest.raises(Wrong, match="error of forward") if seen else nullcontext():
        spot_check.check(PROBLEM, got, wanted)


def test_a_number_that_is_none_is_seen_in_rows_that_nobody_drew():
    rows = torch.tensor([0, 1, 639])
    got, wanted = called("einsum", PROBLEM, rows)
    got["forward"][0, 1, 300, 0] = torch.inf
    with pytest.raises(Wrong, match=r"not finite in the output: row 300 \(batch 0, head 1\)"):
        spot_check.check(PROBLEM, got, wanted)


def test_rows_are_the_edges_and_some_that_nobody_knows():
    drawn = [spot_check.secret_rows(PROBLEM, 16).tolist() for _ in range(5)]
    assert all({0, 1, 127, 128, 638, 639} <= set(rows) for rows in drawn)
    assert len({tuple(rows) for rows in drawn}) == 5
    assert {len(rows) for rows in drawn} <= {15, 16}
    assert spot_check.secret_rows(PROBLEM.with_(q_len=3), 16).tolist() == [0, 1, 2]


def test_the_room_of_a_check_grows_with_what_it_copies():
    exact, own = (spot_check.room(PROBLEM, exact=x) for x in (True, False))
    assert exact == 8 * (2 * 640 + 2 * 640) * 128
    assert own > exact
    train = PROBLEM.with_(phase="train")
    assert spot_check.room(train, exact=True) > exact and spot_check.room(train, exact=False) > own
