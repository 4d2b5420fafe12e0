"""The definitions of multi-head attention against torch's layer."""

import pytest
import torch
from torch import nn

from tests.impls.small import layer as problem
from tests.impls.small import made


@pytest.mark.parametrize("crosses", [False, True])
def test_the_definition_is_torchs_layer(crosses):
    asked = problem(phase="train", dtype="float64", q_len=5 if crosses else 33)
    _, define = made("mha", asked)
    w = define.weights
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(w["in_weight"])
        theirs.in_proj_bias.copy_(torch.cat((w["q_bias"], w["k_bias"], w["v_bias"])))
        theirs.out_proj.weight.copy_(w["out_weight"])
        theirs.out_proj.bias.copy_(w["out_bias"])
    x, y = torch.randn(1, asked.q_len, 32).double(), torch.randn(1, 33, 32).double()
    tokens = (x, y, y) if crosses else (x, x, x)
    rows = torch.tensor([3, 0])
    given = (x, y) if crosses else (x,)
    got = define(*given, rows, w)
    torch.testing.assert_close(got, theirs(*tokens)[0][:, rows], atol=1e-12, rtol=1e-10)


def test_weights_by_einsum_are_torchs_by_heads():
    asked = problem("none", "forward", dtype="float64")
    attend, define = made("mha.einsum", asked)
    w = {name: value.detach() for name, value in define.weights.items()}
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([w[f"{n}_weight"].flatten(0, 1) for n in "qkv"]))
        theirs.in_proj_bias.copy_(torch.cat([w[f"{n}_bias"] for n in "qkv"]))
        theirs.out_proj.weight.copy_(w["out_weight"].flatten(0, 1).T)
        theirs.out_proj.bias.copy_(w["out_bias"])
        x = torch.randn(1, 33, 32).double()
        want = theirs(x, x, x)[0]
        torch.testing.assert_close(attend(x), want, atol=1e-12, rtol=1e-10)
        torch.testing.assert_close(
            define(x, torch.arange(33), define.weights), want, atol=1e-12, rtol=1e-10
        )
