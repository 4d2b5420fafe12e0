"""Blocks: against nn.TransformerEncoderLayer, outputs and every gradient."""

import pytest
import torch
from torch import nn

import impls
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem


def problem(mask="none", phase="forward", **more):
    given = {"heads": 4, "kv_heads": 4, "q_len": 33, "kv_len": 33, "head_dim": 8, **more}
    return Problem(
        level="block", mask=Mask.parse(mask), phase=phase, v_head_dim=given["head_dim"], **given
    )


def built(name, asked):
    row = impls.table().find(name)
    assert row.supports(asked) is None
    attend = load_function(row.build)(asked, **row.chosen)
    return attend, load_function(row.definition)(asked, **row.chosen)


@pytest.mark.parametrize(
    "cell",
    [
        {},
        {"mask": "causal"},
        {"mask": "window:5,2"},
        {"mask": "causal+alibi"},
        {"mask": "padding:33,0", "batch": 2},
        {"heads": 1, "kv_heads": 1},
        {"kv_heads": 2},
        {"q_len": 1, "kv_len": 1},
        {"phase": "decode", "q_len": 1, "kv_heads": 2},
        {"phase": "forward"},
        {"phase": "decode", "q_len": 3, "mask": "causal"},
        {"dtype": "float64"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["block", "block?norm=post&activation=relu&ff=1"])
def test_the_gate_takes_blocks(verdict, name, cell):
    assert verdict(name, problem(**{"phase": "train", **cell})).reason is None


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["block", "block?norm=post"])
def test_the_gate_takes_every_kind_of_input(verdict, name, dtype, inputs):
    asked = problem("causal", "train", dtype=dtype, inputs=inputs, q_len=70, kv_len=70)
    assert verdict(name, asked).reason is None


@pytest.mark.parametrize("core", ["linear.elu", "chunked?block=16", "matmul"])
@pytest.mark.parametrize("phase", ["train", "decode"])
def test_the_gate_takes_other_cores(verdict, core, phase):
    asked = problem("causal", phase, q_len=33 if phase == "train" else 1)
    assert verdict(f"block?core={core}", asked).reason is None


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_is_torchs_encoder_layer_by_output_and_every_gradient(norm, activation, mask):
    asked = problem(mask, "train", dtype="float64")
    attend, define = built(f"block?norm={norm}&activation={activation}&ff=2", asked)
    theirs = nn.TransformerEncoderLayer(
        32,
        4,
        64,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm == "pre",
        dtype=torch.float64,
    )
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


@pytest.mark.parametrize("name", ["block", "block?norm=post", "block?core=linear.elu"])
def test_decoding_token_by_token_gives_the_rows_of_the_whole(name):
    x = torch.randn(2, 33, 32)
    whole, _ = built(name, problem("causal", batch=2))
    three, _ = built(name, problem("causal", "decode", q_len=3, batch=2))
    with torch.no_grad():
        want = whole(x)[:, 30:]
        torch.testing.assert_close(three(x), want)
    torch.testing.assert_close(three.step(x[:, 30:], three.remember(x[:, :30]))[0], want)


def test_a_context_is_refused():
    refusal = impls.table().find("block").supports(problem(q_len=5))
    assert refusal == "block needs q_len equal to kv_len, but in decode"
