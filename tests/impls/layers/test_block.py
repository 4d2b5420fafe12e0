"""Blocks: against nn.TransformerEncoderLayer, outputs and every gradient."""

import pytest
import torch
from torch import nn

from tests.impls.small import layer as problem
from tests.impls.small import made


@pytest.mark.parametrize(
    ("norm", "activation", "mask"),
    [("pre", "relu", "causal"), ("pre", "gelu", "none"), ("post", "gelu", "causal")],
)
def test_a_block_is_torchs_encoder_layer_by_output_and_every_gradient(norm, activation, mask):
    asked = problem(mask, "train", level="block", dtype="float64")
    attend, define = made(f"block?norm={norm}&activation={activation}&ff=2", asked)
    told = {"activation": activation, "batch_first": True, "norm_first": norm == "pre"}
    theirs = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, dtype=torch.float64, **told)
    ours = {name: weight.detach() for name, weight in attend.weights.items()}
    names = {
        "in_weight": "self_attn.in_proj_weight",
        "out_weight": "self_attn.out_proj.weight",
        "out_bias": "self_attn.out_proj.bias",
    }
    for part, torchs in (("ff1", "linear1"), ("ff2", "linear2"), ("norm1",) * 2, ("norm2",) * 2):
        names |= {f"{part}_{which}": f"{torchs}.{which}" for which in ("weight", "bias")}
    in_bias = torch.cat([ours[f"{letter}_bias"] for letter in "qkv"])
    given = {theirs_is: ours[name] for name, theirs_is in names.items()}
    theirs.load_state_dict({**given, "self_attn.in_proj_bias": in_bias})

    x, upstream = torch.randn(1, 33, 32).double(), torch.randn(1, 33, 32).double()
    hidden = torch.ones(33, 33, dtype=torch.bool).triu(1) if mask == "causal" else None
    leaf = x.clone().requires_grad_()
    parameters = dict(theirs.named_parameters())
    out = theirs(leaf, hidden)
    wanted = torch.autograd.grad(out, [leaf, *parameters.values()], upstream)
    by_name = dict(zip(["x", *parameters], wanted, strict=True))
    parts = zip("qkv", by_name["self_attn.in_proj_bias"].chunk(3), strict=True)
    by_name |= {f"{letter}_bias": part for letter, part in parts}

    every = torch.arange(33)
    weights = {name: weight.clone().requires_grad_() for name, weight in ours.items()}
    forms = ((attend, attend.weights), (lambda t: define(t, every, weights), weights))
    for form, trained in forms:
        mine = x.clone().requires_grad_()
        got = form(mine)
        torch.testing.assert_close(got, out, atol=1e-12, rtol=1e-10)
        gradients = torch.autograd.grad(got, [mine, *trained.values()], upstream)
        for name, gradient in zip(["x", *trained], gradients, strict=True):
            want = by_name[names.get(name, name)]
            torch.testing.assert_close(
                gradient, want, atol=1e-11, rtol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
            )
