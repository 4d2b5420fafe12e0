"""torch's own modules: which path runs, and that nothing shared is left changed."""

import pytest
import torch
from torch.profiler import profile

from attnbench.gate.watch import changes, snapshot
from impls.spec import Unsupported
from tests.impls.small import layer, made, verdict

FAST = {
    "layer": "aten::_native_multi_head_attention",
    "block": "aten::_transformer_encoder_layer_fwd",
}


def problem(level, mask="none", phase="forward", **more):
    return layer(mask, phase, 37, level, **more)


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
def test_the_gate_takes_the_fast_path(name, cell):
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
    attend, _ = made(f"{name}?fastpath={fastpath}", asked)
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
    ("name", "asked", "said"),
    [
        ("mha.native?need_weights=true", problem("layer", "padding:0"), "makes NaN of them"),
        ("block.native", problem("block", phase="train", dtype="bfloat16"), "torch's layer norm"),
    ],
)
def test_where_torchs_own_is_wrong_is_refused(name, asked, said):
    with pytest.raises(Unsupported, match=said):
        made(name, asked)
