"""A few rows of one call that nobody knew before: the honest pass, and what is off is seen."""

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


@pytest.mark.parametrize("name", ["sdpa.flash", "cosformer", "topk"])
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
