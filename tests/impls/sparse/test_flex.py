"""FlexAttention, compiled, which takes seconds a problem, and not; and layouts of blocks."""

from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention

from impls.masks import Mask
from impls.problem import Problem
from impls.sparse import blocksparse, flex, flex_kernel
from impls.sparse import cost as costs
from impls.sparse.flex_kernel import mask_blocks
from impls.spec import Unsupported
from tests.brute import saved, visible
from tests.impls.small import softmax, verdict

SMALL = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 77, "kv_len": 77, "head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip
DICE = np.random.default_rng(0)
BIAS = DICE.choice([-np.inf, 0.5, -1.25, 2.0], (2, 4, 77, 77))
BIAS[:, :, 3] = -np.inf
FILES = {"bias": BIAS, "dense": DICE.random((4, 77, 77)) < 0.1}

BY_HEAD = DICE.random((4, 10, 10)) < 0.4
"""A layout of blocks for each of 4 heads, one row of which sees nothing."""
BY_HEAD[:, 4] = False


def test_the_flash_backend_is_forced_where_it_was_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr(flex_kernel, "Graph", lambda function, **_: function)
    monkeypatch.setattr(flex_kernel, "flex_attention", lambda *_, **options: calls.append(options))
    problem = Problem(**SMALL, mask=Mask.parse("causal"))
    for build in (flex.build_flash, flex.build):
        build(problem)(*torch.zeros(3, 1))
    assert [options["kernel_options"] for options in calls] == [{"BACKEND": "FLASH"}, None]


@pytest.mark.parametrize("mask", ["causal", "window:5,2", "prefix:9", "padding:0,10", *FILES])
def test_blocks_visited_are_those_with_a_visible_pair_and_whole_ones_have_no_other(mask):
    text = f"{saved(mask, FILES[mask])}+causal" if mask in FILES else mask
    sizes = product((1, 8, 100), ((77, 77), (13, 77), (77, 13), (1, 40)))
    for block, (n, m) in [(8, (77, 77))] if mask in FILES else sizes:
        problem = Problem(**{**SMALL, "q_len": n, "kv_len": m}, mask=Mask.parse(text))
        touched, whole = mask_blocks(problem, block)
        sight = problem.mask.visible(problem.shape)
        for b, h, i, j in np.ndindex(*touched.shape):
            tile = sight[b, h, i * block : (i + 1) * block, j * block : (j + 1) * block]
            assert touched[b, h, i, j] == tile.any()
            assert whole[b, h, i, j] == (tile.all() and tile.size == block * block)


CELLS = [
    ("window.flex?block=12", "window:9,0+document:30,47", {"inputs": "peaky"}),
    ("flex", "causal+document:30,47+alibi", {"inputs": "peaky"}),
    ("flex", "bias", {"dtype": "bfloat16"}),  # with rows that see nothing
    ("flex", "causal+alibi", {"q_len": 13, "kv_len": 29, "v_head_dim": 5}),
    ("flex", "causal", {"q_len": 1, "kv_len": 300, "phase": "decode", "inputs": "outliers"}),
    ("window.flex", "causal+window:30,0", {"dtype": "float16"}),
]
COMPILED = [  # which takes seconds each, so what one cell can hold together is one
    *CELLS[2:5],
    ("window.flex?block=7", "window:9,0+document:130,170",
     {"q_len": 300, "kv_len": 300, "dtype": "float16", "inputs": "peaky"}),
    ("blocksparse.flex?block=9", "padding:0,50", {"dtype": "bfloat16", "v_head_dim": 5}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "mask", "changes", "compiled"),
    [
        *((*cell, False) for cell in CELLS),
        *(pytest.param(*cell, True, marks=pytest.mark.slow) for cell in COMPILED),
    ],
    ids=str,
)
def test_the_gate_passes_it(monkeypatch, tmp_path, label, mask, changes, compiled):
    """Not compiled, torch asks the mask of every pair, whatever the blocks."""
    if not compiled:
        monkeypatch.setattr("impls.sparse.flex_kernel.Graph", lambda function, **_: function)
        name = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"  # which a torch before may not have
        monkeypatch.setattr(flex_attention, name, True, raising=False)
    if label == "blocksparse.flex?block=9":
        np.save(tmp_path / "layout.npy", BY_HEAD[:, :9, :9])
        label += f"&layout={tmp_path / 'layout.npy'}"
    text = saved(mask, FILES[mask]) if mask in FILES else mask
    problem = Problem(**{**SMALL, **changes}, mask=Mask.parse(text))
    assert verdict(label, problem).reason is None


def test_blocks_for_which_torch_is_wrong_are_refused(monkeypatch):
    problem = Problem(**SMALL, mask=Mask.parse("window:9,0"))
    for block, avx512, refused in ((8, 0, 1), (24, 0, 1), (23, 0, 1), (16, 0, 0), (8, 1, 0)):
        monkeypatch.setattr("impls.sparse.flex_kernel.AVX512", avx512)
        with pytest.raises(Unsupported, match="use another block") if refused else nullcontext():
            flex.build_window(problem, block=block)


def test_a_layout_by_head_under_a_causal_mask_is_the_plain_loop(tmp_path):
    np.save(tmp_path / "by_head.npy", BY_HEAD)
    problem = Problem(**SMALL, mask=Mask.parse("causal"))
    q, k, v = (torch.randn(2, h, 77, 16, dtype=torch.float64) for h in (4, 2, 2))
    place = np.arange(77) // 8  # of each token, its block
    sight = visible("causal", (2, 4, 77, 77)) & BY_HEAD[:, place[:, None], place]
    want = softmax(problem, q, k, v, visible=sight)
    layout = str(tmp_path / "by_head.npy")
    got = blocksparse.definition(problem, layout=layout, block=8)(q, k, v, torch.arange(77))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-13)
    assert not got[:, :, 32:40].any()
    assert costs.blocksparse(problem, layout, 8).flops == 4 * 16 * int(sight.sum())


def test_a_file_that_is_no_layout_is_refused_and_costs_what_the_mask_does(tmp_path):
    file, problem = tmp_path / "layout.npy", Problem(**SMALL)
    file.write_bytes(b"not an array")
    tables = (np.ones((10, 10)), np.ones((9, 10), bool), np.ones((2, 10, 10), bool))
    for table, says in zip((None, *tables), ("can't be read", "float64", "is", "is"), strict=True):
        if table is not None:
            np.save(file, table)
        with pytest.raises(Unsupported, match=says):
            blocksparse.build(problem, layout=str(file), block=8)
        assert costs.blocksparse(problem, str(file), 8) == costs.softmax(problem)


def test_decoding_costs_the_keys_that_the_layout_lets_a_group_see(tmp_path):
    file = tmp_path / "step.npy"
    np.save(file, BY_HEAD[:, :1])
    step = Problem(**{**SMALL, "q_len": 3}, phase="decode", mask=Mask.parse("causal"))
    places = np.arange(77) <= np.arange(74, 77)[:, None]
    sight = BY_HEAD[:, 0, np.arange(77) // 8][:, None] & places
    read = int(sight.reshape(2, 2, 3, 77).any((1, 2)).sum()) * 2
    work = costs.blocksparse(step, str(file), 8)
    assert work.flops == 4 * 16 * 2 * int(sight.sum())
    assert work.bytes == 4 * (2 * 4 * 3 + read) * (16 + 16)
    assert work.bytes < costs.softmax(step).bytes
