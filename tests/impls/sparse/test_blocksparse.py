"""A layout of blocks, by FlexAttention. Compiling takes seconds: the default tests are few."""

import numpy as np
import pytest
import torch

from impls.masks import Mask
from impls.problem import Problem
from impls.sparse import cost as costs
from impls.sparse.blocksparse import build, definition
from impls.sparse.layouts import block_layout
from impls.spec import Unsupported
from tests.impls.sparse.test_flex import SMALL


@pytest.fixture(scope="module")
def by_head(tmp_path_factory):
    """A layout for each of 4 heads, one row of blocks of which sees nothing."""
    table = np.random.default_rng(0).random((4, 10, 10)) < 0.4
    table[:, 4] = False
    file = tmp_path_factory.mktemp("layouts") / "by_head.npy"
    np.save(file, table)
    return str(file), table


def test_a_layout_by_head_under_a_causal_mask_is_the_plain_loop(brute, by_head):
    file, table = by_head
    problem = Problem(**SMALL, mask=Mask.parse("causal"))
    q, k, v = (torch.randn(2, h, 77, 16, dtype=torch.float64) for h in (4, 2, 2))
    place = np.arange(77) // 8  # of each token, its block
    seen = brute.visible([("causal", ())], (2, 4, 77, 77)) & table[:, place[:, None], place]
    want = brute.attention(*(x.numpy() for x in (q, k, v)), seen, np.zeros(seen.shape), 0.25)
    got = definition(problem, layout=file, block=8)(q, k, v, torch.arange(77))
    assert np.abs(got.numpy() - want).max() < 1e-13
    assert not got[:, :, 32:40].any()
    assert costs.blocksparse(problem, file, 8).flops == 4 * 16 * int(seen.sum())


def test_the_default_is_its_own_block_the_one_before_and_the_first():
    table = block_layout(Problem(q_len=40, kv_len=40), "", 8)[0]
    want = [[j in (i, i - 1, 0) for j in range(5)] for i in range(5)]
    assert table.tolist() == want
    shifted = block_layout(Problem(q_len=16, kv_len=37), "", 8)[0]  # rows stand at 21 to 36
    assert shifted.tolist() == [[True, True, True, True, False], [True, False, True, True, True]]
    assert block_layout(Problem(q_len=1, kv_len=40), "", 8)[0].tolist() == [
        [True, False, False, True, True]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "mask", "changes"),
    [
        (8, "window:30,3", {"dtype": "bfloat16", "v_head_dim": 5}),
        (8, "padding:0,50", {}),
        (16, "causal", {"q_len": 1, "phase": "decode"}),
    ],
)
def test_the_gate_passes_it(verdict, by_head, block, mask, changes):
    problem = Problem(**{**SMALL, **changes}, mask=Mask.parse(mask))
    layout = f"&layout={by_head[0]}" if block == 8 else ""
    assert verdict(f"blocksparse.flex?block={block}{layout}", problem).reason is None


def test_a_file_that_is_no_layout_is_refused_and_costs_what_the_mask_does(tmp_path):
    file, problem = tmp_path / "layout.npy", Problem(**SMALL)
    file.write_bytes(b"not an array")
    tables = (np.ones((10, 10)), np.ones((9, 10), bool), np.ones((2, 10, 10), bool))
    for table, says in zip((None, *tables), ("can't be read", "float64", "is", "is"), strict=True):
        if table is not None:
            np.save(file, table)
        with pytest.raises(Unsupported, match=says):
            build(problem, layout=str(file), block=8)
        assert costs.blocksparse(problem, str(file), 8) == costs.window(problem)


def test_decoding_costs_the_keys_that_the_layout_lets_a_group_see(by_head, tmp_path):
    file = tmp_path / "step.npy"
    np.save(file, by_head[1][:, :1])
    step = Problem(**{**SMALL, "q_len": 3}, phase="decode", mask=Mask.parse("causal"))
    places = np.arange(77) <= np.arange(74, 77)[:, None]
    seen = by_head[1][:, 0, np.arange(77) // 8][:, None] & places
    read = int(seen.reshape(2, 2, 3, 77).any((1, 2)).sum()) * 2
    found = costs.blocksparse(step, str(file), 8)
    assert found.flops == 4 * 16 * 2 * int(seen.sum())
    assert found.bytes == 4 * (2 * 4 * 3 + read) * (16 + 16)
    assert found.bytes < costs.window(step).bytes
