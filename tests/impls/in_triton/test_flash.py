"""triton.flash, interpreted on the CPU, against float64, torch's own and the ruler's gate."""

import pytest
import torch
import torch.nn.functional as F

from impls.spec import Unsupported
from tests.impls.in_triton import checks, interpreted

interpreted.start()
build, check, draw, problem = checks.build, checks.check, checks.draw, checks.problem
SMALL = {
    "q_block": 16,
    "k_block": 16,
    "keys": "16x32x4x1",
    "queries": "32x16x4x1",
}  # fmt: skip - many blocks, and every kind of edge, in few tokens
MASKS = ("none", "causal", "window:9,4", "causal+window:20,3", "window:0,20")
LENGTHS = {"square": {}, "few": {"q_len": 19, "kv_len": 53}, "blind": {"q_len": 53, "kv_len": 19}}


def holds(p, **options):
    check(p, build("triton.flash", p, **options))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_gate_lets_it_pass(dtype):
    p = problem("causal+window:9,0", dtype=dtype, q_len=20, kv_len=20)
    assert checks.failing("triton.flash", p, build("triton.flash", p, **SMALL)) is None


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_it_is_softmax_attention_under_every_mask(mask, lengths):
    holds(problem(mask, **lengths), **SMALL)


def test_whole_blocks_between_the_two_edges_of_a_window():
    holds(problem("window:100,40", head_dim=16, q_len=200, kv_len=200), **SMALL)


@pytest.mark.parametrize("lengths", [LENGTHS["few"], LENGTHS["blind"]], ids=["few", "blind"])
def test_it_stands_at_the_upper_left_where_the_mask_says_so(lengths):
    holds(problem("causal+window:9,0@upper-left", **lengths), **SMALL)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_in_groups_of_every_size(kv_heads):
    holds(problem("causal", batch=2, heads=4, kv_heads=kv_heads, q_len=20, kv_len=20), **SMALL)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precisions(dtype):
    holds(problem("causal", dtype=dtype), **SMALL)


@pytest.mark.parametrize("head_dim", [1, 24, 64, 80, 128, 256])
def test_widths_that_are_a_power_of_two_and_not(head_dim):
    holds(problem("causal", head_dim=head_dim, q_len=20, kv_len=33))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 48])
def test_lengths_about_a_block(length):
    holds(problem("causal", q_len=length, kv_len=length), **SMALL)


def test_it_is_torchs_scaled_dot_product_attention():
    p = problem("causal")
    leaves = draw(p)
    twins = [x.detach().clone().requires_grad_() for x in leaves]
    out = build("triton.flash", p, **SMALL)(*leaves)
    want = F.scaled_dot_product_attention(*twins, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, want, atol=2e-6, rtol=2e-6)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    got, expected = (torch.autograd.grad(o, x, dout) for o, x in ((out, leaves), (want, twins)))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_tokens_that_do_not_lie_next_to_each_other_are_read_in_their_place():
    p = problem("causal", q_len=20, kv_len=20)
    checks.read_in_place(p, build("triton.flash", p, **SMALL))


def test_a_row_that_sees_nothing_gives_zeros_and_takes_no_gradient():
    p = problem("causal", q_len=30, kv_len=10)
    leaves = draw(p)
    out = build("triton.flash", p, **SMALL)(*leaves)
    assert torch.equal(out[:, :, :20], torch.zeros_like(out[:, :, :20]))
    dq, *_ = torch.autograd.grad(out.sum(), leaves)
    assert torch.equal(dq[:, :, :20], torch.zeros_like(dq[:, :, :20]))


def test_repeats_give_the_same_bits():
    p = problem("causal", q_len=33, kv_len=33)
    attend, leaves = build("triton.flash", p, **SMALL), draw(p)
    one, other = (torch.autograd.grad(attend(*leaves).square().sum(), leaves) for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    "options",
    [
        {"q_block": 24},
        {"k_block": 8},
        {"warps": 3},
        {"keys": "64x24x4x2"},
        {"queries": "64x64x4x0"},
        {"keys": "64x64x4"},
        {"queries": "many"},
    ],
)
def test_blocks_that_no_kernel_takes_are_refused_in_a_sentence(options):
    with pytest.raises(Unsupported, match=r"powers of two|is not like 64x64x4x2: blocks"):
        build("triton.flash", problem(), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "inputs"),
    [("none", "peaky"), ("causal", "outliers"), ("window:60,0", "equal_keys")],
)
def test_longer_and_harder_inputs_in_the_blocks_of_the_table(mask, inputs):
    for dtype in ("float32", "float16"):
        p = problem(mask, q_len=130, kv_len=150, head_dim=64, inputs=inputs, dtype=dtype)
        assert checks.failing("triton.flash", p, build("triton.flash", p)) is None
