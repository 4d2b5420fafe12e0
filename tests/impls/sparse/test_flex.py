"""FlexAttention. Each problem is compiled, which takes seconds: the default tests are few."""

import numpy as np
import pytest
import torch

from impls.masks import Mask
from impls.problem import Problem
from impls.sparse.flex import _fitted, build
from impls.sparse.flex_kernel import mask_blocks

SMALL = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 77, "kv_len": 77, "head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip
DRAWN = np.random.default_rng(0)
BIAS = DRAWN.choice([-np.inf, 0.5, -1.25, 2.0], (2, 4, 77, 77))
BIAS[:, :, 3] = -np.inf
FILES = {"bias": BIAS, "dense": DRAWN.random((4, 77, 77)) < 0.1}

VISITED = [
    (mask, block, lengths)
    for mask in ("causal", "window:5,2", "prefix:9", "padding:0,10")
    for block in (1, 8, 100)
    for lengths in ((77, 77), (13, 77), (77, 13), (1, 40))
]


@pytest.mark.parametrize(
    ("mask", "block", "lengths"), [*VISITED, *((kind, 8, (77, 77)) for kind in FILES)]
)
def test_blocks_visited_are_those_with_a_visible_pair_and_whole_ones_have_no_other(
    brute, mask, block, lengths
):
    extent = {**SMALL, "q_len": lengths[0], "kv_len": lengths[1]}
    mask = brute.text([(mask, FILES[mask]), ("causal", ())]) if mask in FILES else mask
    problem = Problem(**extent, mask=Mask.parse(mask))
    touched, whole = mask_blocks(problem, block)
    seen = problem.mask.visible(problem.shape)
    for b, h, i, j in np.ndindex(*touched.shape):
        tile = seen[b, h, i * block : (i + 1) * block, j * block : (j + 1) * block]
        assert touched[b, h, i, j] == tile.any()
        assert whole[b, h, i, j] == (tile.all() and tile.size == block * block)


def test_a_long_sequence_needs_no_form_of_every_pair():
    problem = Problem(q_len=1 << 20, kv_len=1 << 20, mask=Mask.parse("causal+window:4095,0"))
    touched, whole = mask_blocks(problem, 1024)
    assert touched.sum() == sum(min(i + 1, 5) for i in range(1024))
    assert whole.sum() == sum(min(i, 3) for i in range(1024))


def test_blocks_are_fitted_to_the_window_and_to_the_length():
    assert [_fitted(w + 1, 4096) for w in (0, 16, 64, 256, 1024)] == [16, 16, 16, 64, 128]
    assert _fitted(17, 1 << 16) == 32
    assert _fitted(17, 1 << 20) == 128


CELLS = [
    ("flex", "prefix:9", {"inputs": "outliers"}),
    ("window.flex?block=8", "window:9,0+document:30,47", {"inputs": "peaky"}),
    ("flex", "causal+document:30,47+alibi", {"inputs": "peaky"}),
    ("flex", "bias", {"dtype": "bfloat16"}),  # with rows that see nothing
    ("flex", "causal+alibi", {"q_len": 13, "kv_len": 29, "v_head_dim": 5}),
    ("flex", "causal", {"q_len": 1, "kv_len": 300, "phase": "decode", "inputs": "outliers"}),
    ("window.flex", "causal+window:30,0", {"dtype": "float16"}),
    ("window.flex?block=7", "window:20,3", {"q_len": 300, "kv_len": 300}),
]


@pytest.mark.parametrize(
    ("label", "mask", "changes"),
    [pytest.param(*cell, marks=[pytest.mark.slow] * (cell is not CELLS[0])) for cell in CELLS],
)
def test_the_gate_passes_it(verdict, brute, label, mask, changes):
    text = brute.text([(mask, FILES[mask])]) if mask in FILES else mask
    problem = Problem(**{**SMALL, **changes}, mask=Mask.parse(text))
    assert verdict(label, problem).reason is None


@pytest.mark.slow
def test_many_problems_in_a_row_are_all_compiled():
    # torch falls back to eager after 8 recompiles of one function, with a warning at most
    for length in range(20, 30):
        problem = Problem(**{**SMALL, "q_len": length, "kv_len": length})
        q, k, v = (torch.randn(2, h, length, 16) for h in (4, 2, 2))
        out = build(problem)(q, k, v)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        assert torch.allclose(out, want, atol=1e-5)
