"""Multi-head attention as a row: by the gate, and its definitions against torch's layer."""

import pytest
import torch
from torch import nn

import impls
from impls.layers.plain import _Again, masked_softmax
from impls.loading import load_function
from tests.impls.small import layer as problem
from tests.impls.small import made


def test_a_core_may_live_in_a_file_of_its_own(verdict, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from impls.cost import softmax as cost\n"
        "def build(problem):\n"
        "    return lambda q, k, v: (q @ k.mT * problem.scale).softmax(-1) @ v\n"
    )
    core = impls.spec.Variant(
        "mine", "a core", "elsewhere", "softmax", f"{file}:build", masks=("none",),
        cost=f"{file}:cost",
    )  # fmt: skip
    row = impls.table().rows["mha"].over(core)
    assert verdict(row, problem(phase="train")).reason is None
    assert load_function(row.cost)(problem(), **row.chosen).flops > 0
    assert row.supports(problem("causal")) is not None


def test_a_decoder_with_more_queries_than_tokens_is_refused():
    with pytest.raises(impls.spec.Unsupported, match="q_len=9 is above kv_len=4"):
        made("mha", problem("none", "decode", q_len=9, kv_len=4))


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


NAMES = ["mha", "mha.einsum", "mha?core=linear.elu", "mla", "mla?absorbed=true"]
NAMES += ["block", "block?norm=post", "block?core=linear.elu"]


@pytest.mark.parametrize("name", NAMES)
def test_decoding_token_by_token_gives_the_rows_of_the_whole(name):
    level, x = impls.table().find(name).level, torch.randn(2, 33, 32)
    whole, one, three = (
        made(name, problem("causal", phase, level=level, q_len=n, kv_len=33, batch=2))[0]
        for phase, n in (("forward", 33), ("decode", 1), ("decode", 3))
    )
    with torch.no_grad():
        want = whole(x)
        torch.testing.assert_close(three(x), want[:, 30:])
    got, memory = one.step(x[:, 32:], one.remember(x[:, :32]))
    torch.testing.assert_close(got, want[:, 32:])
    assert memory.tokens == 33
    if "mla" in name:
        assert memory.kept.shape == (2, 33, 8 + 4), "a latent of a quarter, a key of half a head"
    torch.testing.assert_close(three.step(x[:, 30:], three.remember(x[:, :30]))[0], want[:, 30:])


@pytest.mark.parametrize("name", ["mla", "block"])
def test_a_context_is_refused_where_there_can_be_none(name):
    row = impls.table().find(name)
    refusal = row.supports(problem(level=row.level, q_len=5))
    assert refusal == f"{name} needs q_len equal to kv_len, but in decode"


def test_weights_computed_again_are_differentiated_right():
    asked = problem("causal+alibi", "train", level="core", heads=2, kv_heads=2, q_len=5, kv_len=6)
    rows = torch.tensor([4, 1, 0])
    hidden = ~torch.from_numpy(asked.mask.visible(asked.shape, rows.numpy()))
    added = torch.from_numpy(asked.mask.bias(asked.shape, rows.numpy()))
    hidden = hidden.clone()
    hidden[:, :, 1] = True  # a row that sees nothing
    q, k, v = (torch.randn(1, 2, n, 4).double().requires_grad_() for n in (3, 6, 6))
    assert torch.autograd.gradcheck(
        lambda *x: _Again.apply(*x, added, hidden, 0.5), (q, k, v), atol=1e-6
    )
    kept = masked_softmax(q @ k.mT * 0.5, asked, rows) @ v
    again = _Again.apply(
        q, k, v, added, ~torch.from_numpy(asked.mask.visible(asked.shape, rows.numpy())), 0.5
    )
    torch.testing.assert_close(again, kept)
