"""window.blocked, where it is long enough to be done in several slabs."""

import torch

from attnbench.gate.inputs import make
from impls.sparse.window import build
from tests.impls import small


def test_slabs_of_blocks_give_what_all_blocks_at_once_give():
    shape = {"batch": 1, "heads": 8, "kv_heads": 4, "v_head_dim": 16, "dtype": "float32"}
    whole = small.problem("window:40,17", 4200, **shape, phase="train")
    inputs = make(whole, 0)
    slabs = build(whole.with_(phase="forward"), block=0)
    assert len(slabs.band.slabs) > 2
    torch.testing.assert_close(slabs(*inputs[:3]), build(whole, block=0)(*inputs[:3]))
