"""triton.linear, interpreted on the CPU, against float64, linear.elu and the ruler's gate."""

import pytest
import torch
import torch.nn.functional as F

import impls
from impls.loading import load_function
from impls.spec import Unsupported
from tests.impls.in_triton import checks, interpreted

interpreted.start()
build, draw = checks.build, checks.draw
SMALL = {"chunk": 16}
CUTS = (1, 2, 3)


def problem(**changes):
    return checks.problem("causal", **changes)


def by_pairs(p, q, k, v):
    """Every weight in float64, cut to its lower triangle and divided, and the leaves."""
    q, k, v = (x.detach().double().requires_grad_(p.gradients) for x in (q, k, v))
    keys, values = (x.repeat_interleave(p.group, 1) for x in (k, v))
    weights = ((F.elu(q) + 1) @ (F.elu(keys) + 1).mT).tril()
    return (q, k, v), weights @ values / weights.sum(-1, keepdim=True)


def holds(p, **options):
    checks.check(p, build("triton.linear", p, **options), exact=by_pairs)


@pytest.mark.parametrize("segments", CUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_it_is_the_sum_over_pairs_however_it_is_cut(dtype, segments):
    holds(problem(dtype=dtype), **SMALL, segments=segments)


@pytest.mark.parametrize(
    ("dtype", "inputs"),
    [
        ("float32", "normal"),
        ("float32", "equal_keys"),
        ("float16", "peaky"),
        ("bfloat16", "outliers"),
    ],
)
def test_the_gate_lets_it_pass(inputs, dtype):
    p = problem(dtype=dtype, inputs=inputs, q_len=40, kv_len=40)
    attend = build("triton.linear", p, chunk=16, segments=2)
    assert checks.failing("triton.linear", p, attend) is None


@pytest.mark.parametrize("segments", CUTS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_in_groups_of_every_size(kv_heads, segments):
    p = problem(batch=2, heads=4, kv_heads=kv_heads, q_len=40, kv_len=40)
    holds(p, **SMALL, segments=segments)


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("widths", [(1, 1), (24, 24), (80, 16), (16, 80), (128, 256), (256, 128)])
def test_widths_of_keys_and_of_values(widths, segments):
    d, e = widths
    holds(problem(head_dim=d, v_head_dim=e), segments=segments)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 48])
def test_lengths_about_a_chunk(length):
    holds(problem(q_len=length, kv_len=length), **SMALL, segments=2)


def test_more_segments_than_chunks_are_no_more_than_there_are():
    p = problem()
    attend = build("triton.linear", p, chunk=16, segments=9)
    assert attend.note() == "chunks of 16 tokens, segments: 3"
    checks.check(p, attend, exact=by_pairs)


def test_it_fills_the_device_with_segments_of_some_chunks():
    cut = {  # eight programs fill a device of four processors twice
        "one head": (problem(heads=1, q_len=999, kv_len=999, dtype="bfloat16"), 4),
        "heads enough": (problem(heads=8, q_len=999, kv_len=999), 1),
        "few tokens": (problem(heads=1), 1),
    }
    for p, segments in cut.values():
        assert build("triton.linear", p).note().endswith(f"segments: {segments}")


def test_it_is_linear_elu():
    p = problem(q_len=40, kv_len=40)
    leaves, row = draw(p), impls.table().rows["linear.elu"]
    out = build("triton.linear", p, chunk=16, segments=2)(*leaves)
    twins = [x.detach().clone().requires_grad_() for x in leaves]
    want = load_function(row.build)(p, chunk=16)(*twins)
    torch.testing.assert_close(out, want, atol=1e-6, rtol=1e-5)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    got, expected = (torch.autograd.grad(o, x, dout) for o, x in ((out, leaves), (want, twins)))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_no_bit_of_a_later_token_comes_into_an_output():
    p = problem(q_len=40, kv_len=40)
    attend = build("triton.linear", p, chunk=16, segments=2)
    q, k, v = (x.detach() for x in draw(p))
    want = attend(q, k, v)
    for x in (q, k, v):
        x[:, :, 33:] = torch.nan if x is v else 1e4
    assert torch.equal(attend(q, k, v)[:, :, :32], want[:, :, :32])


def test_a_token_keeps_its_output_however_small_its_weight():
    p = problem(q_len=1, kv_len=1)
    low = torch.full((1, 2, 1, 16), -20.0)
    v = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(build("triton.linear", p)(low, low[:, :1], v), v.expand(1, 2, 1, 16))


def test_weights_that_are_all_zero_give_zeros_and_finite_gradients():
    p = problem(q_len=20, kv_len=20)
    q, k, v = draw(p)
    k = torch.full_like(k, -200.0).requires_grad_()
    out = build("triton.linear", p, chunk=16)(q, k, v)
    assert torch.equal(out, torch.zeros_like(out))
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_tokens_that_do_not_lie_next_to_each_other_are_read_in_their_place():
    p = problem(q_len=20, kv_len=20)
    checks.read_in_place(p, build("triton.linear", p, chunk=16, segments=2))


@pytest.mark.parametrize("options", [{"chunk": 24}, {"chunk": 8}, {"chunk": -16}, {"segments": -1}])
def test_options_that_no_kernel_takes_are_refused_in_a_sentence(options):
    with pytest.raises(Unsupported, match="power of two"):
        build("triton.linear", problem(), **options)


def test_values_wider_than_the_table_are_refused_in_a_sentence():
    with pytest.raises(Unsupported, match="v_head_dim=300"):
        build("triton.linear", problem(v_head_dim=300))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "inputs"),
    [("float32", "peaky"), ("float16", "outliers"), ("bfloat16", "equal_keys")],
)
def test_longer_and_harder_inputs_in_the_chunks_of_the_table(dtype, inputs):
    p = problem(q_len=300, kv_len=300, head_dim=64, inputs=inputs, dtype=dtype)
    attend = build("triton.linear", p, segments=3)
    assert checks.failing("triton.linear", p, attend) is None
