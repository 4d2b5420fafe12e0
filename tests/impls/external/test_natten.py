"""NATTEN itself, where it is installed: its flex form runs on a CPU, forward."""

import pytest
import torch

import impls
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def installed():
    with pytest.MonkeyPatch.context():
        pytest.importorskip("natten")


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(("length", "window"), [(65, 8), (64, 5), (33, 2), (2, 2)])
def test_the_nearest_keys_are_those_of_the_definition(verdict, length, window, kv_heads, mask):
    problem = Problem(
        heads=4,
        kv_heads=kv_heads,
        q_len=length,
        kv_len=length,
        head_dim=32,
        v_head_dim=32,
        mask=Mask.parse(mask),
    )
    if mask == "causal" and window >= length:
        pytest.skip("flex has no causal form with a window of all keys")
    found = verdict(f"natten?window={window}", problem)
    assert found.reason is None


def test_a_window_of_all_keys_is_softmax_attention():
    problem = Problem(heads=2, kv_heads=2, q_len=40, kv_len=40, head_dim=32, v_head_dim=32)
    q, k, v = (torch.randn(1, 2, 40, 32) for _ in range(3))
    row = impls.table().find("natten?window=100")
    attend = load_function(row.build)(problem, **row.chosen)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(attend(q, k, v), want, rtol=1e-5, atol=1e-6)
    assert "window 100 is all 40 keys" in attend.note()
