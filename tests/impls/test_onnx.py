"""Rows of softmax attention against ONNX's reference of Attention."""

import pytest
import torch

from tests.impls.onnx_reference import computed
from tests.impls.small import both_forms, draw, problem

MASKS = {
    "none": {},
    "causal@upper-left": {"is_causal": 1},
    "causal+window:5,0@upper-left": {"is_causal": 1, "left_window_size": 5},
    "window:5,3@upper-left": {"left_window_size": 5, "right_window_size": 3},
}
ROWS = ("einsum", "matmul", "chunked?block=16", "online?q_block=16&k_block=16")


@pytest.mark.parametrize("settings", [{}, {"softcap": 2.0, "scale": 0.5}], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("row", ROWS)
def test_softmax_attention_is_that_of_onnx(row, mask, settings):
    p = problem(mask, 45, q_len=37, dtype="float32", **settings)
    q, k, v = draw(p)
    (want,) = computed("Attention", {"Q": q, "K": k, "V": v}, ["Y"], **settings, **MASKS[mask])
    got = both_forms(row, p)[0](q, k, v).detach()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
