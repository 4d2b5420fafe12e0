"""torch's own modules: which path runs, and that nothing shared is left changed."""

import pytest
import torch
from torch import nn
from torch.profiler import profile

from attnbench.gate.watch import changes, snapshot
from impls.spec import Unsupported
from tests.impls.small import layer, made

FAST = {
    "layer": "aten::_native_multi_head_attention",
    "block": "aten::_transformer_encoder_layer_fwd",
}


def problem(level, mask="none", phase="forward", **more):
    return layer(mask, phase, 37, level, **more)


def built(name, asked):
    return made(name, asked)[0]


@pytest.mark.parametrize(
    "cell",
    [
        {"mask": "window:5,2", "batch": 2, "dtype": "bfloat16"},
        {"mask": "causal+padding:37,20", "batch": 2, "inputs": "peaky"},
        {"q_len": 1, "kv_len": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["mha.native?need_weights=true", "block.native?norm=post"])
def test_the_gate_takes_the_fast_path(verdict, name, cell):
    asked = problem("block" if name.startswith("block") else "layer", **cell)
    label = f"{name}{'&' if '?' in name else '?'}fastpath=true"
    assert verdict(label, asked).reason is None


@pytest.mark.parametrize(
    ("mask", "fastpath"), [("none", True), ("padding:20", True), ("causal", False)]
)
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
