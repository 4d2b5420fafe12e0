"""Multi-head attention as a row: by the gate, and its definitions against torch's layer."""

import pytest
import torch
from torch import nn

import impls
from impls.layers.plain import _Again, masked_softmax
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem


def problem(mask="none", phase="train", **more):
    given = {"heads": 4, "kv_heads": 4, "q_len": 37, "kv_len": 37, "head_dim": 8, **more}
    return Problem(
        level="layer", mask=Mask.parse(mask), phase=phase, v_head_dim=given["head_dim"], **given
    )


def built(name, asked):
    row = impls.table().find(name)
    attend = load_function(row.build)(asked, **row.chosen)
    return attend, load_function(row.definition)(asked, **row.chosen)


CELLS = [
    {}, {"phase": "forward"}, {"mask": "causal"}, {"mask": "window:5,2"}, {"mask": "prefix:9"},
    {"mask": "document:10,27"}, {"mask": "padding:37,20", "batch": 2}, {"mask": "causal+alibi"},
    {"mask": "padding:37,0", "batch": 2}, {"q_len": 12}, {"q_len": 50, "mask": "causal"},
    {"kv_heads": 2}, {"kv_heads": 1, "mask": "causal"}, {"heads": 1, "kv_heads": 1},
    {"q_len": 1, "kv_len": 1}, {"phase": "decode", "q_len": 1, "kv_heads": 2},
    {"phase": "decode", "q_len": 3, "mask": "causal"}, {"phase": "decode", "q_len": 1, "kv_len": 1},
    {"phase": "decode", "q_len": 1, "mask": "window:9,0", "dtype": "bfloat16"},
]  # fmt: skip


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("name", ["mha", "mha.einsum"])
def test_the_gate_takes_every_kind_of_problem(verdict, name, cell):
    assert verdict(name, problem(**cell)).reason is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("name", ["mha", "mha.einsum"])
def test_the_gate_takes_every_dtype_and_kind_of_input(verdict, name, dtype, inputs):
    asked = problem("causal", dtype=dtype, inputs=inputs, q_len=70, kv_len=70)
    assert verdict(name, asked).reason is None


def test_float64(verdict):
    assert verdict("mha", problem("causal", dtype="float64")).reason is None
    assert verdict("mha.einsum", problem("causal", dtype="float64")).reason is None


@pytest.mark.parametrize(
    "options",
    ["key_bias=false", "bias=false", "core=linear.elu", "core=chunked?block=16", "core=mean_v"],
)
@pytest.mark.parametrize("phase", ["train", "decode"])
def test_the_gate_takes_options_and_other_cores(verdict, options, phase):
    asked = problem("causal", phase, q_len=37 if phase == "train" else 1)
    assert verdict(f"mha?{options}", asked).reason is None


def test_around_a_core_it_computes_what_the_core_does_and_takes_its_masks():
    row = impls.table().find("mha?core=linear.elu")
    assert row.computes == "its own operator"
    assert row.supports(problem("window:3,0")) is not None
    assert "k_bias" not in built("mha?key_bias=false", problem())[0].weights
    assert set(built("mha?bias=false", problem())[0].weights) == {"in_weight", "out_weight"}


def test_a_core_may_live_in_a_file_of_its_own(verdict, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from impls.cost import softmax as cost\n"
        "def build(problem):\n"
        "    return lambda q, k, v: (q @ k.mT * problem.scale).softmax(-1) @ v\n"
    )
    core = impls.spec.Variant(
        name="mine",
        title="a core",
        family="elsewhere",
        computes="softmax",
        masks=("none",),
        build=f"{file}:build",
        cost=f"{file}:cost",
    )
    row = impls.table().rows["mha"].over(core)
    assert verdict(row, problem()).reason is None
    assert load_function(row.cost)(problem(), **row.chosen).flops > 0
    assert row.supports(problem("causal")) is not None


def test_a_core_with_a_state_decodes_from_its_state():
    asked = problem("causal", "decode", q_len=1)
    attend, _ = built("mha?core=linear.elu", asked)
    memory = attend.remember(torch.randn(1, 36, 32))
    assert not isinstance(memory.kept, list), "keys and values were kept"


@pytest.mark.parametrize("name", ["mha", "mha.einsum", "mha?core=linear.elu"])
def test_decoding_token_by_token_gives_the_rows_of_the_whole(name):
    x = torch.randn(2, 37, 32)
    whole, _ = built(name, problem("causal", "forward", batch=2))
    last, _ = built(name, problem("causal", "decode", q_len=1, batch=2))
    three, _ = built(name, problem("causal", "decode", q_len=3, batch=2))
    with torch.no_grad():
        want = whole(x)
    got, memory = last.step(x[:, 36:], last.remember(x[:, :36]))
    torch.testing.assert_close(got, want[:, 36:])
    assert memory.tokens == 37
    torch.testing.assert_close(three.step(x[:, 34:], three.remember(x[:, :34]))[0], want[:, 34:])


def test_a_decoder_with_more_queries_than_tokens_is_refused():
    with pytest.raises(impls.spec.Unsupported, match="q_len=9 is above kv_len=4"):
        built("mha", problem("none", "decode", q_len=9, kv_len=4))


@pytest.mark.parametrize("crosses", [False, True])
def test_the_definition_is_torchs_layer(crosses):
    asked = problem(dtype="float64", q_len=5 if crosses else 37)
    _, define = built("mha", asked)
    w = define.weights
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(w["in_weight"])
        theirs.in_proj_bias.copy_(torch.cat((w["q_bias"], w["k_bias"], w["v_bias"])))
        theirs.out_proj.weight.copy_(w["out_weight"])
        theirs.out_proj.bias.copy_(w["out_bias"])
    x, y = torch.randn(1, asked.q_len, 32).double(), torch.randn(1, 37, 32).double()
    tokens = (x, y, y) if crosses else (x, x, x)
    rows = torch.tensor([3, 0])
    given = (x, y) if crosses else (x,)
    got = define(*given, rows, w)
    torch.testing.assert_close(got, theirs(*tokens)[0][:, rows], atol=1e-12, rtol=1e-10)


def test_weights_by_einsum_are_torchs_by_heads():
    asked = problem("none", "forward", dtype="float64")
    attend, define = built("mha.einsum", asked)
    w = {name: value.detach() for name, value in define.weights.items()}
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([w[f"{n}_weight"].flatten(0, 1) for n in "qkv"]))
        theirs.in_proj_bias.copy_(torch.cat([w[f"{n}_bias"] for n in "qkv"]))
        theirs.out_proj.weight.copy_(w["out_weight"].flatten(0, 1).T)
        theirs.out_proj.bias.copy_(w["out_bias"])
        x = torch.randn(1, 37, 32).double()
        want = theirs(x, x, x)[0]
        torch.testing.assert_close(attend(x), want, atol=1e-12, rtol=1e-10)
        torch.testing.assert_close(
            define(x, torch.arange(37), define.weights), want, atol=1e-12, rtol=1e-10
        )


def test_weights_computed_again_are_differentiated_right():
    asked = problem("causal+alibi", heads=2, kv_heads=2, q_len=5, kv_len=6).with_(level="core")
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
