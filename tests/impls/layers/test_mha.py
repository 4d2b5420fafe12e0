"""Multi-head attention: against nn.MultiheadAttention, by outputs and by every named gradient."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import impls
from impls.layers.attention import MultiHeadAttention, from_torch, torch_parameters
from impls.layers.plain import _Again, masked_softmax
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem

B, N, M, E, H = 2, 7, 9, 24, 4


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


@pytest.mark.parametrize("options", ["key_bias=false", "bias=false", "core=linear.elu",
                                     "core=chunked?block=16", "core=mean_v"])  # fmt: skip
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
        name="mine", title="a core", family="elsewhere", computes="softmax", masks=("none",),
        build=f"{file}:build", cost=f"{file}:cost",
    )  # fmt: skip
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
    again = _Again.apply(q, k, v, added, ~torch.from_numpy(
        asked.mask.visible(asked.shape, rows.numpy())), 0.5)  # fmt: skip
    torch.testing.assert_close(again, kept)


# ---- the module against torch's -----------------------------------------------------------------


def torchs(**more):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, H, **more)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return theirs


def both(theirs, ours, *tokens, **masks):
    """Outputs, and the gradients of tokens and parameters by name, of theirs and of ours."""
    made = []
    for module in (theirs, ours):
        leaves = [x.clone().requires_grad_() for x in tokens]
        if module is theirs and not theirs.batch_first:
            out = theirs(*(x.transpose(0, 1) for x in leaves), **masks)[0].transpose(0, 1)
        else:
            out = module(*leaves, **masks)
            out = out[0] if module is theirs else out
        weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
        parameters = dict(module.named_parameters())
        gradients = torch.autograd.grad((out * weight).sum(), [*leaves, *parameters.values()])
        named = dict(zip(parameters, gradients[len(leaves) :], strict=True))
        made.append((out, *gradients[: len(leaves)], named))
    return made


@pytest.mark.parametrize("key_bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 10, "vdim": 14}, {"vdim": 6}])
def test_a_converted_layer_gives_the_same_output_and_every_gradient(
    widths, bias, batch_first, key_bias
):
    theirs = torchs(batch_first=batch_first, bias=bias, **widths)
    ours = from_torch(theirs, key_bias)
    tokens = (torch.randn(B, N, E), torch.randn(B, M, widths.get("kdim", E)),
              torch.randn(B, M, widths.get("vdim", E)))  # fmt: skip
    (*wanted, by_their_name), (*got, by_our_name) = both(theirs, ours, *tokens)
    for ours_is, theirs_is in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours_is, theirs_is, atol=1e-5, rtol=1e-4)
    under_our_names = torch_parameters(ours, by_their_name)
    assert set(under_our_names) == set(by_our_name)
    assert ("k_bias" in by_our_name) == (bias and key_bias)
    for name, gradient in by_our_name.items():
        torch.testing.assert_close(
            gradient, under_our_names[name], atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("kind", ["boolean", "additive", "by head", "padding", "both", "numbers"])
def test_masks_mean_what_they_mean_to_torch(kind):
    theirs = torchs(batch_first=True)
    hidden = torch.rand(N, M) < 0.3
    hidden[:, 0] = False
    padding = torch.zeros(B, M, dtype=torch.bool)
    padding[1, 5:] = True
    numbers = torch.zeros(B, M).masked_fill(padding, -torch.inf)
    masks = {
        "boolean": {"attn_mask": hidden}, "additive": {"attn_mask": torch.randn(N, M)},
        "by head": {"attn_mask": torch.randn(B * H, N, M)},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": hidden, "key_padding_mask": padding},
        "numbers": {"attn_mask": torch.randn(N, M), "key_padding_mask": numbers},
    }[kind]  # fmt: skip
    tokens = (torch.randn(B, N, E), torch.randn(B, M, E), torch.randn(B, M, E))
    (*wanted, _), (*got, _) = both(theirs, from_torch(theirs), *tokens, **masks)
    for ours_is, theirs_is in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours_is, theirs_is, atol=1e-5, rtol=1e-4)


def test_true_hides_as_in_torchs_layer_and_not_as_in_its_function():
    ours = MultiHeadAttention(E, H)
    x = torch.randn(B, N, E)
    later = torch.ones(N, N, dtype=torch.bool).triu(1)
    q, k, v = ours.project(x)
    want = ours.join(F.scaled_dot_product_attention(q, k, v, ~later))
    torch.testing.assert_close(ours(x, attn_mask=later), want)
    torch.testing.assert_close(ours(x, is_causal=True), want)


def test_a_causal_mask_over_more_keys_ends_at_the_last():
    ours = MultiHeadAttention(E, H)
    x, y = torch.randn(B, 2, E), torch.randn(B, 5, E)
    hidden = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
    torch.testing.assert_close(ours(x, y, is_causal=True), ours(x, y, attn_mask=hidden))


def test_a_query_that_may_see_nothing_gets_the_bias_alone():
    ours = MultiHeadAttention(E, H)
    with torch.no_grad():
        ours.out_bias.normal_()
    hidden = torch.zeros(N, N, dtype=torch.bool)
    hidden[3] = True
    out = ours(torch.randn(B, N, E), attn_mask=hidden)
    torch.testing.assert_close(out[:, 3], ours.out_bias.expand(B, E))


def test_grouped_heads_are_repeated_heads():
    ours = MultiHeadAttention(E, H, 2)
    full = MultiHeadAttention(E, H)
    with torch.no_grad():
        q, k, v = ours.in_weight.split((E, E // 2, E // 2))
        repeated = [w.view(2, 6, E).repeat_interleave(2, 0).flatten(0, 1) for w in (k, v)]
        full.in_weight.copy_(torch.cat((q, *repeated)))
        full.out_weight.copy_(ours.out_weight)
    x = torch.randn(B, N, E)
    torch.testing.assert_close(ours(x), full(x))


def test_no_bias_of_the_keys_changes_the_output():
    ours = MultiHeadAttention(E, H)
    x = torch.randn(B, N, E)
    before = ours(x)
    with torch.no_grad():
        ours.k_bias.normal_()
    torch.testing.assert_close(ours(x), before, atol=1e-6, rtol=1e-5)


def test_a_core_of_ones_own_takes_the_place_of_softmax():
    ours = MultiHeadAttention(E, H, core=lambda q, k, v: v.cumsum(2))
    x = torch.randn(B, N, E)
    values = ours.project(x)[2]
    torch.testing.assert_close(ours(x), ours.join(values.cumsum(2)))
    with pytest.raises(ValueError, match="build it with its mask"):
        ours(x, is_causal=True)


@pytest.mark.parametrize("key", ["add_bias_kv", "add_zero_attn"])
def test_a_layer_with_a_key_that_is_no_token_is_refused(key):
    with pytest.raises(ValueError, match="a key that is no token"):
        from_torch(nn.MultiheadAttention(E, H, **{key: True}))


def test_what_the_module_cannot_be_is_refused():
    with pytest.raises(ValueError, match="multiple of heads"):
        MultiHeadAttention(E, 5)
    with pytest.raises(ValueError, match="below 1"):
        MultiHeadAttention(E, H, dropout=1.0)


# ---- dropout, by its statistics ------------------------------------------------------------------


def weights_of(dropout, tokens):
    """A module of one head whose output is its matrix of weights."""
    module = MultiHeadAttention(tokens, 1, dropout=dropout)
    with torch.no_grad():
        module.in_weight[2 * tokens :] = torch.eye(tokens)
        module.out_weight.copy_(torch.eye(tokens))
    queries = torch.randn(1, tokens, tokens)
    return module, (queries, queries, torch.eye(tokens)[None])


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_drops_the_share_asked_and_keeps_the_mean(share):
    torch.manual_seed(1)
    module, tokens = weights_of(share, 16)
    draws = 2000
    with torch.no_grad():
        want = module.eval()(*tokens)
        module.train()
        got = torch.stack([module(*tokens) for _ in range(draws)])
    kept = got != 0
    many = kept.numel()
    assert abs(float((~kept).float().mean()) - share) < 4 * math.sqrt(share * (1 - share) / many)
    torch.testing.assert_close(got[kept], (want / (1 - share)).expand_as(got)[kept])
    away = (got.mean(0) - want) / (got.std(0) / math.sqrt(draws))
    assert float(away.abs().max()) < 5
    assert abs(float(away.square().mean()) - 1) < 0.5


def test_a_converted_layer_drops_as_much_and_nothing_in_evaluation():
    theirs = torchs(dropout=0.5, batch_first=True)
    ours, x = from_torch(theirs), torch.randn(B, N, E)
    assert ours.training and ours.dropout == 0.5
    assert not torch.equal(ours(x), ours(x))
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], atol=1e-5, rtol=1e-4)
    assert torch.equal(ours(x), ours(x))
