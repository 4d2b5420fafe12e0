"""window.blocked: exact softmax attention under a window, and its cost."""

import pytest
import torch

from attnbench.gate.inputs import make
from impls.sparse.cost import window
from impls.sparse.window import build
from impls.spec import Unsupported
from tests.impls import small


def problem(length, mask, **more):
    shape = {"batch": 1, "heads": 2, "kv_heads": 2, "v_head_dim": 16, "dtype": "float32"}
    return small.problem(mask, length, **{**shape, **more})


def test_slabs_of_blocks_give_what_all_blocks_at_once_give():
    whole = problem(4200, "window:40,17", heads=8, kv_heads=4, phase="train")
    inputs = make(whole, 0)
    slabs = build(whole.with_(phase="forward"), block=0)
    assert len(slabs.band.slabs) > 2
    torch.testing.assert_close(slabs(*inputs[:3]), build(whole, block=0)(*inputs[:3]))


@pytest.mark.parametrize("mask", ["causal", "document:40,37"])
def test_a_mask_without_a_window_is_refused_with_a_sentence(mask):
    with pytest.raises(Unsupported, match="needs a window in the mask, such as"):
        build(problem(77, mask), block=0)


def test_the_work_is_counted_on_the_pairs_of_the_mask_whatever_the_block():
    given = problem(20, "causal+window:3,0")
    pairs = sum(min(i, 3) + 1 for i in range(20))
    assert window(given, block=7).flops == 2 * pairs * given.heads * (16 + 16)
