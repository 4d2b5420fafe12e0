"""torch's own modules: which path runs, and that nothing shared is left changed."""

import pytest
import torch
from torch import nn
from torch.profiler import profile

import impls
from attnbench.gate.watch import changes, snapshot
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem
from impls.spec import Unsupported

FAST = {
    "layer": "aten::_native_multi_head_attention",
    "block": "aten::_transformer_encoder_layer_fwd",
}


def problem(level, mask="none", phase="forward", **more):
    given = {"heads": 4, "kv_heads": 4, "q_len": 37, "kv_len": 37, "head_dim": 8, **more}
    return Problem(
        level=level, mask=Mask.parse(mask), phase=phase, v_head_dim=given["head_dim"], **given
    )


def built(name, asked):
    row = impls.table().find(name)
    assert row.supports(asked) is None
    return load_function(row.build)(asked, **row.chosen)


@pytest.mark.parametrize(
    "cell",
    [
        {},
        {"phase": "forward"},
        {"mask": "causal"},
        {"mask": "window:5,2"},
        {"mask": "causal+alibi"},
        {"mask": "padding:37,20", "batch": 2},
        {"mask": "document:10,27", "batch": 2},
        {"heads": 3, "kv_heads": 3},
        {"heads": 1, "kv_heads": 1},
        {"q_len": 1, "kv_len": 1},
        {"dtype": "float64"},
        {"inputs": "peaky"},
        {"inputs": "outliers"},
        {"inputs": "equal_keys"},
        {"dtype": "bfloat16", "phase": "forward"},
        {"dtype": "bfloat16", "phase": "forward", "inputs": "outliers"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name",
    [
        "mha.native",
        "mha.native?need_weights=true",
        "block.native",
        "block.native?norm=post&activation=relu",
    ],
)
def test_the_gate_takes_the_modules(verdict, name, cell):
    level = "block" if name.startswith("block") else "layer"
    assert verdict(name, problem(level, **{"phase": "train", **cell})).reason is None


@pytest.mark.parametrize(
    "cell",
    [
        {"q_len": 9},
        {"q_len": 50, "mask": "causal"},
        {"mask": "padding:37,0", "batch": 2},
        {"dtype": "bfloat16"},
        {"dtype": "float16", "inputs": "peaky"},
    ],
    ids=str,
)
def test_the_gate_takes_cross_attention_blind_rows_and_halves_of_the_layer(verdict, cell):
    assert verdict("mha.native", problem("layer", **{"phase": "train", **cell})).reason is None


@pytest.mark.parametrize(
    "cell",
    [
        {},
        {"mask": "causal"},
        {"mask": "window:5,2", "batch": 2},
        {"mask": "padding:37,20", "batch": 2},
        {"dtype": "bfloat16"},
        {"dtype": "float64"},
        {"inputs": "peaky"},
        {"q_len": 1, "kv_len": 1},
        {"mask": "causal+padding:37,20", "batch": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name",
    [
        "mha.native?fastpath=true",
        "mha.native?fastpath=true&need_weights=true",
        "block.native?fastpath=true",
        "block.native?fastpath=true&norm=post&activation=relu",
    ],
)
def test_the_gate_takes_the_fast_path(verdict, name, cell):
    asked = problem("block" if name.startswith("block") else "layer", **cell)
    assert verdict(name, asked).reason is None


@pytest.mark.parametrize("mask", ["none", "causal", "padding:20"])
@pytest.mark.parametrize("fastpath", [True, False])
@pytest.mark.parametrize("name", ["mha.native", "block.native"])
def test_the_note_says_which_path_the_profiler_sees(name, fastpath, mask):
    asked = problem("block" if name.startswith("block") else "layer", mask)
    before = snapshot(), torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state()
    attend = built(f"{name}?fastpath={fastpath}", asked)
    x = torch.randn(1, 37, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), profile() as seen:
        attend(x)
    ran = FAST[asked.level] in {event.key for event in seen.key_averages()}
    assert ran == fastpath
    assert attend.note().startswith("the fast path ran" if fastpath else "no fast path ran")
    assert not changes(before[0])
    assert torch.backends.mha.get_fastpath_enabled() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"phase": "train"}, "for inference, not for phase train"),
        ({"heads": 3, "kv_heads": 3}, "an even number of heads, not 3"),
        ({"mask": "alibi"}, "adds no numbers, as alibi does"),
        ({"q_len": 5}, "q_len equal to kv_len"),
        ({"mask": "padding:0"}, "some rows may see nothing"),
    ],
)
def test_the_fast_path_refuses_what_torch_would_take_elsewhere(asked, why):
    with pytest.raises(Unsupported, match=why):
        built("mha.native?fastpath=true", problem("layer", **asked))


def test_the_fast_path_refuses_where_it_is_switched_off():
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with pytest.raises(Unsupported, match="switched off"):
            built("block.native?fastpath=true", problem("block"))
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def test_weights_of_rows_that_see_nothing_are_refused_since_torch_makes_nan_of_them():
    with pytest.raises(Unsupported, match="makes NaN of them"):
        built("mha.native?need_weights=true", problem("layer", "padding:0"))
    module, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    hidden = torch.ones(3, 3, dtype=torch.bool)
    assert module(x, x, x, attn_mask=hidden)[0].isnan().any()


def test_half_precision_training_of_a_block_is_refused_since_torchs_layer_norm_is_off():
    with pytest.raises(Unsupported, match="torch's layer norm on the CPU"):
        built("block.native", problem("block", phase="train", dtype="bfloat16"))
    torch.manual_seed(0)
    x, dout = (torch.randn(1024, 32).bfloat16() for _ in range(2))
    shift = torch.zeros(32, dtype=torch.bfloat16, requires_grad=True)
    out = nn.functional.layer_norm(x, (32,), None, shift)
    (got,) = torch.autograd.grad(out, shift, dout)
    want = dout.double().sum(0)
    assert float((got.double() - want).norm() / want.norm()) > 0.02


@pytest.mark.parametrize("option", ["norm=mid", "activation=swish", "ff=0"])
@pytest.mark.parametrize("name", ["block", "block.native"])
def test_options_out_of_range_are_refused(name, option):
    with pytest.raises(Unsupported, match=f"{option.split('=')[0]}="):
        built(f"{name}?{option}", problem("block"))
