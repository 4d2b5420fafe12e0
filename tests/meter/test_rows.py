"""A few rows of one call that nobody knew before: the honest pass, and what is off is seen."""

from contextlib import nullcontext

import pytest
import torch

from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import Call, make
from attnbench.meter.probe import check_rows, expected_of, secret_rows
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import both_forms

PROBLEM = Problem(heads=2, kv_heads=2, q_len=320, kv_len=320, mask=Mask.parse("causal"))


def called(name, problem, rows, seed=0):
    """What a variant makes of a problem, and what it should make of some rows."""
    inputs, (attend, define) = make(problem, seed), both_forms(name, problem)
    call, dout = Call(problem, attend, inputs), None
    out = call.forward()
    got = {"forward": out.detach()}
    if problem.gradients:
        dout = torch.zeros(problem.output_shape)
        some = torch.randn(1, problem.heads, len(rows), problem.v_head_dim)
        dout[:, :, rows] = some
        got |= dict(zip(call.names, call.backward(out, dout), strict=True))
    return got, expected_of(problem, inputs, rows, dout, define, seed)


@pytest.mark.parametrize(
    "name", ["sdpa.flash", "online", "cosformer", "hedgehog", "delta?gates=key", "topk"]
)
def test_nothing_honest_is_accused_whichever_rows_are_drawn(name):
    problem = PROBLEM.with_(phase="train")
    for seed in range(3):
        torch.manual_seed(seed)
        got, wanted = called(name, problem, secret_rows(problem, 16), seed)
        check_rows(problem, got, wanted)


def test_a_thousandth_is_seen_in_each():
    problem = PROBLEM.with_(phase="train")
    got, wanted = called("einsum", problem, secret_rows(problem, 16))
    for name in ("forward", "dq", "dk", "dv"):
        with pytest.raises(Wrong, match=f"error of {name}"):
            check_rows(problem, {**got, name: got[name] * 1.001}, wanted)


@pytest.mark.parametrize(("times", "seen"), [(6.0, False), (40.0, True)])
def test_a_near_miss_in_a_few_rows_is_no_fault_and_a_far_one_is(times, seen):
    """In units of what the plain form is off by; over 256 rows the gate allows four and a half."""
    rows = secret_rows(PROBLEM, 16)
    got, wanted = called("einsum", PROBLEM, rows)
    want = wanted.want["forward"]
    noise = torch.randn(want.shape, generator=torch.Generator().manual_seed(0))
    noise *= times * wanted.plain["forward"].relative * want.norm() / noise.norm()
    got["forward"][:, :, rows] = (want + noise).float()
    with pytest.raises(Wrong, match="error of forward") if seen else nullcontext():
        check_rows(PROBLEM, got, wanted)


def test_a_number_that_is_none_is_seen_in_rows_that_nobody_drew():
    rows = torch.tensor([0, 1, 319])
    got, wanted = called("einsum", PROBLEM, rows)
    got["forward"][0, 1, 200, 0] = torch.inf
    with pytest.raises(Wrong, match=r"not finite in the output: row 200 \(batch 0, head 1\)"):
        check_rows(PROBLEM, got, wanted)


def test_rows_are_the_edges_and_some_that_nobody_knows():
    drawn = [secret_rows(PROBLEM, 16).tolist() for _ in range(5)]
    assert all({0, 1, 127, 128, 318, 319} <= set(rows) for rows in drawn)
    assert len({tuple(rows) for rows in drawn}) == 5
    assert {len(rows) for rows in drawn} <= {15, 16}
    assert secret_rows(PROBLEM.with_(q_len=3), 16).tolist() == [0, 1, 2]
