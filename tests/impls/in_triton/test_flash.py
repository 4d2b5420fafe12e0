"""triton.flash, interpreted on the CPU, against float64 and the ruler's gate."""

import pytest

from tests.impls.in_triton import checks, interpreted

interpreted.start()
problem = checks.problem
SMALL = {"q_block": 16, "k_block": 16, "keys": "16x32x4x1", "queries": "32x16x4x1"}
"""Many blocks, and every kind of edge, in few tokens."""
MASKS = ("none", "causal", "window:9,4", "causal+window:20,3", "window:0,20")
FEW, BLIND = {"q_len": 19, "kv_len": 53}, {"q_len": 53, "kv_len": 19}


def build(p, **options):
    return checks.build("triton.flash", p, **{**SMALL, **options})


def test_the_gate_lets_it_pass():
    p = problem("causal+window:9,0", 20, dtype="float16")
    assert checks.failing("triton.flash", p, build(p)) is None


CELLS = [
    *((mask, lengths) for mask in MASKS for lengths in (FEW, BLIND)),
    ("none", {}),
    ("causal+window:20,3", {}),
    *(("causal+window:9,0@upper-left", lengths) for lengths in (FEW, BLIND)),
    ("window:60,30", {"length": 110}),  # with whole blocks between its two edges
    *(
        ("causal", {"batch": batch, "heads": heads, "kv_heads": n, "length": 20})
        for batch, heads, n in ((2, 4, 2), (1, 4, 1), (1, 2, 2))
    ),
    *(("causal", {"dtype": dtype}) for dtype in ("bfloat16", "float16")),
    *(("causal", {"length": length}) for length in (1, 15, 16, 17, 48)),
]


@pytest.mark.parametrize(("mask", "changes"), CELLS, ids=str)
def test_it_is_softmax_attention(mask, changes):
    p = problem(mask, **changes)
    checks.check(p, build(p))


@pytest.mark.parametrize("head_dim", [1, 24, 64, 80, 128, 256])
def test_widths_that_are_a_power_of_two_and_not_in_the_blocks_of_the_table(head_dim):
    p = problem("causal", head_dim=head_dim, q_len=20, kv_len=33)
    checks.check(p, checks.build("triton.flash", p))


def test_tokens_that_do_not_lie_next_to_each_other_are_read_in_their_place():
    p = problem("causal", 20)
    checks.read_in_place(p, build(p))
